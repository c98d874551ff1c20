# mypy: disable-error-code="import-untyped, import-not-found"
"""Launching the fast path: plain attention in half precision, on a GPU with the bulk tensor copy (Hopper and later)."""

from ctypes import c_float
from functools import cache
from math import e, log2
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from isotherm.ops.triton import (
    fast_finish_kernel,
    fast_kernel,
    fast_key_sums_kernel,
    fast_recompute_kernel,
    general,
    key_splits,
)
from isotherm.ops.triton.attention_call import AttentionCall, ceil_div, power_of_2
from isotherm.ops.triton.fields import Fields
from isotherm.ops.triton.launch import is_familiar, launch, remembered

LARGEST_WEIGHT = {torch.bfloat16: 2.0**50, torch.float16: 2.0**12}
"""The largest weight relative to the reference for which sums of squares stay in range (in float16 also weights)."""
KEY_SUM_BYTES = 25 << 19
"""Memory that the key sums may take under causality."""
KEY_SUM_DTYPES = (torch.bfloat16,)
"""Types whose range holds sums over all keys."""
LEAST_KEYS, KEYS_AT_ONCE = 256, 128
"""The keys of a chunk are a multiple of the first; the matrix units add up the second number of keys at a time."""
LONG, LONG_CAUSAL, LONG_CAUSAL_D128 = 4096, 8192, 32768
"""Numbers of keys from which key sums pay. The second holds for causal statistics without output, the third for those at
d = 128: there the sums save no time, but fewer rows have to be recomputed for want of digits."""
LEAST_CHUNKS = 8
"""Chunks from which key sums pay under causality. With fewer, too many keys lie beyond a row's last whole chunk."""
KEY_SUM_PROGRAMS = 64
"""Programs that share the keys when they are summed: few enough to leave room for the next kernel."""
EDGE = 64
"""Keys of an edge tile for causal statistics without output: smaller tiles hold fewer hidden keys."""
SECTION = 36 << 20
"""Bytes of keys and values that are worked on together under causality: they stay in the cache."""
LEAST_SCALE = 1e-30
"""Smaller scales, and larger ones than its inverse, come near 0 or infinity in float32: the general kernel takes them."""
MOST_PROGRAMS = 32768
"""Programs along the second dimension of a grid; CUDA allows twice as many."""


class Tuning(NamedTuple):
    """Rows × keys of a tile, blocks of keys in flight, warps, registers, columns added together.

    The values are measured (docs/notes/gpu-kernels.md).
    """

    rows: int
    keys: int
    stages: int
    warps: int
    registers: int | None = None
    piece: int | None = None


OUTPUT = {
    False: {
        32: Tuning(64, 128, 2, 4, 168),
        64: Tuning(64, 128, 2, 4, 168, 64),
        128: Tuning(64, 64, 3, 4, 168),
        256: Tuning(64, 128, 1, 4),
    },
    True: {
        32: Tuning(64, 64, 2, 4, 128),
        64: Tuning(64, 64, 2, 4, 128, 16),
        128: Tuning(64, 64, 3, 4, 168),
        256: Tuning(64, 64, 3, 4),
    },
}
"""By causality, then by head dimension: with output; below, statistics alone."""
STATISTICS = {
    False: {
        32: Tuning(64, 128, 2, 4, 128, 32),
        64: Tuning(64, 128, 2, 4, 128, 32),
        128: Tuning(128, 128, 2, 8, 128, 32),
        256: Tuning(128, 64, 2, 8),
    },
    True: {
        32: Tuning(64, 128, 2, 4, 128),
        64: Tuning(64, 128, 2, 4, 128),
        128: Tuning(64, 64, 2, 4, 112, 16),
        256: Tuning(128, 64, 2, 8),
    },
}
SAMPLED = {
    32: Tuning(64, 64, 3, 4, 128),
    64: Tuning(64, 64, 3, 4, 128),
    128: Tuning(64, 128, 2, 4, 168),
    256: Tuning(64, 64, 2, 4),
}
"""For sampled rows, by head dimension."""
RECOMPUTE, RECOMPUTE_WIDE = {False: Tuning(64, 64, 2, 4, 128), True: Tuning(64, 64, 2, 4, 168)}, Tuning(64, 32, 2, 8)
"""For marked rows, by whether there is an output; the second if a head dimension is above 128."""
SPAN, TURNS = 512, 4
"""Rows that one program searches for marked ones, and programs that take turns in computing those."""


@cache
def _generation(device: torch.device) -> int:
    """Return the major compute capability: 9 for Hopper, the first with the bulk copy."""
    return torch.cuda.get_device_capability(device)[0]


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def can(call: AttentionCall) -> bool:
    """Return whether the fast path takes this call."""
    d = call.q.shape[3]
    return (
        call.plain
        and LEAST_SCALE <= abs(call.scale) <= 1 / LEAST_SCALE
        and max(width(d), width(call.v.shape[3])) in SAMPLED
        and call.q.dtype in LARGEST_WEIGHT
        and call.q.dtype is call.k.dtype
        and min(call.q.shape[2], call.k.shape[2]) >= 16
        and min(call.q.shape[0], call.k.shape[1]) > 0
        and all(_bulk_copyable(x) for x in (call.q, call.k, call.v))
        and (not call.q.is_cuda or _generation(call.q.device) >= 9)
    )


def _bulk_copyable(x: Tensor) -> bool:
    """Return whether rows have no gaps and everything lies at multiples of 16 bytes, as the bulk copy requires."""
    step = 16 // x.element_size()
    return x.stride(3) == 1 and x.data_ptr() % 16 == 0 and all(stride % step == 0 for stride in x.stride()[:3])


def width(dims: int) -> int:
    """Return the head dimension of a tile: a power of two. The bulk copy fills it up with zeros."""
    return max(32, power_of_2(dims))


def run_fast_or_general(call: AttentionCall, *, output: tuple[Tensor, Tensor] | None, fields: Fields | None) -> None:
    """Fill output = (out, lse) and fields, by the fast path if it takes the call. Launches are replayed (`launch`)."""

    def body() -> None:
        if can(call):
            run(call, output=output, fields=fields or Fields.empty(call.shape, call.q.device))
        else:
            general.run(call, output=output, fields=fields)

    results = (*(output or ()), *(() if fields is None else fields.tensors))
    remembered(("one scale", output is None, fields is None, *call.numbers), call.tensors, results, body)


def run(call: AttentionCall, *, output: tuple[Tensor, Tensor] | None, fields: Fields) -> None:
    """Fill output = (out, lse) and fields: key sums, fast pass, finish, recompute, merge."""
    (b, h, t), s = call.shape, call.k.shape[2]
    d = width(call.q.shape[3]) if output is None else max(width(call.q.shape[3]), width(call.v.shape[3]))
    every_row = (OUTPUT if output is not None else STATISTICS)[call.causal]
    tuning = (every_row if call.rows is None else SAMPLED)[d]
    if output is not None:
        cut = key_splits.Split(1, s)
    else:
        cut = key_splits.split(call, tuning.rows, tuning.keys, key_splits.PROGRAMS)
    into = fields if cut.parts == 1 else Fields.empty(call.shape, call.q.device, parts=cut.parts)
    marks = torch.empty(cut.parts * b * h * t, dtype=torch.int8, device=call.q.device)
    exp2_scale, ln2_high, ln2_low = log2_units(call.scale)
    raw, overlap = into.values.view(torch.float32), overlaps(call)
    wants_sums = cut.parts == 1 and key_sums_pay(call, output=output is not None)
    sums = sum_keys(call, raw) if wants_sums else no_key_sums(call)
    if output is not None and width(call.q.shape[3]) == width(call.v.shape[3]) == 128 and uses_persistent_kernel(call):
        _launch_hopper(call, output[0], raw, sums, exp2_scale)
    else:
        _launch_fast_pass(call, None if output is None else output[0], raw, sums, exp2_scale, tuning, cut)
    launch(
        fast_finish_kernel.finish, (ceil_div(t, 256) * b * h, cut.parts),
        raw, into.values, into.first_key, into.broken, marks, raw if output is None else output[1],
        t, exp2_scale, ln2_high, ln2_low, b * h * t, cut.keys,
        BM=256, OUTPUT=output is not None, KEY_SUMS=sums.chunk > 0, LIMIT=LARGEST_WEIGHT[call.q.dtype], OVERLAP=overlap,
        num_warps=4, launch_pdl=overlap,
    )  # fmt: skip
    recompute_marked(call, cut, marks, output=output, fields=into)
    if into is not fields:
        key_splits.merge(into, fields, cut.parts)


def _launch_hopper(call: AttentionCall, out: Tensor, raw: Tensor, sums: "KeySums", exp2_scale: float) -> None:
    """Launch the fast pass with persistent programs."""
    from isotherm.ops.triton.fast_hopper_kernel import hopper

    (b, h, t), s = call.shape, call.k.shape[2]
    blocks = ceil_div(t, 128)
    launch(
        hopper, (min(_processors(call.q.device), blocks * b * h),),
        _gluon_tiles(call.q, 64), _gluon_tiles(call.k, 128), _gluon_tiles(call.v, 128), _gluon_tiles(sums.scatter, 128),
        _gluon_tiles(out, 64), call.k, *call.k.stride()[:2], raw, call.positions, sums.means,
        t, s, blocks, b * h, h, call.groups, exp2_scale, b * h * t, sums.chunk, sums.stored,
        CAUSAL=call.causal, KEY_SUMS=sums.chunk > 0, WIDTH=call.k.shape[3], num_warps=4, launch_pdl=sums.chunk > 0,
    )  # fmt: skip


def _launch_fast_pass(
    call: AttentionCall,
    out: Tensor | None,
    raw: Tensor,
    sums: "KeySums",
    exp2_scale: float,
    tuning: Tuning,
    cut: key_splits.Split,
) -> None:
    """Launch the fast pass with one program for each block of rows and split of the keys."""
    (b, h, t), s = call.shape, call.k.shape[2]
    blocks, overlap = ceil_div(t, tuning.rows), overlaps(call)
    q, k = tiles(call.q, tuning.rows), tiles(call.k, tuning.keys)
    edge = min(tuning.keys, EDGE) if call.causal and call.rows is None and out is None else tuning.keys
    v, o = (k, q) if out is None else (tiles(call.v, tuning.keys), tiles(out, tuning.rows))
    launch(
        fast_kernel.fast_pass, grid(call, blocks * cut.parts),
        q, k, tiles(call.k, edge), v, o, call.q, call.positions if call.rows is None else call.rows, *call.q.stride()[:3],
        raw, call.positions, sums.scatter, sums.means, t, s, blocks, b * h, h, call.groups, exp2_scale, b * h * t,
        ceil_div(cut.keys, tuning.keys), sums.chunk, sums.stored, WIDTH=call.q.shape[3], D=width(call.q.shape[3]),
        DV=32 if out is None else width(out.shape[3]), BM=tuning.rows, BN=tuning.keys, EDGE=edge,
        PIECE=tuning.piece or tuning.keys, STAGES=tuning.stages, CAUSAL=call.causal, OUTPUT=out is not None,
        SAMPLED=call.rows is not None, SPLIT=cut.parts > 1, KEY_SUMS=sums.chunk > 0, OVERLAP=overlap,
        num_warps=tuning.warps, maxnreg=tuning.registers, launch_pdl=overlap and sums.chunk > 0,
    )  # fmt: skip


def recompute_marked(
    call: AttentionCall,
    cut: key_splits.Split,
    marks: Tensor,
    *,
    output: tuple[Tensor, Tensor] | None,
    fields: Fields,
) -> None:
    """Compute the marked rows of each split again, over what is stored for them."""
    (b, h, t), overlap = call.shape, overlaps(call)
    out, lse = (call.q, call.q) if output is None else output
    wide = max(call.q.shape[3], out.shape[3]) > 128
    tile = RECOMPUTE_WIDE if wide else RECOMPUTE[output is not None]
    launch(
        fast_recompute_kernel.recompute, (ceil_div(t, SPAN) * b * h, TURNS, cut.parts),
        call.q, tiles(call.k, tile.keys), tiles(call.k if output is None else call.v, tile.keys),
        call.positions if call.rows is None else call.rows, call.positions, marks,
        *fields.tensors, out, lse, *call.q.stride()[:3], *out.stride()[:3],
        t, call.k.shape[2], h, call.groups, *log2_units(call.scale), b * h * t, cut.keys,
        WIDTH=call.q.shape[3], WIDTH_V=out.shape[3], D=width(call.q.shape[3]), DV=width(out.shape[3]), BM=tile.rows,
        BN=tile.keys, SPAN=SPAN, CAUSAL=call.causal, OUTPUT=output is not None,
        SAMPLED=call.rows is not None, OVERLAP=overlap, num_warps=tile.warps, num_stages=tile.stages,
        maxnreg=tile.registers, launch_pdl=overlap,
    )  # fmt: skip


def uses_persistent_kernel(call: AttentionCall) -> bool:
    """Return whether `fast_hopper_kernel` pays: on Hopper, with a block of rows for every multiprocessor. Its Gluon is for
    familiar versions of Triton only; `fast_pass` does the same with others."""
    b, h, t = call.shape
    if not call.q.is_cuda or _generation(call.q.device) != 9 or not is_familiar():
        return False
    return ceil_div(t, 128) * b * h >= _processors(call.q.device)


def grid(call: AttentionCall, blocks: int) -> tuple[int, int, int]:
    """Return the grid of the fast pass. The blocks of a head follow each other, so that its keys stay in the cache.

    Under causality the longest rows come first, in sections of as many heads as fit the cache.
    """
    heads = call.q.shape[0] * call.q.shape[1]
    if call.causal:
        section = max(1, min(heads, SECTION // (4 * call.k.shape[2] * call.q.shape[3])))
        return section, blocks, ceil_div(heads, section)
    across = min(heads, MOST_PROGRAMS)
    return blocks, across, ceil_div(heads, across)


def overlaps(call: AttentionCall) -> bool:
    """Return whether a kernel may start while the one before it still runs (programmatic dependent launch)."""
    return call.k.is_cuda


class KeySums(NamedTuple):
    """What `fast_key_sums_kernel` stores: sums up to each chunk of `chunk` keys (`stored` of them), or over all (one).

    If `chunk` is 0 there are no sums, and the tensors only fill places in an argument list.
    """

    scatter: Tensor
    means: Tensor
    chunk: int = 0
    stored: int = 0


def no_key_sums(call: AttentionCall) -> KeySums:
    """Return what the kernels are given where key sums do not pay."""
    return KeySums(call.k, call.k)


def key_sums_pay(call: AttentionCall, *, output: bool) -> bool:
    """Return whether a call has enough keys for key sums to pay."""
    if output or not call.causal:
        return call.k.shape[2] >= LONG
    return call.k.shape[2] >= (LONG_CAUSAL if call.q.shape[3] < 128 else LONG_CAUSAL_D128)


def sum_keys(call: AttentionCall, scratch: Tensor) -> KeySums:
    """Sum the keys, if the call allows it. The sums of each chunk lie in `scratch`, which is overwritten later."""
    (b, hkv, s, d), k = call.k.shape, call.k
    d = width(d)
    if 2 * call.q.shape[2] < s or call.rows is not None or k.dtype not in KEY_SUM_DTYPES or d > 128:
        return no_key_sums(call)
    most = KEY_SUM_BYTES // (b * hkv * (4 * d + 8) * d) if call.causal else ceil_div(KEY_SUM_PROGRAMS, b * hkv)
    chunks = min(most, s // LEAST_KEYS, scratch.numel() // (b * hkv * d * d))
    if chunks < (LEAST_CHUNKS if call.causal else 1):
        return no_key_sums(call)
    chunk = chunk_size(s, chunks)
    chunks = s // chunk
    stored = chunks if call.causal else 1
    several, rows = chunks > 1, min(LEAST_KEYS, KEYS_AT_ONCE)
    finished = torch.zeros(b * hkv, dtype=torch.int32, device=k.device) if several else k
    chunk_k = torch.empty(b * hkv, chunks, d, dtype=torch.float32, device=k.device) if several else k
    scatter = torch.empty(b * hkv, stored, 2 * d, d, dtype=k.dtype, device=k.device)
    means = torch.empty(b * hkv, stored, 2, d, dtype=torch.float32, device=k.device)
    launch(
        fast_key_sums_kernel.sum_keys, (b * hkv, chunks),
        tiles(k, rows), scratch, chunk_k, finished, scatter, means, hkv, chunk, chunks,
        D=d, BN=rows, STAGES=2, SEVERAL=several, PREFIXES=call.causal, OVERLAP=overlaps(call),
        num_warps=4 if d < 128 else 8,
    )  # fmt: skip
    return KeySums(scatter, means, chunk, stored)


def chunk_size(keys: int, most: int) -> int:
    """Return the keys of a chunk, so that there are at most `most` chunks, and about a power of two."""
    wanted = 2 ** int(log2(most))
    chunk = max(1, keys // wanted // LEAST_KEYS) * LEAST_KEYS
    while keys // chunk > wanted:  # the line above rounds down
        chunk += LEAST_KEYS
    return chunk


def log2_units(scale: float) -> tuple[float, float, float]:
    """Return the factor from q·k to log₂ units in float32, and the factor from those to nats, in two float32 parts.

    The second is ln 2, corrected for the rounding of the first.
    """
    exp2_scale = c_float(scale * log2(e)).value
    high = c_float(scale / exp2_scale).value
    return exp2_scale, high, scale / exp2_scale - high


def tiles(x: Tensor, rows: int) -> TensorDescriptor:
    """Describe a [B, H, T, D] tensor that is copied `rows` rows of a head at a time."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, width(x.shape[3])])


def _gluon_tiles(x: Tensor, rows: int) -> Any:
    """Do the same for Gluon, which also needs the layout of a tile in shared memory."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    layout = _shared_layout(rows, width(x.shape[3]), x.dtype)
    return GluonDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, width(x.shape[3])], layout)


@cache
def _shared_layout(rows: int, dims: int, dtype: torch.dtype) -> Any:
    from triton.experimental.gluon import language as gl

    element = gl.bfloat16 if dtype is torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([1, 1, rows, dims], element)
