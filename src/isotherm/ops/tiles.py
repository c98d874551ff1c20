"""Attention cut into tiles: some heads × some queries × `KEYS` keys, small enough for the cache."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from isotherm.ops.problem import Problem

KEYS = 512
TILE = 1 << 20
"""Most entries of a tile: two float32 buffers and, for masked tiles, a float64 one take 16 MiB."""
LEAST_HEIGHT = 16
HEADS = 4
"""Fewest heads in a chunk: few tall tiles multiply faster than many flat ones."""


@dataclass(frozen=True)
class Chunk:
    """P pairs of (batch, key head), with G query heads each, that share their tiles."""

    problem: Problem
    pairs: slice

    @cached_property
    def k(self) -> Tensor:
        """[P, S, D]."""
        return self.problem.k.flatten(0, 1)[self.pairs].to(self.problem.dtype)

    @cached_property
    def v(self) -> Tensor:
        """[P, S, Dv]."""
        return self.problem.v.flatten(0, 1)[self.pairs].to(self.problem.dtype)

    @cached_property
    def height(self) -> int:
        """Queries per tile."""
        width = max(1, min(KEYS, self.k.shape[1]))
        return max(LEAST_HEIGHT, min(KEYS, TILE // (width * self.k.shape[0] * self.problem.groups)))

    def row_blocks(self) -> Iterator[slice]:
        """Slices of the queries, each of a tile's height."""
        rows = self.problem.q.shape[2]
        return (slice(start, min(start + self.height, rows)) for start in range(0, rows, self.height))

    def queries(self, rows: slice) -> Tensor:
        """These rows of q with the scale in them, [P, G, R, D]."""
        return self.take(self.problem.q, rows) * self.problem.scale

    def take(self, tensor: Tensor, rows: slice) -> Tensor:
        """These rows of a [B, Hq, T, …] tensor as [P, G, R, …]."""
        grouped = tensor[:, :, rows].unflatten(1, (self.problem.k.shape[1], self.problem.groups))
        return grouped.flatten(0, 1)[self.pairs].to(self.problem.dtype)

    def part(self, tensor: Tensor, rows: slice, columns: slice) -> Tensor:
        """The tile of a mask or bias: [P or 1, G or 1, R or 1, K or 1]."""
        grouped = self._grouped(tensor, rows, columns)
        if grouped.shape[:2] == (1, 1):
            return grouped[0]
        return grouped[self._index(grouped)]

    def add_to(self, tensor: Tensor, rows: slice, columns: slice, tile: Tensor) -> None:
        """Add a tile [P, G, R, K] to a [B, Hq, T, S] tensor, summed over the dimensions of size 1 in that tensor."""
        target = self._grouped(tensor, rows, columns)
        inner = [axis for axis in (1, 2, 3) if target.shape[axis + 1] == 1 and tile.shape[axis] > 1]
        tile = tile.sum(inner, keepdim=True) if inner else tile
        batch, head = (
            x.expand(tile.shape[0])
            if isinstance(x, Tensor)
            else torch.zeros(tile.shape[0], dtype=torch.long, device=tile.device)
            for x in self._index(target)
        )
        target.index_put_((batch, head), tile, accumulate=True)

    def _grouped(self, tensor: Tensor, rows: slice, columns: slice) -> Tensor:
        """Rows and columns of a mask or bias [B, Hq, T, S], any of them 1, as [B, Hkv or 1, G or 1, R or 1, K or 1]."""
        grouped = tensor.unflatten(1, (-1, self.problem.groups)) if tensor.shape[1] > 1 else tensor.unsqueeze(2)
        everything = slice(None)
        return grouped[
            :, :, :, rows if tensor.shape[2] > 1 else everything, columns if tensor.shape[3] > 1 else everything
        ]

    def _index(self, grouped: Tensor) -> tuple[Tensor | int, Tensor | int]:
        pairs = torch.arange(self.pairs.start, self.pairs.stop, device=grouped.device)
        heads = self.problem.k.shape[1]
        return (
            pairs // heads if grouped.shape[0] > 1 else 0,
            pairs % heads if grouped.shape[1] > 1 else 0,
        )

    @cached_property
    def documents(self) -> Tensor | None:
        """The first key of each query's document and the one after its last, [2, P or 1, T]."""
        documents = self.problem.visibility.documents
        if documents is None or documents.shape[1] == 1:
            return documents
        pairs = torch.arange(self.pairs.start, self.pairs.stop, device=documents.device)
        return documents[:, pairs // self.problem.k.shape[1]]

    def within_documents(self, rows: slice, columns: slice) -> bool | Tensor:
        """Which keys of a tile are in a row's document: True (all), False (none), or bool [P or 1, 1, R, K]."""
        if self.documents is None:
            return True
        first, end = self.documents[..., rows]
        if int(end.max()) <= columns.start or int(first.min()) >= columns.stop:
            return False
        if int(first.max()) <= columns.start and int(end.min()) >= columns.stop:
            return True
        keys = torch.arange(columns.start, columns.stop, device=first.device)
        return ((keys >= first.unsqueeze(-1)) & (keys < end.unsqueeze(-1))).unsqueeze(1)

    def tiles(self, rows: slice) -> Iterator[tuple[slice, Tensor | None]]:
        """Each block of keys these rows see, and which of its keys: None for all, else bool [P or 1, G or 1, R, K]."""
        visibility = self.problem.visibility
        for start in range(0, self.k.shape[1], KEYS):
            columns = slice(start, min(start + KEYS, self.k.shape[1]))
            geometry, within = visibility.geometry(rows, columns), self.within_documents(rows, columns)
            if geometry is False or within is False:
                continue
            seen = None if geometry is True else geometry.view(1, 1, *geometry.shape)
            if within is not True:
                seen = within if seen is None else within & seen
            if visibility.mask is not None:
                part = self.part(visibility.mask, rows, columns)
                part = part.expand(*part.shape[:2], rows.stop - rows.start, columns.stop - columns.start)
                seen = part if seen is None else part & seen
                if seen.all():
                    seen = None
            yield columns, seen

    def logits(self, q: Tensor, rows: slice, columns: slice) -> Tensor:
        """s of one tile [P, G, R, K], before masking, in scratch tile 0; q is [P, G, R, D]."""
        shape = (*q.shape[:3], columns.stop - columns.start)
        s = self.scratch(0, shape)
        torch.bmm(q.flatten(1, 2), self.k[:, columns].mT, out=s.flatten(1, 2))
        if self.problem.softcap is not None:
            s.div_(self.problem.softcap).tanh_().mul_(self.problem.softcap)
        if self.problem.bias is not None:
            s.add_(self.part(self.problem.bias, rows, columns))
        return s

    def scratch(self, which: int, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """Uninitialised memory of this shape, kept from call to call: fresh pages cost as much as two passes over them."""
        dtype, size, kept = dtype or self.k.dtype, prod(shape), vars(_kept)
        key = f"{which} {dtype} {self.k.device}"
        if key not in kept or kept[key].numel() < size:
            with torch.inference_mode(False):  # else it could not be written to outside
                kept[key] = torch.empty(size, dtype=dtype, device=self.k.device)
        memory: Tensor = kept[key]
        return memory[:size].view(shape)


_kept = threading.local()


def chunks(problem: Problem) -> Iterator[Chunk]:
    """The problem's heads a few at a time; more at a time where the whole matrix of a head is smaller than a tile."""
    pairs = problem.k.shape[0] * problem.k.shape[1]
    matrix = min(KEYS, problem.q.shape[2]) * min(KEYS, problem.k.shape[2])
    heads = max(HEADS, TILE // max(1, matrix))
    step = max(1, heads // problem.groups)
    return (Chunk(problem, slice(start, min(start + step, pairs))) for start in range(0, pairs, step))
