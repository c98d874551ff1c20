"""How a projection's output may be cut into heads: [q|k|v], [q₁k₁v₁|q₂k₂v₂|…], [q q q k v|…], tokens first or batch first."""

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from isotherm.probe.capture import HeadLayout


def tokens(output: Tensor, batch: int, length: int, dim: int) -> Iterator[Tensor]:
    """Yield `output` as [batch, at most `length` tokens, blocks, dim] in every way its shape allows."""
    output = without_head_axis(output)
    shape = tuple(output.shape)
    if len(shape) >= 3 and shape[0] == batch and shape[1] <= length:
        yield from _blocks(output.flatten(2), dim)
    if len(shape) >= 3 and shape[1] == batch and shape[0] <= length and shape[0] != batch:
        yield from _blocks(output.transpose(0, 1).flatten(2), dim)
    if len(shape) == 2 and shape[0] % batch == 0 and shape[0] // batch <= length:
        yield from _blocks(output.unflatten(0, (batch, -1)), dim)
        if batch > 1:
            yield from _blocks(output.unflatten(0, (-1, batch)).transpose(0, 1), dim)
    if len(shape) == 4 and shape[0] == batch and shape[-1] == dim and shape[2] <= length:
        yield output.transpose(1, 2)
    if len(shape) == 3 and shape[-1] == dim and shape[0] % batch == 0 and shape[1] <= length:
        yield output.unflatten(0, (batch, -1)).transpose(1, 2)


def without_head_axis(output: Tensor) -> Tensor:
    """[B, 1, T, F] → [B, T, F]; other shapes stay."""
    return output.squeeze(1) if output.dim() == 4 and output.shape[1] == 1 else output


def _blocks(output: Tensor, dim: int) -> Iterator[Tensor]:
    if output.shape[-1] % dim == 0 and output.shape[-1] and output.shape[1]:
        yield output.unflatten(-1, (-1, dim))


def viewed(used: Tensor, output: Tensor) -> HeadLayout | None:
    """Which features of `output` are which head of `used` [B, H, T, D], a view of it. None if its strides do not tell."""
    width, (_, heads, _, dim), step = output.shape[-1], used.shape, used.stride(3)
    if used.numel() == output.numel() and dim == width:
        return HeadLayout(width, dim)
    if not output.is_contiguous() or step <= 0:
        return None
    if dim == width:
        return HeadLayout(width, dim)
    first = used.storage_offset() - output.storage_offset()
    starts = tuple(int(first + head * used.stride(1)) % width for head in range(heads))
    inside = all(start + (dim - 1) * step < width for start in starts)
    return HeadLayout(width, dim, starts, step) if inside else None


@lru_cache(maxsize=256)
def assignments(blocks: int, heads: int) -> Tensor:
    """Which block each head may be, [ways, heads]: runs of r heads at even distances, for every r that divides the number of
    heads; and the same for fewer heads, each of them repeated (grouped keys that the model has already repeated)."""
    ways: dict[tuple[int, ...], None] = {}
    for distinct in _divisors(heads):
        for run in _divisors(distinct):
            for way in _spaced(blocks, distinct, run):
                repeats = heads // distinct
                ways.setdefault(tuple(block for block in way for _ in range(repeats)))
    return torch.tensor(list(ways), dtype=torch.long).view(-1, heads)


def _spaced(blocks: int, heads: int, run: int) -> Iterator[list[int]]:
    groups = heads // run
    if blocks % groups and groups > 1:
        return
    width = blocks // groups
    for start in range(width - run + 1):
        yield [group * width + start + step for group in range(groups) for step in range(run)]


def _divisors(number: int) -> list[int]:
    """Divisors, largest first: then the most common layout is the first of the ways."""
    return [divisor for divisor in range(number, 0, -1) if number % divisor == 0]
