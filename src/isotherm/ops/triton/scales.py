# mypy: disable-error-code="import-untyped, import-not-found"
"""Launching the kernels for several scales at once: `chain_kernel` for plain attention, `scales_kernel` for the rest."""

from collections.abc import Sequence
from ctypes import c_float
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from isotherm.ops.triton import attend, chain_kernel, dense, scales_kernel
from isotherm.ops.triton.attend import Call, pieces, power_of_2, precision, shared_strides, width
from isotherm.ops.triton.fields import Fields

TILES = {d: dense.Tuning(64, 64, 2, 4, 168) for d in (32, 64, 128)}
DEEPEST = 4
"""Scales of a chain at most: weights are raised to twice the highest's power, and must stay within range."""
LARGEST = 96.0
"""The largest weight so raised, relative to the reference, as a power of two."""
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
    usual &= max(scales, default=1.0) * dense.LEAST_SCALE <= min(scales, default=1.0)
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


class Chain(NamedTuple):
    """Scales that double from each to the next, by their places in the caller's list."""

    lowest: float
    places: list[int]


def chains(scales: Sequence[float]) -> list[Chain]:
    """All scales, in chains of at most DEEPEST."""
    left = sorted(range(len(scales)), key=lambda i: scales[i])
    found = []
    while left:
        chain = Chain(scales[left[0]], [left.pop(0)])
        while len(chain.places) < DEEPEST and (
            after := [i for i in left if scales[i] == chain.lowest * 2 ** len(chain.places)]
        ):
            chain.places.append(after[0])
            left.remove(after[0])
        found.append(chain)
    return found


def packed(found: list[Chain]) -> list[list[Chain]]:
    """Chains that share a pass, the lowest first: AT_ONCE scales at most."""
    passes: list[list[Chain]] = []
    for chain in sorted(found, key=lambda chain: -len(chain.places)):
        room = [p for p in passes if sum(len(c.places) for c in p) + len(chain.places) <= AT_ONCE]
        if room:
            room[0].append(chain)
        else:
            passes.append([chain])
    return [sorted(together) for together in passes]


def _dense(call: Call, scales: Sequence[float]) -> list[Fields]:
    """Plain attention: one pass for eight scales, whatever they are."""
    found: dict[int, Fields] = {}
    for together in packed(chains(scales)):
        places = [place for chain in together for place in chain.places]
        if len(places) > 1:
            found |= dict(zip(places, _chains(call, together), strict=True))
        else:
            found[places[0]] = Fields.empty(call.shape, call.q.device)
            dense.run(replace(call, scale=scales[places[0]]), output=None, fields=found[places[0]])
    return [found[i] for i in range(len(scales))]


def _chains(call: Call, together: list[Chain]) -> list[Fields]:
    (b, h, t), d, s = call.shape, call.q.shape[3], call.k.shape[2]
    tile, blocks = TILES[d], pieces(t, TILES[d].rows)
    depths = tuple(len(chain.places) for chain in together)
    fields = Fields.empty(call.shape, call.q.device, parts=sum(depths))
    flags = torch.empty(b * h * blocks, dtype=torch.int8, device=call.q.device)
    base = together[0].lowest
    factor, high, low = dense.units(base)
    ratios = [chain.lowest / base for chain in together]
    near = [c_float(ratio).value for ratio in ratios]
    highest = max(ratio * 2**depth for ratio, depth in zip(ratios, depths, strict=True))
    pays = d < 128 and dense.pays(call, output=False)
    sums = dense.sums_of_keys(call, fields.values.view(torch.float32)) if pays else dense.Sums(call.k, call.k)
    early = dense.overlaps(call)
    chain_kernel.chains[dense.grid(call, blocks)](
        dense.tiles(call.q, tile.rows), dense.tiles(call.k, tile.keys),
        fields.values, fields.first_key, fields.broken, flags, call.positions, sums.parts, sums.centre,
        t, s, blocks, b * h, h, call.groups, factor, high, low, tuple(near),
        tuple(ratio - rough for ratio, rough in zip(ratios, near, strict=True)), LARGEST / highest, b * h * t,
        sums.chunk, sums.kept, D=d, BM=tile.rows, BN=tile.keys, STAGES=tile.stages, CAUSAL=call.causal,
        CHUNKS=sums.chunk > 0, EARLY=early, DEPTHS=depths,
        num_warps=tile.warps, maxnreg=tile.registers, launch_pdl=early and sums.chunk > 0,
    )  # fmt: skip
    scales = [chain.lowest * 2**k for chain in together for k in range(len(chain.places))]
    _launch(call, scales, attend.Split(1, s), fields, flags)
    return [fields.part(i) for i in range(sum(depths))]


def _pass(call: Call, scales: list[float]) -> list[Fields]:
    """Whatever the reference takes but a bias and a cap: eight scales, in ascending order, in a pass."""
    cut = attend.split(call, *_tile(call)[:2])
    fields = Fields.empty(call.shape, call.q.device, parts=len(scales) * cut.parts)
    _launch(call, scales, cut, fields)
    if cut.parts == 1:
        return [fields.part(i) for i in range(len(scales))]
    found = [Fields.empty(call.shape, call.q.device) for _ in scales]
    for i, into in enumerate(found):
        part = slice(i * cut.parts, (i + 1) * cut.parts)
        attend.merge(Fields(fields.values[part], fields.first_key[part], fields.broken[part]), into, cut.parts)
    return found


def _tile(call: Call) -> tuple[int, int, int]:
    """Rows, keys, and blocks of keys in flight."""
    return (64, 64, 2) if call.k.dtype is not torch.float32 else (32, 32, 1)


def _launch(call: Call, scales: list[float], cut: attend.Split, fields: Fields, flags: Tensor | None = None) -> None:
    """One launch of the general kernel, for every row or for the flagged blocks of 64."""
    (b, h, t), (rows, keys, stages), step = call.shape, _tile(call), octaves(scales)
    mask = None if call.mask is None else call.mask.view(torch.uint8)
    scales_kernel.scales[(pieces(t, rows) * b * h, cut.parts)](
        call.q, call.k, call.q if mask is None else mask, call.positions,
        call.positions if call.rows is None else call.rows, call.q if flags is None else flags, tuple(scales),
        fields.values, fields.first_key, fields.broken, *call.q.stride(), *call.k.stride(), *shared_strides(mask),
        t, call.k.shape[2], call.q.shape[3], h, call.groups, call.behind, call.ahead, cut.keys, cut.parts,
        b * h * t, BM=rows, BN=keys, WIDE=width(call.q.shape[3]), K=len(scales),
        PAD=power_of_2(len(scales)), STEP=step, CHAIN=pieces(len(scales), step),
        GEOMETRY=call.causal or call.window > 0, MASK=mask is not None, PARTS=call.q.dtype != call.k.dtype,
        ROWS=call.rows is not None, FLAGGED=flags is not None, PRECISION=precision(call), num_warps=4, num_stages=stages,
    )  # fmt: skip
