# mypy: ignore-errors
# ruff: noqa: RUF005
"""The weights of a logit at several scales, and what is made of their sums.

Where a scale is the sum of two others its weights are the products of theirs, and need no exponential of their own: twice
another, or evenly spaced with the step as a helper. The host says which (`scales.plan`). Σw² at a scale is Σw at twice it,
where that is among them. Each lane keeps its largest exponent apart from its sums, since rows freeze at the upper scales:
the largest weight is then all but a hair of the sum, and the hair is what `RowStats.rest` wants. Of a new exponent and
the largest so far the lower one goes into the sums. With eight exponentials a logit everything waits for these: such scales
are looked at between half-octaves (`between`).
"""

import triton
import triton.language as tl

from isotherm.ops.triton.fields_kernel import NO_KEY, NOTHING, keep_fields
from isotherm.ops.triton.lanes import HIDDEN, highest

LOST = tl.constexpr(2.0**-96)
"""A smaller sum of weights may lack some that are below the least of float32, 2⁻¹²⁶: 131,072 of them make 2⁻¹³ of this."""
FULL = tl.constexpr(2.0**120)
"""A larger one comes near the largest of float32."""


@triton.jit
def no_sums(z, TWICE: tl.constexpr):
    """Nothing seen yet: the largest exponent of a lane, and at every scale the sums of all others."""
    none = ()
    for _ in tl.static_range(len(TWICE)):
        none = none + (z,)
    return z + HIDDEN, none, none, none


@triton.jit
def weigh(t, ratios, MADE: tl.constexpr, TWICE: tl.constexpr):
    """2^(ratio·t) at every scale."""
    HELP: tl.constexpr = len(MADE) - len(TWICE)
    nodes, weights = (), ()
    for i in tl.static_range(len(MADE)):
        own = t if i == HELP else t * ratios[i]  # the lowest scale's ratio is 1
        w = tl.exp2(own) if MADE[i][0] < 0 else nodes[MADE[i][0]] * nodes[MADE[i][1]]
        nodes = nodes + (w,)
        if i >= HELP:
            weights = weights + (w,)
    return weights


@triton.jit
def add(t, ratios, sums, squares, crosses, MADE: tl.constexpr, TWICE: tl.constexpr):
    """The sums with weights 2^(ratio·t) added: at every scale Σw, Σw² where no scale is twice it, and Σwt."""
    weights = weigh(t, ratios, MADE, TWICE)
    new, new_squares, new_crosses = (), (), ()
    for i in tl.static_range(len(TWICE)):
        w, old = weights[i], squares[i]
        new, new_crosses = new + (sums[i] + w,), new_crosses + (tl.fma(w, t, crosses[i]),)
        new_squares = new_squares + (tl.fma(w, w, old) if TWICE[i] < 0 else old,)
    return new, new_squares, new_crosses


@triton.jit
def keep(fields, first_key, broken, splits, split, n, at, inside, count, mean, m2, peak, first_logit, key, state, unit,
         ratios, ratios_low, table, scales, BETWEEN: tl.constexpr, MADE: tl.constexpr, TWICE: tl.constexpr):  # fmt: skip
    """The fields at every scale, of split `split`, from the lanes' sums and what the lowest scale has.

    `unit` turns exponents at the lowest scale into nats. Gives back in which rows the weights beside the largest are not too
    small for float32; if BETWEEN, nor too large.
    """
    if BETWEEN:
        fine = _keep_between(
            fields, first_key, broken, splits, split, n, at, inside, count, mean, m2, peak, first_logit, key, state, unit,
            ratios, table, scales, MADE, TWICE,
        )  # fmt: skip
    else:
        fine = _keep_each(
            fields, first_key, broken, splits, split, n, at, inside, count, mean, m2, peak, first_logit, key, state, unit,
            ratios, ratios_low, MADE, TWICE,
        )  # fmt: skip
    return fine


@triton.jit
def _together(some, state, ratios, MADE: tl.constexpr, TWICE: tl.constexpr):
    """The largest exponent of all lanes, 0 where there is none, and the sums: those of the other lanes join them."""
    top, sums, squares, crosses = state
    others = tl.where(highest(top), HIDDEN, top)
    sums, squares, crosses = add(others, ratios, sums, squares, crosses, MADE, TWICE)
    return tl.where(some, tl.max(top, 1), 0.0), sums, squares, crosses


@triton.jit
def _keep_each(fields, first_key, broken, splits, split, n, at, inside, count, mean, m2, peak, first_logit, key, state, unit,
               ratios, ratios_low, MADE: tl.constexpr, TWICE: tl.constexpr):  # fmt: skip
    """At the scales of the sums."""
    HELP: tl.constexpr = len(MADE) - len(TWICE)
    some = count > 0
    top, sums, squares, crosses = _together(some, state, ratios, MADE, TWICE)
    double = top.to(tl.float64)
    for i in tl.static_range(len(TWICE)):
        w = 1.0 / tl.exp2(top * ratios[i + HELP]).to(tl.float64)
        ratio = tl.full(at.shape, 0.0, tl.float64) + ratios[i + HELP] + ratios_low[i + HELP]
        rest, cross = tl.sum(sums[i], 1).to(tl.float64) * w, tl.sum(crosses[i], 1)
        rest2 = tl.sum(squares[i] if TWICE[i] < 0 else sums[TWICE[i]], 1)
        keep_fields(
            fields, first_key, broken, i * splits + split, n, at, inside, count, mean * ratio, m2 * ratio * ratio,
            tl.where(some, peak * ratio, NOTHING), rest, rest2.to(tl.float64) * (w * w),
            (cross.to(tl.float64) * w - double * rest) * unit * ratio, tl.where(some, first_logit * ratio, NOTHING),
            tl.where(some, key, NO_KEY), (tl.abs(cross) < float("inf")) == 0,
        )  # fmt: skip
    return tl.sum(sums[len(TWICE) - 1], 1) > LOST


@triton.jit
def _keep_between(fields, first_key, broken, splits, split, n, at, inside, count, mean, m2, peak, first_logit, key, state,
                  unit, ratios, table, scales, MADE: tl.constexpr, TWICE: tl.constexpr):  # fmt: skip
    """At `scales` scales between those of the sums, as `table` says (`between.table`), eight after eight."""
    NODES: tl.constexpr = len(TWICE)
    some = count > 0
    top, sums, _, crosses = _together(some, state, ratios, MADE, TWICE)
    last = tl.sum(sums[NODES - 1], 1)
    # Where a key would be that is as heavy there as all that are summed up.
    level = (tl.log2(tl.where(last > 0, last, 1.0)) / ratios[NODES - 1]).to(tl.float64)
    by, below = weigh(-level, ratios, MADE, TWICE), level - top
    values, slopes, bad = (), (), (tl.abs(top) < float("inf")) == 0
    for j in tl.static_range(NODES):
        value, slope = tl.sum(sums[j], 1).to(tl.float64), tl.sum(crosses[j], 1)
        values, slopes = values + (value * by[j],), slopes + ((slope.to(tl.float64) - level * value) * by[j],)
        bad |= (tl.abs(slope) < float("inf")) == 0
    for start in range(0, scales, 8):
        i = start + tl.arange(0, 8)
        there = i < scales
        here = inside[:, None] & there[None, :]
        ratio = tl.load(table + i, mask=there, other=0.0)[None, :]
        rest = tl.zeros([at.shape[0], 8], tl.float64)
        cross, rest2 = rest, rest
        for j in tl.static_range(2 * NODES):
            term = (values[j // 2] if j % 2 == 0 else slopes[j // 2])[:, None]
            row = table + (1 + 3 * j) * scales + i
            rest += term * tl.load(row, mask=there, other=0.0)[None, :]
            cross += term * tl.load(row + scales, mask=there, other=0.0)[None, :]
            rest2 += term * tl.load(row + 2 * scales, mask=there, other=0.0)[None, :]
        scaled, nats = tl.exp2(below[:, None] * ratio), unit[:, None] * ratio
        keep_fields(
            fields, first_key, broken, (i * splits + split)[None, :], n, at[:, None], here, count[:, None],
            mean[:, None] * ratio, m2[:, None] * ratio * ratio, tl.where(some[:, None], peak[:, None] * ratio, NOTHING),
            rest * scaled, rest2 * scaled * scaled, (cross + below[:, None] * rest) * scaled * nats,
            tl.where(some[:, None], first_logit[:, None] * ratio, NOTHING), tl.where(some, key, NO_KEY)[:, None],
            bad[:, None],
        )  # fmt: skip
    return (last > LOST) & (last < FULL) | (count <= 1)
