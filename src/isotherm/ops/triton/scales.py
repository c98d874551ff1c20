# mypy: disable-error-code="import-untyped, import-not-found"
"""Launching the kernels for several scales at once: `products_kernel` for plain attention, `scales_kernel` for the rest."""

from collections.abc import Sequence
from ctypes import c_float
from dataclasses import replace
from functools import lru_cache, partial
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import torch
from torch import Tensor

from isotherm.ops.triton import attend, between, dense, products_kernel, scales_kernel
from isotherm.ops.triton.attend import Call, pieces, precision, shared, shared_strides, width
from isotherm.ops.triton.fields import Fields
from isotherm.ops.triton.launch import launch, remembered

TILES = {d: dense.Tuning(64, 64, 2, 4, 128) for d in (32, 64, 128)}
PROGRAMS = 264
"""As many as a large GPU runs at once, two a multiprocessor: keys are split until there are about this many."""
LARGEST = 96.0
"""The largest weight squared at the highest scale, relative to the reference, as a power of two."""
FACTORS = 8
"""Exponentials that a weight is the product of at most: their roundings add up."""
NEITHER = (-1, -1)
SAME = 1e-12
"""Scales that differ by less, relatively, are one and the same: decimal fractions are not exact."""
AT_ONCE = 8
"""Scales in one pass at most that have sums of their own: more do not fit the registers."""
EXPONENTIALS = 5
"""Beyond so many exponentials a logit, everything waits for these."""


def run(call: Call, scales: Sequence[float], into: Fields) -> None:
    """Fill `into`, a part for each scale; these ascend.

    A pass for each where a bias or a cap does not scale with q·k, or where one of them is 0.
    """
    if len(scales) == 1:
        dense.fill(replace(call, scale=scales[0]), output=None, fields=into)
        return
    usual = all(dense.LEAST_SCALE <= scale <= 1 / dense.LEAST_SCALE for scale in scales)
    usual &= max(scales, default=1.0) * dense.LEAST_SCALE <= min(scales, default=1.0)
    usual &= call.bias is None and call.softcap == 0 and call.q.numel() > 0
    start = 0
    while start < len(scales):
        some, table = _first(call, scales[start:]) if usual else (scales[start : start + 1], None)
        fields = Fields(*(x[start : start + len(some)] for x in into.tensors))
        start += len(some)
        if len(some) == 1:
            run(call, some, fields)
        else:
            remembered(
                ("scales", *some, *call.numbers), (*call.tensors, table), fields.tensors,
                partial(_look, call, some, fields, table),
            )  # fmt: skip


def _first(call: Call, scales: Sequence[float]) -> tuple[Sequence[float], Tensor | None]:
    """Those of the lowest that share a pass, and the table if they are looked at between others (`between`)."""
    near = [scale for scale in scales if scale <= between.REACH * scales[0]]
    many = len(near) > AT_ONCE or plan(tuple(near)).made.count(NEITHER) > EXPONENTIALS
    if many and call.k.dtype is not torch.float32 and between.ready(near, call.k.device):
        return near, between.table(near, call.k.device)
    return scales[:AT_ONCE], None


def _look(call: Call, scales: Sequence[float], fields: Fields, table: Tensor | None) -> None:
    """Scales, in ascending order, in a pass."""
    (_dense if call.rows is None and dense.can(call) else _pass)(call, scales, fields, table)


class Plan(NamedTuple):
    """How the weights at ascending scales come about, each from those before it.

    `nodes` are the scales, and before them perhaps a helper. `made` says of each whose sum it is, by the places of two
    nodes, or NEITHER: that takes an exponential. `twice` says of each scale which one is twice as large, or −1.
    """

    nodes: tuple[float, ...]
    made: tuple[tuple[int, int], ...]
    twice: tuple[int, ...]


@lru_cache(256)
def plan(scales: tuple[float, ...]) -> Plan:
    """The fewest exponentials, with the help of one difference between scales where that spares some.

    Kept, since looking for it takes as long as a small problem.
    """
    steps = sorted({high - low for low, high in combinations(scales, 2) if high > low})
    twice = tuple(next((i for i, other in enumerate(scales) if _same(other, 2 * scale)), -1) for scale in scales)
    ways = [Plan(nodes, _made(nodes), twice) for nodes in [scales, *((step, *scales) for step in steps)]]
    return min(ways, key=lambda way: way.made.count(NEITHER))


@lru_cache(256)
def _halves(highest: float) -> Plan:
    """Half-octaves instead, for scales up to `highest` that lie between them; no Σw² is wanted at these."""
    nodes = between.nodes(highest)
    return Plan(nodes, _made(nodes, between.FACTORS), (0,) * len(nodes))


def _way(scales: Sequence[float], table: Tensor | None) -> Plan:
    return plan(tuple(scales)) if table is None else _halves(scales[-1])


def _room(way: Plan) -> float:
    """The largest exponent at the lowest scale for which everything that is summed up stays in range."""
    highest = way.nodes[-1] if way.twice[-1] >= 0 else 2 * way.nodes[-1]
    return LARGEST * _lowest(way) / highest


def _lowest(way: Plan) -> float:
    """Of the scales, without a helper."""
    return way.nodes[len(way.made) - len(way.twice)]


def _ratios(way: Plan) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each node to the lowest scale, as float32 has it, and what that leaves over."""
    lowest = _lowest(way)
    near = tuple(c_float(node / lowest).value for node in way.nodes)
    return near, tuple(node / lowest - ratio for node, ratio in zip(way.nodes, near, strict=True))


def _made(nodes: Sequence[float], most: int = FACTORS) -> tuple[tuple[int, int], ...]:
    """Of which two before it each node is the sum; of several pairs the one with the fewest factors, and at most `most`."""
    made: list[tuple[int, int]] = []
    factors: list[int] = []
    for node in nodes:
        pairs = combinations_with_replacement(range(len(made)), 2)
        sums = [(factors[i] + factors[j], (i, j)) for i, j in pairs if _same(nodes[i] + nodes[j], node)]
        count, pair = min((each for each in sums if each[0] <= most), default=(1, NEITHER))
        made.append(pair)
        factors.append(count)
    return tuple(made)


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * abs(b)


def _dense(call: Call, scales: Sequence[float], fields: Fields, table: Tensor | None) -> None:
    """Plain attention."""
    (b, h, t), d, s = call.shape, call.q.shape[3], call.k.shape[2]
    tile, blocks = TILES[d], pieces(t, TILES[d].rows)
    way = _way(scales, table)
    flags = torch.empty(b * h * blocks, dtype=torch.int8, device=call.q.device)
    ratios, left = _ratios(way)
    factor, high, low = dense.units(_lowest(way))
    pays = dense.pays(call, output=False)
    sums = dense.sums_of_keys(call, fields.values.view(torch.float32)) if pays else dense.Sums(call.k, call.k)
    early = dense.overlaps(call)
    launch(
        products_kernel.products, dense.grid(call, blocks),
        dense.tiles(call.q, tile.rows), dense.tiles(call.k, tile.keys),
        fields.values, fields.first_key, fields.broken, flags, call.positions, sums.parts, sums.centre,
        call.q if table is None else table,
        t, s, blocks, b * h, h, call.groups, factor, high, low, ratios, left, _room(way), b * h * t,
        sums.chunk, sums.kept, len(scales), D=d, BM=tile.rows, BN=tile.keys,
        STAGES=tile.stages, CAUSAL=call.causal, CHUNKS=sums.chunk > 0, EARLY=early, BETWEEN=table is not None,
        MADE=way.made, TWICE=way.twice,
        num_warps=tile.warps, maxnreg=tile.registers, launch_pdl=early and sums.chunk > 0,
    )  # fmt: skip
    _again(call, scales, attend.Split(1, s), fields, flags)


def _pass(call: Call, scales: Sequence[float], fields: Fields, table: Tensor | None) -> None:
    """Whatever the reference takes but a bias and a cap."""
    (b, h, t), (rows, keys, _), device = call.shape, _tile(call), call.q.device
    cut = attend.split(call, rows, keys, PROGRAMS)
    into = fields if cut.parts == 1 else Fields.empty(call.shape, device, parts=len(scales) * cut.parts)
    flags = None if table is None else torch.empty(cut.parts * pieces(t, rows) * b * h, dtype=torch.int8, device=device)
    _launch(call, scales, cut, into, flags, table)
    if flags is not None:
        _again(call, scales, cut, into, flags)
    if into is not fields:
        attend.merge(into, fields, cut.parts, len(scales))


def _tile(call: Call) -> tuple[int, int, int]:
    """Rows, keys, and blocks of keys in flight."""
    return (64, 64, 2) if call.k.dtype is not torch.float32 else (32, 32, 1)


def _again(call: Call, scales: Sequence[float], cut: attend.Split, fields: Fields, flags: Tensor) -> None:
    """The flagged blocks of 64 rows, at sums of their own."""
    for start in range(0, len(scales), AT_ONCE):
        some = scales[start : start + AT_ONCE]
        part = slice(start * cut.parts, (start + len(some)) * cut.parts)
        _launch(call, some, cut, Fields(*(x[part] for x in fields.tensors)), flags)


def _launch(
    call: Call,
    scales: Sequence[float],
    cut: attend.Split,
    fields: Fields,
    flags: Tensor | None = None,
    table: Tensor | None = None,
) -> None:
    """One launch of the general kernel: for flagged blocks of rows, or, with a table, for all, and then it flags some."""
    (b, h, t), (rows, keys, stages), way = call.shape, _tile(call), _way(scales, table)
    mask, (ratios, left) = None if call.mask is None else call.mask.view(torch.uint8), _ratios(way)
    launch(
        scales_kernel.scales, (pieces(t, rows) * b * h, cut.parts),
        call.q, call.k, call.q if mask is None else mask, call.positions,
        call.positions if call.rows is None else call.rows, call.q if flags is None else flags,
        fields.values, fields.first_key, fields.broken, *call.q.stride(), *call.k.stride(), *shared_strides(mask),
        t, call.k.shape[2], call.q.shape[3], h, call.groups, call.behind, call.ahead, _lowest(way), ratios, left,
        _room(way), cut.keys, cut.parts, b * h * t, call.q if table is None else table, len(scales), BM=rows, BN=keys,
        WIDE=width(call.q.shape[3]), MADE=way.made, TWICE=way.twice, GEOMETRY=call.causal or call.window > 0,
        MASK=shared(mask), PARTS=call.q.dtype != call.k.dtype, ROWS=call.rows is not None,
        FLAGGED=flags is not None and table is None, BETWEEN=table is not None, PRECISION=precision(call),
        num_warps=4, num_stages=stages,
    )  # fmt: skip
