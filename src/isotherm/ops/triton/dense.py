# mypy: disable-error-code="import-untyped, import-not-found"
"""Launching the fast kernel: plain attention in half precision on a GPU that has the bulk tensor copy (Hopper on)."""

from ctypes import c_float
from functools import cache
from math import e, log2
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from isotherm.ops.triton import attend, careful_kernel, dense_kernel, finish_kernel, gram_kernel
from isotherm.ops.triton.attend import Call, pieces
from isotherm.ops.triton.fields import Fields
from isotherm.ops.triton.launch import launch, remembered

ROOM = {torch.bfloat16: 2.0**50, torch.float16: 2.0**12}
"""The largest weight, relative to the reference, that leaves room for sums of squares (and for float16's range)."""
GRAM = 25 << 19
"""Bytes that the sums of the keys may take under causality."""
SUMMED = (torch.bfloat16,)
"""Precisions whose range holds sums over all keys."""
LEAST_KEYS, AT_A_TIME = 256, 128
"""Keys of a chunk are a multiple of the first; the matrix units add up the second at a time."""
LONG, LONGER, LONGEST = 4096, 8192, 32768
"""Keys from which sums of them pay; the second under causality without output; the third there at d = 128, where they save
no time, but digits: the more logits are added up one by one, the more rows are to be done again."""
LEAST_CHUNKS = 8
"""Chunks from which they pay under causality: with fewer, too many keys lie beyond a row's last whole chunk."""
GRAM_PROGRAMS = 64
"""Programs among which the keys are shared out when they are summed: few enough to leave room for the next kernel."""
EDGE = 64
"""Keys that causality hides from some rows are looked at so many at a time: the more, the more in vain. Without output."""
SECTION = 36 << 20
"""Bytes of keys and values worked on together under causality: what stays in the cache."""
LEAST_SCALE = 1e-30
"""Scales below this, or above its inverse, come near 0 or infinity in float32: they are left to the general kernel."""
MOST_PROGRAMS = 32768
"""Along the second dimension of a grid; CUDA takes twice as many."""


class Tuning(NamedTuple):
    """Rows × keys of a tile, blocks of keys in flight, warps, registers, keys looked at together. Measured; see LOG.md."""

    rows: int
    keys: int
    stages: int
    warps: int
    registers: int | None = None
    piece: int | None = None


OUTPUT = {
    False: {32: Tuning(64, 128, 2, 4, 168), 64: Tuning(64, 128, 2, 4, 168, 64), 128: Tuning(64, 64, 3, 4, 168)},
    True: {32: Tuning(64, 64, 2, 4, 128), 64: Tuning(64, 64, 2, 4, 128, 16), 128: Tuning(64, 64, 3, 4, 168)},
}
STATISTICS = {
    False: {
        32: Tuning(64, 128, 2, 4, 128, 32),
        64: Tuning(64, 128, 2, 4, 128, 32),
        128: Tuning(128, 128, 2, 8, 128, 32),
    },
    True: {32: Tuning(64, 128, 2, 4, 128), 64: Tuning(64, 128, 2, 4, 128), 128: Tuning(64, 64, 2, 4, 112, 16)},
}
SAMPLED = {32: Tuning(64, 64, 3, 4, 128), 64: Tuning(64, 64, 3, 4, 128), 128: Tuning(64, 128, 2, 4, 168)}
"""Tiles by head dimension, and by causality."""
CAREFUL = {False: Tuning(64, 64, 2, 4, 128), True: Tuning(64, 64, 2, 4, 168)}
"""For the rows to be done again; by whether there is an output."""
SPAN, TURNS = 512, 4
"""Rows that are looked through for some to be done again, and programs that take turns in doing them."""


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
        and LEAST_SCALE <= abs(call.scale) <= 1 / LEAST_SCALE
        and d in SAMPLED
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


def fill(call: Call, *, output: tuple[Tensor, Tensor] | None, fields: Fields | None) -> None:
    """Fill output = (out, lse) and fields, by the fast kernel or the general one, as the last time with such tensors."""

    def anew() -> None:
        if can(call):
            run(call, output=output, fields=fields or Fields.empty(call.shape, call.q.device))
        else:
            attend.run(call, output=output, fields=fields)

    results = (*(output or ()), *(() if fields is None else fields.tensors))
    remembered(("one scale", output is None, fields is None, *call.numbers), call.tensors, results, anew)


def run(call: Call, *, output: tuple[Tensor, Tensor] | None, fields: Fields) -> None:
    """Fill output = (out, lse) and fields; rows the fast kernel cannot be trusted with are done again."""
    (b, h, t), d, s = call.shape, call.q.shape[3], call.k.shape[2]
    whole = (OUTPUT if output is not None else STATISTICS)[call.causal]
    tuning = (whole if call.rows is None else SAMPLED)[d]
    cut = attend.Split(1, s) if output is not None else attend.split(call, tuning.rows, tuning.keys, attend.PROGRAMS)
    into = fields if cut.parts == 1 else Fields.empty(call.shape, call.q.device, parts=cut.parts)
    marks = torch.empty(cut.parts * b * h * t, dtype=torch.int8, device=call.q.device)
    factor, high, low = units(call.scale)
    raw, early = into.values.view(torch.float32), overlaps(call)
    sums = sums_of_keys(call, raw) if cut.parts == 1 and pays(call, output=output is not None) else Sums(call.k, call.k)
    if output is not None and d == 128 and persistent(call):
        _stay(call, output[0], raw, sums, factor)
    else:
        _come_and_go(call, None if output is None else output[0], raw, sums, factor, tuning, cut)
    launch(
        finish_kernel.finish, (pieces(t, 256) * b * h, cut.parts),
        raw, into.values, into.first_key, into.broken, marks, raw if output is None else output[1],
        t, factor, high, low, b * h * t, cut.keys,
        BM=256, OUTPUT=output is not None, CHUNKS=sums.chunk > 0, LIMIT=ROOM[call.q.dtype], EARLY=early, num_warps=4,
        launch_pdl=early,
    )  # fmt: skip
    again(call, cut, marks, output=output, fields=into)
    if into is not fields:
        attend.merge(into, fields, cut.parts)


def _stay(call: Call, out: Tensor, raw: Tensor, sums: "Sums", factor: float) -> None:
    """The pass over the keys by programs that stay."""
    from isotherm.ops.triton.hopper_kernel import hopper

    (b, h, t), s, (parts, centre, chunk, kept) = call.shape, call.k.shape[2], sums
    blocks = pieces(t, 128)
    launch(
        hopper, (min(_processors(call.q.device), blocks * b * h),),
        _swizzled(call.q, 64), _swizzled(call.k, 128), _swizzled(call.v, 128), _swizzled(parts, 128),
        _swizzled(out, 64), call.k, *call.k.stride()[:2], raw, call.positions, centre,
        t, s, blocks, b * h, h, call.groups, factor, b * h * t, chunk, kept,
        CAUSAL=call.causal, CHUNKS=chunk > 0, num_warps=4, launch_pdl=chunk > 0,
    )  # fmt: skip


def _come_and_go(
    call: Call, out: Tensor | None, raw: Tensor, sums: "Sums", factor: float, tuning: Tuning, cut: attend.Split
) -> None:
    """The pass over the keys by one program a block of rows (and part of the keys)."""
    (b, h, t), s, (parts, centre, chunk, kept) = call.shape, call.k.shape[2], sums
    blocks, early = pieces(t, tuning.rows), overlaps(call)
    q, k = tiles(call.q, tuning.rows), tiles(call.k, tuning.keys)
    edge = min(tuning.keys, EDGE) if call.causal and call.rows is None and out is None else tuning.keys
    v, o = (k, q) if out is None else (tiles(call.v, tuning.keys), tiles(out, tuning.rows))
    launch(
        dense_kernel.dense, grid(call, blocks * cut.parts),
        q, k, tiles(call.k, edge), v, o, call.q, call.positions if call.rows is None else call.rows, *call.q.stride()[:3],
        raw, call.positions, parts, centre, t, s, blocks, b * h, h, call.groups, factor, b * h * t,
        pieces(cut.keys, tuning.keys), chunk, kept, D=call.q.shape[3], BM=tuning.rows, BN=tuning.keys,
        EDGE=edge, PIECE=tuning.piece or tuning.keys, STAGES=tuning.stages, CAUSAL=call.causal, OUTPUT=out is not None,
        ROWS=call.rows is not None, SPLIT=cut.parts > 1, CHUNKS=chunk > 0, EARLY=early,
        num_warps=tuning.warps, maxnreg=tuning.registers, launch_pdl=early and chunk > 0,
    )  # fmt: skip


def again(
    call: Call, cut: attend.Split, marks: Tensor, *, output: tuple[Tensor, Tensor] | None, fields: Fields
) -> None:
    """The marked rows (of each part), whatever was written for them before."""
    (b, h, t), early, tile = call.shape, overlaps(call), CAREFUL[output is not None]
    factor, high, low = units(call.scale)
    out, lse = (call.q, call.q) if output is None else output
    launch(
        careful_kernel.careful, (pieces(t, SPAN) * b * h, TURNS, cut.parts),
        call.q, tiles(call.k, tile.keys), tiles(call.k if output is None else call.v, tile.keys),
        call.positions if call.rows is None else call.rows, call.positions, marks,
        fields.values, fields.first_key, fields.broken, out, lse, *call.q.stride()[:3],
        t, call.k.shape[2], h, call.groups, factor, high, low, b * h * t, cut.keys,
        D=call.q.shape[3], BM=tile.rows, BN=tile.keys, SPAN=SPAN, CAUSAL=call.causal, OUTPUT=output is not None,
        ROWS=call.rows is not None, EARLY=early, num_warps=tile.warps, num_stages=tile.stages,
        maxnreg=tile.registers, launch_pdl=early,
    )  # fmt: skip


def persistent(call: Call) -> bool:
    """Whether programs that stay (`hopper_kernel`) pay: on Hopper, with a block of rows for every multiprocessor."""
    b, h, t = call.shape
    if not call.q.is_cuda or _generation(call.q.device) != 9:
        return False
    return pieces(t, 128) * b * h >= _processors(call.q.device)


def pays(call: Call, *, output: bool) -> bool:
    """Whether sums of the keys are worth their making."""
    if output or not call.causal:
        return call.k.shape[2] >= LONG
    return call.k.shape[2] >= (LONGER if call.q.shape[3] < 128 else LONGEST)


def grid(call: Call, blocks: int) -> tuple[int, int, int]:
    """Programs of the fast kernel. The blocks of a head follow each other, so that its keys stay in the cache.

    Under causality the longest rows come first: of as many heads as fit the cache.
    """
    heads = call.q.shape[0] * call.q.shape[1]
    if call.causal:
        section = max(1, min(heads, SECTION // (4 * call.k.shape[2] * call.q.shape[3])))
        return section, blocks, pieces(heads, section)
    across = min(heads, MOST_PROGRAMS)
    return blocks, across, pieces(heads, across)


class Sums(NamedTuple):
    """What `gram_kernel` makes of the keys, up to every `chunk` of them (`kept` times) or of all (once).

    A chunk of 0 means none, and the tensors are there to fill places.
    """

    parts: Tensor
    centre: Tensor
    chunk: int = 0
    kept: int = 0


def overlaps(call: Call) -> bool:
    """Whether a kernel may begin while the one before it still runs."""
    return call.k.is_cuda


def sums_of_keys(call: Call, scratch: Tensor) -> Sums:
    """Sums over the keys where they pay. `scratch` is memory that is written to later: the sums of each chunk lie there."""
    (b, hkv, s, d), k, early = call.k.shape, call.k, overlaps(call)
    if 2 * call.q.shape[2] < s or call.rows is not None or k.dtype not in SUMMED:
        return Sums(call.k, call.k)
    wanted = GRAM // (b * hkv * (4 * d + 8) * d) if call.causal else pieces(GRAM_PROGRAMS, b * hkv)
    chunks = min(wanted, s // LEAST_KEYS, scratch.numel() // (b * hkv * d * d))
    if chunks < (LEAST_CHUNKS if call.causal else 1):
        return Sums(call.k, call.k)
    chunk = chunk_of(s, chunks)
    chunks = s // chunk
    kept = chunks if call.causal else 1
    shared, rows = chunks > 1, min(LEAST_KEYS, AT_A_TIME)
    done = torch.zeros(b * hkv, dtype=torch.int32, device=k.device) if shared else k
    first = torch.empty(b * hkv, chunks, d, device=k.device) if shared else k
    parts = torch.empty(b * hkv, kept, 2 * d, d, dtype=k.dtype, device=k.device)
    centre = torch.empty(b * hkv, kept, 2, d, device=k.device)
    launch(
        gram_kernel.gram, (b * hkv, chunks),
        tiles(k, rows), scratch, first, done, parts, centre, hkv, chunk, chunks,
        D=d, BN=rows, STAGES=2, SHARED=shared, EVERY=call.causal, EARLY=early, num_warps=4 if d < 128 else 8,
    )  # fmt: skip
    return Sums(parts, centre, chunk, kept)


def chunk_of(keys: int, most: int) -> int:
    """Keys of a chunk, so that there is a power of two of them, about, and at most `most`."""
    wanted = 2 ** int(log2(most))
    chunk = max(1, keys // wanted // LEAST_KEYS) * LEAST_KEYS
    while keys // chunk > wanted:  # it was rounded down
        chunk += LEAST_KEYS
    return chunk


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
