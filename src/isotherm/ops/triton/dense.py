# mypy: disable-error-code="import-untyped, import-not-found"
"""Launching the fast kernel: plain attention in half precision on a GPU that has the bulk tensor copy (Hopper on)."""

from ctypes import c_float
from functools import cache
from math import e, log2
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from isotherm.ops.triton import attend, dense_kernel, gram_kernel
from isotherm.ops.triton.attend import Call
from isotherm.ops.triton.fields import Fields

ROOM = {torch.bfloat16: 2.0**50, torch.float16: 2.0**12}
"""The largest weight, relative to the reference, that leaves room for sums of squares (and for float16's range)."""
GRAM = 9 << 20
"""Bytes that the sums of the keys may take."""
LEAST_KEYS = 128
"""Keys of a chunk are a multiple of this."""
LONG = 8192
"""Keys from which sums of them pay: at 4096 they cost more than they save (LOG.md)."""
SECTION = 24 << 20
"""Bytes of keys and values worked on together under causality: what stays in the cache."""


class Tuning(NamedTuple):
    """Rows × keys of a tile, blocks of keys in flight, warps. Measured on an H200; see LOG.md."""

    rows: int
    keys: int
    stages: int
    warps: int
    registers: int | None = None


OUTPUT = {32: Tuning(64, 128, 2, 4, 168), 64: Tuning(64, 128, 2, 4, 168), 128: Tuning(128, 64, 3, 8)}
STATISTICS = {32: Tuning(64, 128, 2, 4, 128), 64: Tuning(64, 128, 2, 4, 128), 128: Tuning(128, 128, 2, 8, 128)}
SAMPLED = {32: Tuning(64, 128, 2, 4, 128), 64: Tuning(64, 128, 2, 4, 128), 128: Tuning(64, 128, 2, 4, 168)}


@cache
def _generation(device: torch.device) -> int:
    """9 for Hopper, the first with the bulk copy."""
    return torch.cuda.get_device_capability(device)[0]


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def can(call: Call) -> bool:
    """Whether the fast kernel does this."""
    plain = call.mask is None and call.bias is None and call.window == 0 and call.softcap == 0
    d = call.q.shape[3]
    return (
        plain
        and d in OUTPUT
        and call.v.shape[3] == d
        and call.q.dtype in ROOM
        and call.q.dtype is call.k.dtype
        and min(call.q.shape[2], call.k.shape[2]) >= 16
        and min(call.q.shape[0], call.k.shape[1]) > 0
        and all(_bulk(x) for x in (call.q, call.k, call.v))
        and (not call.q.is_cuda or _generation(call.q.device) >= 9)
    )


def _bulk(x: Tensor) -> bool:
    """What the bulk copy asks of memory: rows without gaps, everything at multiples of 16 bytes."""
    step = 16 // x.element_size()
    return x.stride(3) == 1 and x.data_ptr() % 16 == 0 and all(stride % step == 0 for stride in x.stride()[:3])


def run(call: Call, *, output: tuple[Tensor, Tensor] | None, fields: Fields) -> None:
    """Fill output = (out, lse) and fields; what the fast kernel flags is done again by the general one."""
    (b, h, t), d, s = call.shape, call.q.shape[3], call.k.shape[2]
    tuning = (OUTPUT if output is not None else STATISTICS if call.rows is None else SAMPLED)[d]
    cut = attend.Split(1, s) if output is not None else attend.split(call, tuning.rows, tuning.keys)
    into = fields if cut.parts == 1 else Fields.empty(call.shape, call.q.device, parts=cut.parts)
    flags = torch.empty(cut.parts * b * h * triton.cdiv(t, 64), dtype=torch.int8, device=call.q.device)
    factor, high, low = units(call.scale)
    section = max(1, min(b * h, SECTION // (4 * s * d))) if call.causal else b * h
    pays = s >= LONG and cut.parts == 1 and call.rows is None and (output is not None or d < 128)
    chunk, gram = _gram(call) if pays else (0, None)
    written = into.values, into.first_key, into.broken, flags, call.positions
    numbers = h, call.groups, factor, high, low, b * h * t
    fast = output is not None and d == 128 and call.q.is_cuda and _generation(call.q.device) == 9
    if fast and output is not None:
        from isotherm.ops.triton.hopper_kernel import hopper

        items = triton.cdiv(t, 128) * b * h
        out, lse = output
        hopper[(min(_processors(call.q.device), items),)](
            _swizzled(call.q, 64), _swizzled(call.k, 128), _swizzled(call.v, 128), _swizzled(out, 64),
            call.k, *call.k.stride()[:2], lse, *written, t, s, triton.cdiv(t, 128), b * h, items, section, *numbers,
            chunk, CAUSAL=call.causal, CHUNKS=chunk > 0, LIMIT=ROOM[call.q.dtype], num_warps=4,
        )  # fmt: skip
    else:
        out, lse = (call.q, fields.values) if output is None else output
        blocks = triton.cdiv(t, tuning.rows)
        dense_kernel.dense[(blocks * b * h, cut.parts)](
            tiles(call.q, tuning.rows), tiles(call.k, tuning.keys), tiles(call.v, tuning.keys),
            tiles(out, tuning.rows), call.q, call.positions if call.rows is None else call.rows, *call.q.stride()[:3],
            call.k, *call.k.stride()[:3], lse, *written,
            t, s, blocks, b * h, section, *numbers,
            triton.cdiv(cut.keys, tuning.keys), chunk, D=d, BM=tuning.rows, BN=tuning.keys, STAGES=tuning.stages,
            CAUSAL=call.causal, OUTPUT=output is not None, ROWS=call.rows is not None, CHUNKS=chunk > 0,
            LIMIT=ROOM[call.q.dtype], num_warps=tuning.warps, maxnreg=tuning.registers,
        )  # fmt: skip
    if gram is not None:
        rows, keys = (128, 128) if fast else (tuning.rows, tuning.keys)
        high = c_float(call.scale).value
        gram_kernel.moments[(triton.cdiv(t, rows) * b * h,)](
            call.q, gram, into.values, flags, call.positions, *call.q.stride()[:3], t, s, h, call.groups, chunk,
            gram.shape[1], high, call.scale - high, b * h * t, D=d, BM=rows, BN=keys, CAUSAL=call.causal,
            num_warps=4 if d < 128 else 8,
        )  # fmt: skip
    attend.again(call, cut, flags, output=output, fields=into)
    if into is not fields:
        attend.merge(into, fields, cut.parts)


def _gram(call: Call) -> tuple[int, Tensor]:
    """A chunk's length, a multiple of every tile's and large enough that the sums stay small; the sums up to each chunk."""
    (b, hkv, s, d), k = call.k.shape, call.k
    chunks = max(1, min(s // LEAST_KEYS, GRAM // (4 * b * hkv * (d + 1) * d)))
    chunk = s // chunks // LEAST_KEYS * LEAST_KEYS
    sums = torch.empty(b * hkv, s // chunk, d + 1, d, device=k.device)
    gram_kernel.gram[(s // chunk, b * hkv)](
        k, sums, *k.stride()[:3], hkv, chunk, s // chunk, D=d, BN=min(64, LEAST_KEYS), num_warps=4
    )
    return chunk, sums.cumsum_(1)


def units(scale: float) -> tuple[float, float, float]:
    """What turns q·k into log₂ units, in float32, and what turns those into nats exactly, in two float32 parts."""
    factor = c_float(scale * log2(e)).value
    high = c_float(scale / factor).value
    return factor, high, scale / factor - high


def tiles(x: Tensor, rows: int) -> TensorDescriptor:
    """A [B, H, T, D] tensor to be read `rows` rows of a head at a time."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, x.shape[3]])


def _swizzled(x: Tensor, rows: int) -> Any:
    """The same for Gluon, which is told how a tile lies in shared memory."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as Swizzled

    return Swizzled(x, list(x.shape), list(x.stride()), [1, 1, rows, x.shape[3]], _layout(rows, x.shape[3], x.dtype))


@cache
def _layout(rows: int, width: int, dtype: torch.dtype) -> Any:
    from triton.experimental.gluon import language as gl

    element = gl.bfloat16 if dtype is torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([1, 1, rows, width], element)
