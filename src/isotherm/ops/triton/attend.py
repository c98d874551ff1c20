# mypy: disable-error-code="import-untyped, import-not-found"
"""Launching the general kernel: block sizes, strides, and the keys split over programs where rows are few."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isotherm.ops.triton import attend_kernel, keys
from isotherm.ops.triton.fields import Fields
from isotherm.ops.triton.launch import launch

keys.settle()  # before any kernel is launched: every other launcher imports this one

FAR = 1 << 30
"""A reach beyond any key that still fits 32 bits when added to a position."""
PROGRAMS = 512
"""Programs that keep a large GPU busy: keys are split until there are about this many."""
LEAST_SPLIT = 512
LEAN = 168
"""Registers for statistics alone in half precision: three programs a multiprocessor."""


@dataclass(frozen=True)
class Call:
    """Attention as the kernels are asked for it; `window` 0 and `softcap` 0 mean none."""

    q: Tensor
    k: Tensor
    v: Tensor
    positions: Tensor
    mask: Tensor | None
    bias: Tensor | None
    causal: bool
    window: int
    scale: float
    softcap: float
    rows: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All that are given."""
        return self.q, self.k, self.v, self.positions, self.mask, self.bias, self.rows

    @property
    def numbers(self) -> tuple[float, ...]:
        """All else."""
        return self.causal, self.window, self.scale, self.softcap

    @property
    def groups(self) -> int:
        """Query heads per key head."""
        return self.q.shape[1] // max(1, self.k.shape[1])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Batch, query heads and rows looked at."""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2] if self.rows is None else len(self.rows)

    @property
    def behind(self) -> int:
        """How far back a query sees."""
        return FAR if self.window == 0 else min(self.window - 1, FAR)

    @property
    def ahead(self) -> int:
        """How far forward a query sees."""
        return 0 if self.causal else self.behind


@dataclass(frozen=True)
class Blocks:
    """Rows × keys of a tile, the warps that work on it, and blocks of keys in flight."""

    rows: int
    keys: int
    warps: int
    stages: int


def where(tensor: Tensor) -> AbstractContextManager[None]:
    """Makes a tensor's GPU the current one: Triton launches there, wherever the tensors are."""
    elsewhere = tensor.is_cuda and tensor.device.index != torch.cuda.current_device()
    return torch.cuda.device(tensor.device) if elsewhere else nullcontext()


def pieces(size: int, piece: int) -> int:
    """How many pieces cover a size. (Triton's own function costs microseconds: it serves kernels, too.)"""
    return -(-size // piece)


def power_of_2(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def width(size: int) -> int:
    """A dimension as a kernel holds it: a power of two, at least 16 (the matrix units' smallest)."""
    return max(16, power_of_2(size))


def blocks(call: Call, *, backward: bool = False) -> Blocks:
    """The tile that fits this head dimension and precision."""
    wide = max(width(call.q.shape[3]), width(call.v.shape[3]))
    if call.k.dtype is torch.float32:
        return Blocks(32, 32, 4, 1) if wide > 64 or backward else Blocks(64, 32, 8, 2)
    if wide > 256:
        return Blocks(32, 32, 4, 1)
    if wide == 256:
        return Blocks(32, 32, 4, 1) if backward else Blocks(64, 32, 4, 2)
    return Blocks(64, 64, 4, 2 if backward else 3)


def precision(call: Call) -> str:
    """float32 is multiplied as float32: TF32 would miss the error budget by three digits."""
    return "ieee" if call.k.dtype is torch.float32 else "tf32"


class Split(NamedTuple):
    """The keys in `parts` runs of `keys` each."""

    parts: int
    keys: int


def split(call: Call, rows: int, keys: int, wanted: int) -> Split:
    """How to split the keys, in blocks of `keys`, where blocks of `rows` rows alone are fewer than the programs wanted."""
    b, h, t = call.shape
    programs = pieces(t, rows) * b * h
    # Of a block's parts under causality about 5/8 have keys, if the rows are four blocks of an even sample.
    busy = wanted * 8 // 5 if call.causal and call.rows is not None else wanted
    parts = max(1, min(busy // max(1, programs), pieces(call.k.shape[2], LEAST_SPLIT)))
    run = pieces(pieces(max(1, call.k.shape[2]), parts), keys) * keys
    return Split(max(1, pieces(call.k.shape[2], run)), run)


def run(call: Call, *, output: tuple[Tensor, Tensor] | None, fields: Fields | None) -> None:
    """Fill output = (out [B, Hq, R, Dv], lse [B, Hq, R]) and fields."""
    tile = blocks(call)
    cut = split(call, tile.rows, tile.keys, PROGRAMS) if output is None else Split(1, max(1, call.k.shape[2]))
    into = fields if fields is None or cut.parts == 1 else Fields.empty(call.shape, call.q.device, parts=cut.parts)
    look(call, tile, cut, output=output, fields=into)
    if fields is not None and into is not None and into is not fields:
        merge(into, fields, cut.parts)


def look(
    call: Call,
    tile: Blocks,
    cut: Split,
    *,
    output: tuple[Tensor, Tensor] | None,
    fields: Fields | None,
) -> None:
    """One launch of the kernel."""
    b, h, rows = call.shape
    if not b * h * rows:
        return
    programs = pieces(rows, tile.rows) * b * h
    nothing = call.q
    values, first_key, broken = (
        (nothing, nothing, nothing) if fields is None else (fields.values, fields.first_key, fields.broken)
    )
    out, lse = (nothing, nothing) if output is None else output
    bias, mask = call.bias, None if call.mask is None else call.mask.view(torch.uint8)
    launch(
        attend_kernel.attend, (programs, cut.parts),
        call.q, call.k, call.v, nothing if bias is None else bias, nothing if mask is None else mask,
        call.positions, call.positions if call.rows is None else call.rows,
        out, lse, values, first_key, broken,
        *call.q.stride(), *call.k.stride(), *call.v.stride(), *shared_strides(bias), *shared_strides(mask),
        rows, call.k.shape[2], call.q.shape[3], call.v.shape[3], h, call.groups, call.behind, call.ahead,
        float(call.scale), float(call.softcap), cut.keys, b * h * rows,
        BM=tile.rows, BN=tile.keys, WIDE=width(call.q.shape[3]), WIDE_V=width(call.v.shape[3]),
        GEOMETRY=call.causal or call.window > 0, MASK=shared(mask), BIAS=shared(bias),
        SOFTCAP=call.softcap > 0, PARTS=call.q.dtype != call.k.dtype, ROWS=call.rows is not None,
        OUTPUT=output is not None, STATS=fields is not None, PRECISION=precision(call), num_warps=tile.warps,
        num_stages=tile.stages, maxnreg=LEAN if output is None and call.k.dtype is not torch.float32 else None,
    )  # fmt: skip


def merge(parts: Fields, into: Fields, splits: int, scales: int = 1) -> None:
    """Fields of disjoint sets of keys brought together, at each of several scales."""
    total, size = into.first_key.numel() // scales, power_of_2(splits)
    block = max(1, min(32, 512 // size))
    launch(
        attend_kernel.merge, (pieces(total, block), scales),
        parts.values, parts.first_key, into.values, into.first_key, into.broken, splits, total,
        PARTS=size, BLOCK=block, num_warps=4,
    )  # fmt: skip


def shared(tensor: Tensor | None) -> int:
    """How a mask or a bias is read: not at all, once for all rows, or for each."""
    return 0 if tensor is None else 1 if tensor.shape[2] == 1 else 2


def shared_strides(tensor: Tensor | None) -> tuple[int, int, int, int]:
    """Strides of a [B, Hq, T, S] tensor, 0 along every dimension it is the same along."""
    if tensor is None:
        return 0, 0, 0, 0
    b, h, t, s = (0 if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return b, h, t, s
