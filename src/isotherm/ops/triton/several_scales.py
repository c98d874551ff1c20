# mypy: disable-error-code="import-untyped, import-not-found"
"""Launching statistics at several scales in one pass: by a fast kernel for plain attention, by a general one otherwise."""

from collections.abc import Sequence
from ctypes import c_float
from functools import lru_cache, partial
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import torch
from torch import Tensor

from isotherm.ops.triton import (
    fast,
    key_splits,
    several_scales_fast_kernel,
    several_scales_general_kernel,
)
from isotherm.ops.triton import several_scales_interpolation as interpolation
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
from isotherm.ops.triton.launch import launch, remembered

TILES = {d: fast.Tuning(64, 64, 2, 4, 128) for d in (32, 64, 128)}
PROGRAMS = 264
"""As many as a large GPU runs at once, two a multiprocessor. Keys are split until there are about this many."""
LARGEST = 96.0
"""The largest exponent of a squared weight at the highest scale, relative to the reference."""
MOST_FACTORS = 8
"""Exponentials that a weight may be the product of: their rounding errors add up."""
EXPONENTIAL = (-1, -1)
"""In place of a pair of factors: the weight takes an exponential of its own."""
SAME = 1e-12
"""Scales with a smaller relative difference are equal: decimal fractions are not exact."""
SCALES_AT_ONCE = 8
"""Scales with sums of their own in one pass. More do not fit the registers."""
MOST_EXPONENTIALS = 5
"""With more exponentials for each logit, interpolation is faster."""


def run(call: AttentionCall, scales: Sequence[float], into: Fields) -> None:
    """Fill `into`, with a part for each scale. Scales ascend.

    Each scale takes a pass of its own if there is a bias or cap, which does not scale with q·k, or if a scale is 0.
    """
    if len(scales) == 1:
        fast.run_fast_or_general(call._replace(scale=scales[0]), output=None, fields=into)
        return
    shareable = all(fast.LEAST_SCALE <= scale <= 1 / fast.LEAST_SCALE for scale in scales)
    shareable &= max(scales, default=1.0) * fast.LEAST_SCALE <= min(scales, default=1.0)
    shareable &= call.bias is None and call.softcap == 0 and call.q.numel() > 0
    start = 0
    while start < len(scales):
        some, table = _next_pass(call, scales[start:]) if shareable else (scales[start : start + 1], None)
        fields = into.some_parts(slice(start, start + len(some)))
        start += len(some)
        if len(some) == 1:
            run(call, some, fields)
        else:
            remembered(
                ("scales", *some, *call.numbers), (*call.tensors, table), fields.tensors,
                partial(_run_pass, call, some, fields, table),
            )  # fmt: skip


def _next_pass(call: AttentionCall, scales: Sequence[float]) -> tuple[Sequence[float], Tensor | None]:
    """Return the lowest scales, as many as share a pass, and the table if they are interpolated."""
    near = [scale for scale in scales if scale <= interpolation.MOST_RATIO * scales[0]]
    many = len(near) > SCALES_AT_ONCE or plan(tuple(near)).factors.count(EXPONENTIAL) > MOST_EXPONENTIALS
    if many and call.k.dtype is not torch.float32 and interpolation.ready(near, call.k.device):
        return near, interpolation.table(near, call.k.device)
    return scales[:SCALES_AT_ONCE], None


def _run_pass(call: AttentionCall, scales: Sequence[float], fields: Fields, table: Tensor | None) -> None:
    (_run_fast if call.rows is None and fast.width(call.q.shape[3]) in TILES and fast.can(call) else _run_general)(
        call, scales, fields, table
    )


class WeightPlan(NamedTuple):
    """How the weights at ascending scales are made, each from earlier ones.

    `nodes` are the scales, and before them perhaps one helper. `factors` has, for each node, the indices of two nodes whose
    sum it is, or EXPONENTIAL. `doubles` has, for each scale, the index of the scale twice as large, or −1.
    """

    nodes: tuple[float, ...]
    factors: tuple[tuple[int, int], ...]
    doubles: tuple[int, ...]

    @property
    def lowest(self) -> float:
        """The lowest scale, without a helper."""
        return self.nodes[len(self.factors) - len(self.doubles)]

    @property
    def room(self) -> float:
        """The largest exponent at the lowest scale for which all sums stay in range."""
        highest = self.nodes[-1] if self.doubles[-1] >= 0 else 2 * self.nodes[-1]
        return LARGEST * self.lowest / highest

    @property
    def ratios(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The ratio of each node to the lowest scale, rounded to float32, and what the rounding left over."""
        rounded = tuple(c_float(node / self.lowest).value for node in self.nodes)
        left = tuple(node / self.lowest - ratio for node, ratio in zip(self.nodes, rounded, strict=True))
        return rounded, left


@lru_cache(256)
def plan(scales: tuple[float, ...]) -> WeightPlan:
    """Return the plan with the fewest exponentials. Its helper is one difference between scales, where that saves some.

    It is cached, since the search takes as long as a small problem.
    """
    steps = sorted({high - low for low, high in combinations(scales, 2) if high > low})
    doubles = tuple(next((i for i, other in enumerate(scales) if _same(other, 2 * scale)), -1) for scale in scales)
    plans = [WeightPlan(nodes, _factors(nodes), doubles) for nodes in [scales, *((step, *scales) for step in steps)]]
    return min(plans, key=lambda each: each.factors.count(EXPONENTIAL))


@lru_cache(256)
def interpolation_plan(highest: float) -> WeightPlan:
    """Return the plan for the nodes of an interpolation, which need no Σw² (`doubles` names an arbitrary scale)."""
    nodes = interpolation.nodes(highest)
    return WeightPlan(nodes, _factors(nodes, interpolation.MOST_FACTORS), (0,) * len(nodes))


def _plan_for(scales: Sequence[float], table: Tensor | None) -> WeightPlan:
    return plan(tuple(scales)) if table is None else interpolation_plan(scales[-1])


def _factors(nodes: Sequence[float], most: int = MOST_FACTORS) -> tuple[tuple[int, int], ...]:
    """Return, for each node, the two earlier nodes whose sum it is: the pair with the fewest exponentials, at most `most`."""
    pairs: list[tuple[int, int]] = []
    exponentials: list[int] = []
    for node in nodes:
        earlier = combinations_with_replacement(range(len(pairs)), 2)
        sums = [(exponentials[i] + exponentials[j], (i, j)) for i, j in earlier if _same(nodes[i] + nodes[j], node)]
        count, pair = min((each for each in sums if each[0] <= most), default=(1, EXPONENTIAL))
        pairs.append(pair)
        exponentials.append(count)
    return tuple(pairs)


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * abs(b)


def _run_fast(call: AttentionCall, scales: Sequence[float], fields: Fields, table: Tensor | None) -> None:
    """Launch the fast kernel, then the general one for the blocks that it flags."""
    (b, h, t), d, s = call.shape, fast.width(call.q.shape[3]), call.k.shape[2]
    tile, blocks, way = TILES[d], ceil_div(t, TILES[d].rows), _plan_for(scales, table)
    flags = torch.empty(b * h * blocks, dtype=torch.int8, device=call.q.device)
    wants_sums = fast.key_sums_pay(call, output=False)
    sums = fast.sum_keys(call, fields.values.view(torch.float32)) if wants_sums else fast.no_key_sums(call)
    overlap = fast.overlaps(call)
    launch(
        several_scales_fast_kernel.fast_scales, fast.grid(call, blocks),
        fast.tiles(call.q, tile.rows), fast.tiles(call.k, tile.keys),
        *fields.tensors, flags, call.positions, sums.scatter, sums.means, call.q if table is None else table,
        t, s, blocks, b * h, h, call.groups, *fast.log2_units(way.lowest), *way.ratios, way.room, b * h * t,
        sums.chunk, sums.stored, len(scales), D=d, BM=tile.rows, BN=tile.keys,
        STAGES=tile.stages, CAUSAL=call.causal, KEY_SUMS=sums.chunk > 0, OVERLAP=overlap, INTERPOLATE=table is not None,
        FACTORS=way.factors, DOUBLES=way.doubles,
        num_warps=tile.warps, maxnreg=tile.registers, launch_pdl=overlap and sums.chunk > 0,
    )  # fmt: skip
    _recompute_flagged(call, scales, key_splits.Split(1, s), fields, flags)


def _run_general(call: AttentionCall, scales: Sequence[float], fields: Fields, table: Tensor | None) -> None:
    """Launch the general kernel; after an interpolation again for the blocks that it flags."""
    (b, h, t), (rows, keys, _), device = call.shape, _tile(call), call.q.device
    cut = key_splits.split(call, rows, keys, PROGRAMS)
    into = fields if cut.parts == 1 else Fields.empty(call.shape, device, parts=len(scales) * cut.parts)
    size = cut.parts * ceil_div(t, rows) * b * h
    flags = None if table is None else torch.empty(size, dtype=torch.int8, device=device)
    _launch_general(call, scales, cut, into, flags, table)
    if flags is not None:
        _recompute_flagged(call, scales, cut, into, flags)
    if into is not fields:
        key_splits.merge(into, fields, cut.parts, len(scales))


def _tile(call: AttentionCall) -> tuple[int, int, int]:
    """Return rows, keys, and blocks of keys in flight."""
    return (64, 64, 2) if call.k.dtype is not torch.float32 else (32, 32, 1)


def _recompute_flagged(
    call: AttentionCall, scales: Sequence[float], cut: key_splits.Split, fields: Fields, flags: Tensor
) -> None:
    """Compute the flagged blocks of rows again, with sums at every scale."""
    for start in range(0, len(scales), SCALES_AT_ONCE):
        some = scales[start : start + SCALES_AT_ONCE]
        part = slice(start * cut.parts, (start + len(some)) * cut.parts)
        _launch_general(call, some, cut, fields.some_parts(part), flags)


def _launch_general(
    call: AttentionCall,
    scales: Sequence[float],
    cut: key_splits.Split,
    fields: Fields,
    flags: Tensor | None = None,
    table: Tensor | None = None,
) -> None:
    """Launch the general kernel. Given flags but no table, it computes flagged blocks only; given both, it sets flags."""
    (b, h, t), (rows, keys, stages), way = call.shape, _tile(call), _plan_for(scales, table)
    mask = None if call.mask is None else call.mask.view(torch.uint8)
    launch(
        several_scales_general_kernel.general_scales, (ceil_div(t, rows) * b * h, cut.parts),
        call.q, call.k, call.q if mask is None else mask, call.positions,
        call.positions if call.documents is None else call.documents,
        call.positions if call.rows is None else call.rows, call.q if flags is None else flags,
        *fields.tensors, *call.q.stride(), *call.k.stride(), *broadcast_strides(mask), *document_strides(call.documents),
        t, call.k.shape[2], call.q.shape[3], h, call.groups, call.behind, call.ahead, way.lowest, *way.ratios,
        way.room, cut.keys, cut.parts, b * h * t, call.q if table is None else table, len(scales), BM=rows, BN=keys,
        PADDED_D=padded_dim(call.q.shape[3]), FACTORS=way.factors, DOUBLES=way.doubles,
        GEOMETRY=call.geometry, MASK=broadcast_mode(mask), SPLIT_Q=call.q.dtype != call.k.dtype,
        SAMPLED=call.rows is not None, FLAGGED=flags is not None and table is None, INTERPOLATE=table is not None,
        PRECISION=precision(call), num_warps=4, num_stages=stages,
    )  # fmt: skip
