# mypy: disable-error-code="import-untyped, import-not-found"
"""Launching the kernel that looks at several scales at once."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from isotherm.ops.triton import attend, dense, octave_kernel, scales_kernel
from isotherm.ops.triton.attend import Call, pieces, power_of_2, precision, shared_strides, width
from isotherm.ops.triton.fields import Fields

OCTAVE = {32: dense.Tuning(64, 128, 2, 4, 168), 64: dense.Tuning(64, 128, 2, 4, 168), 128: dense.Tuning(64, 64, 2, 4)}
AT_ONCE = 8
"""Scales in one pass at most: beyond that the sums of a row no longer fit the registers."""


def octaves(scales: Sequence[float]) -> int:
    """The step after which each scale doubles exactly, or their number when none does."""
    count = len(scales)
    for step in range(1, count):
        if all(above == 2 * below for below, above in zip(scales, scales[step:], strict=False)):
            return step
    return count


def run(call: Call, scales: Sequence[float]) -> list[Fields]:
    """Fields at each scale, in the order given. A pass for each where a bias or a cap does not scale with q·k, or at 0."""
    shape, device = call.shape, call.q.device
    usual = all(dense.LEAST_SCALE <= scale <= 1 / dense.LEAST_SCALE for scale in scales)
    if call.bias is not None or call.softcap > 0 or not call.q.numel() or not usual:
        found = [Fields.empty(shape, device) for _ in scales]
        for scale, fields in zip(scales, found, strict=True):
            attend.run(replace(call, scale=scale), output=None, fields=fields)
        return found
    if call.rows is None and dense.can(call):
        return _dense(call, scales)
    order = sorted(range(len(scales)), key=lambda i: scales[i])
    together = [order[i : i + AT_ONCE] for i in range(0, len(order), AT_ONCE)]
    places: dict[int, Fields] = {}
    for group in together:
        places |= dict(zip(group, _pass(call, [scales[i] for i in group]), strict=True))
    return [places[i] for i in range(len(scales))]


def _dense(call: Call, scales: Sequence[float]) -> list[Fields]:
    """Plain attention: four scales an octave apart in a pass, then whatever is left one by one."""
    found: dict[int, Fields] = {}
    left = dict(enumerate(scales))
    for i, lowest in sorted(left.items(), key=lambda pair: pair[1]):
        chain = [next((j for j, scale in left.items() if scale == lowest * 2**k), None) for k in range(4)]
        if i not in left or sum(j is not None for j in chain) < 3:
            continue
        for j, fields in zip(chain, _octaves(call, lowest), strict=True):
            if j is not None:
                found[j] = fields
                del left[j]
    for j, scale in left.items():
        found[j] = Fields.empty(call.shape, call.q.device)
        dense.run(replace(call, scale=scale), output=None, fields=found[j])
    return [found[i] for i in range(len(scales))]


def _octaves(call: Call, lowest: float) -> list[Fields]:
    (b, h, t), d, s = call.shape, call.q.shape[3], call.k.shape[2]
    tile = OCTAVE[d]
    fields = Fields.empty(call.shape, call.q.device, parts=4)
    flags = torch.empty(b * h * pieces(t, tile.rows), dtype=torch.int8, device=call.q.device)
    factor, high, low = dense.units(lowest)
    pays = d < 128 and dense.pays(call, output=False)
    sums = dense.sums_of_keys(call, fields.values.view(torch.float32)) if pays else dense.Sums(call.k, call.k)
    early = dense.overlaps(call)
    octave_kernel.octave[(pieces(t, tile.rows) * b * h,)](
        dense.tiles(call.q, tile.rows), dense.tiles(call.k, tile.keys), call.k, *call.k.stride()[:3],
        fields.values, fields.first_key, fields.broken, flags, call.positions, sums.parts, sums.centre,
        t, s, pieces(t, tile.rows), b * h, h, call.groups, factor, high, low, b * h * t, sums.chunk, sums.kept,
        D=d, BM=tile.rows, BN=tile.keys, STAGES=tile.stages, CAUSAL=call.causal, CHUNKS=sums.chunk > 0, EARLY=early,
        LIMIT=6.0, num_warps=tile.warps, maxnreg=tile.registers, launch_pdl=early and sums.chunk > 0,
    )  # fmt: skip
    found = [fields.part(k) for k in range(4)]
    for k, part in enumerate(found):
        attend.again(replace(call, scale=lowest * 2**k), attend.Split(1, s), flags, output=None, fields=part)
    return found


def _pass(call: Call, scales: list[float]) -> list[Fields]:
    assert all(a <= b for a, b in pairwise(scales))
    (b, h, rows), count = call.shape, len(scales)
    tile = attend.Blocks(64, 64, 4, 2) if call.k.dtype is not torch.float32 else attend.Blocks(32, 32, 4, 1)
    cut = attend.split(call, tile.rows, tile.keys)
    splits = cut.parts
    fields = Fields.empty((b, h, rows), call.q.device, parts=count * splits)
    mask = None if call.mask is None else call.mask.view(torch.uint8)
    step = octaves(scales)
    scales_kernel.scales[(pieces(rows, tile.rows) * b * h, splits)](
        call.q, call.k, call.q if mask is None else mask, call.positions,
        call.positions if call.rows is None else call.rows,
        torch.tensor(scales, dtype=torch.float32).to(call.q.device, non_blocking=True),
        fields.values, fields.first_key, fields.broken, *call.q.stride(), *call.k.stride(), *shared_strides(mask),
        rows, call.k.shape[2], call.q.shape[3], h, call.groups, call.behind, call.ahead, cut.keys, splits,
        b * h * rows, BM=tile.rows, BN=tile.keys, WIDE=width(call.q.shape[3]), K=count,
        PAD=power_of_2(count), STEP=step, CHAIN=pieces(count, step),
        GEOMETRY=call.causal or call.window > 0, MASK=mask is not None, PARTS=call.q.dtype != call.k.dtype,
        ROWS=call.rows is not None, PRECISION=precision(call), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if splits == 1:
        return [fields.part(i) for i in range(count)]
    found = [Fields.empty((b, h, rows), call.q.device) for _ in scales]
    for i, into in enumerate(found):
        part = slice(i * splits, (i + 1) * splits)
        attend.merge(Fields(fields.values[part], fields.first_key[part], fields.broken[part]), into, splits)
    return found
