"""The search for a projection whose vectors have the lengths that the kernel's have, up to a factor of a given shape.

A `Measure` says how far ratios are from that shape. It decides both which block of a projection is which head and whether
the projection is the one: with the wrong blocks no shape fits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isotherm.probe.frames import Record
from isotherm.probe.layouts import assignments, tokens

TOKENS = 48
"""Tokens looked at, spread over the sequence."""
SEQUENCES = 4
"""Sequences of the batch looked at."""
FEW = 8
"""Tokens looked at to find out which block of a projection is which head."""
ENOUGH = 4
"""Vectors of different lengths that must agree before «one ratio» means anything."""

Measure = Callable[[Tensor, Tensor], Tensor]
"""Ratios [B, T, W, H] (NaN where they mean nothing) and the lengths divided by → distance from the shape, [W]."""


@dataclass(frozen=True)
class Match:
    """Lengths used / lengths projected, [B, T, H]; `spread` is how far they are from the shape that was asked for."""

    record: Record
    ratio: Tensor
    spread: float

    @property
    def value(self) -> float:
        """The one number, where it is one."""
        return float(self.ratio.nanmedian())


def matches(used: Tensor, records: list[Record], measure: Measure, enough: float = 0.0) -> list[Match]:
    """For each record the assignment of its blocks to heads that comes closest, latest record first. One that comes closer
    than `enough` ends the search."""
    batch, _, length, dim = used.shape
    found: list[Match] = []
    for record in reversed(records):
        for output in tokens(record.output, batch, length, dim):
            for own, projected in _aligned(used, output):
                match = _closest(record, own, projected, measure)
                found += [] if match is None else [match]
        if any(match.spread < enough for match in found):
            break
    return found


def lengths(vectors: Tensor) -> Tensor:
    """Of the last dimension, in float64."""
    return torch.linalg.vector_norm(vectors.double(), dim=-1)


def _aligned(used: Tensor, output: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Lengths [B, T, H] and [B, T, G] at the same tokens. A cache holds keys of earlier calls before the new ones, or
    room for later ones after them."""
    new, length = output.shape[1], used.shape[2]
    chosen = torch.linspace(0, new - 1, min(new, TOKENS), device=used.device).round().long().unique()
    projected = lengths(output[:SEQUENCES].index_select(1, chosen))
    starts = [0] if new == length else [length - new, 0]
    return [(lengths(used[:SEQUENCES].index_select(2, chosen + start)).transpose(1, 2), projected) for start in starts]


def _closest(record: Record, used: Tensor, projected: Tensor, measure: Measure) -> Match | None:
    """The best way on a few tokens, held against all of them."""
    ways = assignments(projected.shape[-1], used.shape[-1]).to(used.device)
    if not len(ways):
        return None
    floor = 1e-6 * projected.median()
    if len(ways) > 1:
        step = -(-used.shape[1] // FEW)
        some = (_ratio(used[:, ::step], projected[:, ::step], part, floor) for part in ways.split(256))
        ways = ways[torch.cat([measure(ratio, base) for ratio, base in some]).argmin()].unsqueeze(0)
    ratio, base = _ratio(used, projected, ways, floor)
    return Match(record, ratio[:, :, 0], float(measure(ratio, base)))


def _ratio(used: Tensor, projected: Tensor, ways: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Ratios [B, T, ways, H], NaN where a vector is too short to tell, and what was divided by."""
    base = projected[..., ways]
    ratio = used.unsqueeze(2) / base
    return torch.where((base > floor) & ratio.isfinite() & (ratio > 0), ratio, torch.nan), base


def same_length(ratio: Tensor, base: Tensor) -> Tensor:  # noqa: ARG001  a measure
    """How far the ratios are from one number."""
    flat = ratio.movedim(2, 0).flatten(1)
    mean = flat.nanmean(-1, keepdim=True)
    return ((flat - mean).square().nanmean(-1).sqrt() / mean.squeeze(-1)).nan_to_num(torch.inf)


def one_number(ratio: Tensor, base: Tensor) -> Tensor:
    """The same, where chance must be ruled out: if fewer than `ENOUGH` different lengths were compared, the ratios must be
    ten times closer for each that is missing, and a single length proves nothing."""
    different = torch.where(ratio.isnan(), torch.nan, base).movedim(2, 0).flatten(1).sort(-1).values
    count = (different.diff(dim=-1) > 1e-3 * different[:, 1:]).sum(-1) + 1
    spread = same_length(ratio, base) * 10.0 ** (ENOUGH - count).clamp(min=0)
    return torch.where(count >= 2, spread, torch.inf)


def by_position(ratio: Tensor, base: Tensor) -> Tensor:  # noqa: ARG001  a measure
    """How far the ratios are from a(head)·f(token), with f the same for all sequences where there is one head only."""
    batch, length, _, heads = ratio.shape
    if length < ENOUGH or batch * heads < 2:
        return ratio.new_full((ratio.shape[2],), torch.inf)
    logs = ratio.log()
    logs = logs - logs.nanmean((0, 1), keepdim=True)
    left = (logs - logs.nanmean(-1 if heads > 1 else 0, keepdim=True)).abs()
    known = (~left.isnan()).double().mean((0, 1, 3))
    return torch.where(known > 0.5, left.nan_to_num(0.0).amax((0, 1, 3)), torch.inf)


def grows(ratio: Tensor, tolerance: float) -> bool:
    """Whether ratios [B, T, H] change along the sequence, and in one direction."""
    logs = ratio.log()
    logs = logs - logs.nanmean((0, 1), keepdim=True)
    steps = logs.nanmean(-1).diff(dim=1).nan_to_num(0.0)
    changes = bool((steps.abs().sum(1) > tolerance).all())
    return changes and bool((steps > -tolerance).all() or (steps < tolerance).all())
