# mypy: disable-error-code="import-untyped, import-not-found"
"""Launching the general kernel, which computes every problem that the reference takes."""

from typing import NamedTuple

import torch
from torch import Tensor

from isotherm.ops.triton import general_kernel, key_splits
from isotherm.ops.triton.attention_call import (
    AttentionCall,
    broadcast_mode,
    broadcast_strides,
    ceil_div,
    document_strides,
    padded_dim,
    precision,
)
from isotherm.ops.triton.fields import Fields
from isotherm.ops.triton.launch import launch

REGISTERS = 168
"""A thread's limit for statistics alone in half precision: three programs then fit a multiprocessor."""


class TileSize(NamedTuple):
    """Rows × keys of a tile, the warps that work on it, and blocks of keys in flight."""

    rows: int
    keys: int
    warps: int
    stages: int


def tile_size(call: AttentionCall, *, backward: bool = False) -> TileSize:
    """Return the tile that fits this head dimension and precision."""
    wide = max(padded_dim(call.q.shape[3]), padded_dim(call.v.shape[3]))
    if call.k.dtype is torch.float32 and backward and wide == 256:
        return TileSize(16, 16, 4, 1)  # twice as many do not fit the shared memory of GPUs made for desktops
    if call.k.dtype is torch.float32:
        return TileSize(32, 32, 4, 1) if wide > 64 or backward else TileSize(64, 32, 8, 2)
    if wide == 256:
        return TileSize(32, 32, 4, 1) if backward else TileSize(64, 32, 4, 2)
    if call.documents is not None and wide == 128 and not backward:
        return TileSize(64, 32, 4, 3)  # documents are short, so that many tiles are seen in part
    return TileSize(64, 64, 4, 2 if backward else 3)


def run(call: AttentionCall, *, output: tuple[Tensor, Tensor] | None, fields: Fields | None) -> None:
    """Fill output = (out [B, Hq, R, Dv], lse [B, Hq, R]) and fields, whichever are given."""
    tile = tile_size(call)
    if output is None:
        cut = key_splits.split(call, tile.rows, tile.keys, key_splits.PROGRAMS)
    else:
        cut = key_splits.Split(1, max(1, call.k.shape[2]))
    into = fields if fields is None or cut.parts == 1 else Fields.empty(call.shape, call.q.device, parts=cut.parts)
    _launch(call, tile, cut, output=output, fields=into)
    if fields is not None and into is not None and into is not fields:
        key_splits.merge(into, fields, cut.parts)


def _launch(
    call: AttentionCall,
    tile: TileSize,
    cut: key_splits.Split,
    *,
    output: tuple[Tensor, Tensor] | None,
    fields: Fields | None,
) -> None:
    b, h, rows = call.shape
    if not b * h * rows:
        return
    programs = ceil_div(rows, tile.rows) * b * h
    unused = call.q  # stands for every tensor that the kernel does not read
    values, first_key, broken = (unused, unused, unused) if fields is None else fields.tensors
    out, lse = (unused, unused) if output is None else output
    bias, mask = call.bias, None if call.mask is None else call.mask.view(torch.uint8)
    launch(
        general_kernel.attend, (programs, cut.parts),
        call.q, call.k, call.v, unused if bias is None else bias, unused if mask is None else mask,
        call.positions, call.positions if call.documents is None else call.documents,
        call.positions if call.rows is None else call.rows,
        out, lse, values, first_key, broken,
        *call.q.stride(), *call.k.stride(), *call.v.stride(), *broadcast_strides(bias), *broadcast_strides(mask),
        *document_strides(call.documents), *out.stride()[:3],
        rows, call.k.shape[2], call.q.shape[3], call.v.shape[3], h, call.groups, call.behind, call.ahead,
        float(call.scale), float(call.softcap), cut.keys, b * h * rows,
        BM=tile.rows, BN=tile.keys, PADDED_D=padded_dim(call.q.shape[3]), PADDED_DV=padded_dim(call.v.shape[3]),
        GEOMETRY=call.geometry, MASK=broadcast_mode(mask), BIAS=broadcast_mode(bias),
        SOFTCAP=call.softcap > 0, SPLIT_Q=call.q.dtype != call.k.dtype, SAMPLED=call.rows is not None,
        OUTPUT=output is not None, STATS=fields is not None, PRECISION=precision(call), num_warps=tile.warps,
        num_stages=tile.stages, maxnreg=REGISTERS if output is None and call.k.dtype is not torch.float32 else None,
    )  # fmt: skip
