# mypy: ignore-errors
# ruff: noqa: RUF005
"""Weights of a logit at several scales, their sums, and the fields that follow from the sums.

Where one scale is the sum of two others, its weights are the products of theirs and need no exponential. The launcher says
which (`several_scales.WeightPlan`): FACTORS[i] is the pair of earlier nodes whose weights multiply to those of node i, or
(−1, −1) for an exponential. A node is a scale, or a helper before the scales. DOUBLES[i] is the index of the scale that is
twice scale i, or −1: Σw² at a scale is Σw at twice that scale.

Each lane keeps its largest exponent out of its sums. At high scales rows freeze, and the sum of all weights would then be
the largest weight to the last digit, while `RowStats.rest` needs the sum of the others. So of a new exponent and the
largest so far, the smaller one goes into the sums.

With many exponentials for each logit, the exponential unit limits the speed. Such sets of scales are interpolated from
sums at half-octaves (`several_scales_interpolation`).
"""

import triton
import triton.language as tl

from isotherm.ops.triton.shared_kernel import HIDDEN, NO_KEY, NOTHING, is_row_max, store_fields

TOO_SMALL = tl.constexpr(2.0**-96)
"""A smaller Σw may lack weights below float32's least, 2⁻¹²⁶: 131,072 of those make 2⁻¹³ of this sum."""
TOO_LARGE = tl.constexpr(2.0**120)
"""A larger Σw is close to float32's largest number."""


@triton.jit
def no_sums(z, DOUBLES: tl.constexpr):
    """Return the state before the first tile: the largest exponent of each lane; Σw, Σw² and Σwt at every scale."""
    none = ()
    for _ in tl.static_range(len(DOUBLES)):
        none = none + (z,)
    return z + HIDDEN, none, none, none


@triton.jit
def weights_at_scales(t, ratios, FACTORS: tl.constexpr, DOUBLES: tl.constexpr):
    """Return 2^(ratio·t) at every scale, each in the shape of t."""
    HELPERS: tl.constexpr = len(FACTORS) - len(DOUBLES)
    nodes, weights = (), ()
    for i in tl.static_range(len(FACTORS)):
        scaled = t if i == HELPERS else t * ratios[i]  # the lowest scale's ratio is 1
        w = tl.exp2(scaled) if FACTORS[i][0] < 0 else nodes[FACTORS[i][0]] * nodes[FACTORS[i][1]]
        nodes = nodes + (w,)
        if i >= HELPERS:
            weights = weights + (w,)
    return weights


@triton.jit
def add_weights(t, ratios, sum_w, sum_w2, sum_wt, FACTORS: tl.constexpr, DOUBLES: tl.constexpr):
    """Add the weights of t at every scale to Σw, Σwt and, where no scale is twice the scale, Σw²."""
    weights = weights_at_scales(t, ratios, FACTORS, DOUBLES)
    new_w, new_w2, new_wt = (), (), ()
    for i in tl.static_range(len(DOUBLES)):
        w, old = weights[i], sum_w2[i]
        new_w, new_wt = new_w + (sum_w[i] + w,), new_wt + (tl.fma(w, t, sum_wt[i]),)
        new_w2 = new_w2 + (tl.fma(w, w, old) if DOUBLES[i] < 0 else old,)
    return new_w, new_w2, new_wt


@triton.jit
def store_scales(fields, first_key, broken, splits, split, field_stride, at, row_exists, count, mean, m2, peak, first_logit,
                 key, state, ln2, ratios, ratios_low, table, scales, INTERPOLATE: tl.constexpr, FACTORS: tl.constexpr,
                 DOUBLES: tl.constexpr):  # fmt: skip
    """Store the fields of split `split` at every scale, from the state of the lanes and the fields at the lowest scale.

    `ln2` turns exponents at the lowest scale into nats. Return bool [rows]: Σw without the largest weight is not too small
    for float32 and, if INTERPOLATE, not too large.
    """
    if INTERPOLATE:
        fine = _store_interpolated(
            fields, first_key, broken, splits, split, field_stride, at, row_exists, count, mean, m2, peak, first_logit, key,
            state, ln2, ratios, table, scales, FACTORS, DOUBLES,
        )  # fmt: skip
    else:
        fine = _store_own(
            fields, first_key, broken, splits, split, field_stride, at, row_exists, count, mean, m2, peak, first_logit, key,
            state, ln2, ratios, ratios_low, FACTORS, DOUBLES,
        )  # fmt: skip
    return fine


@triton.jit
def _reduce_lanes(has_keys, state, ratios, FACTORS: tl.constexpr, DOUBLES: tl.constexpr):
    """Return the row's largest exponent [rows] (0 without keys), and the sums with the largest of the other lanes added."""
    max_t, sum_w, sum_w2, sum_wt = state
    lane_t = tl.where(is_row_max(max_t), HIDDEN, max_t)
    sum_w, sum_w2, sum_wt = add_weights(lane_t, ratios, sum_w, sum_w2, sum_wt, FACTORS, DOUBLES)
    return tl.where(has_keys, tl.max(max_t, 1), 0.0), sum_w, sum_w2, sum_wt


@triton.jit
def _store_own(fields, first_key, broken, splits, split, field_stride, at, row_exists, count, mean, m2, peak, first_logit,
               key, state, ln2, ratios, ratios_low, FACTORS: tl.constexpr, DOUBLES: tl.constexpr):  # fmt: skip
    """Store the fields at the scales of the sums themselves."""
    HELPERS: tl.constexpr = len(FACTORS) - len(DOUBLES)
    has_keys = count > 0
    max_t, sum_w, sum_w2, sum_wt = _reduce_lanes(has_keys, state, ratios, FACTORS, DOUBLES)
    max_t64 = max_t.to(tl.float64)
    for i in tl.static_range(len(DOUBLES)):
        inverse = 1.0 / tl.exp2(max_t * ratios[i + HELPERS]).to(tl.float64)  # of the largest weight, [rows]
        ratio = tl.full(at.shape, 0.0, tl.float64) + ratios[i + HELPERS] + ratios_low[i + HELPERS]
        rest, cross = tl.sum(sum_w[i], 1).to(tl.float64) * inverse, tl.sum(sum_wt[i], 1)
        rest2 = tl.sum(sum_w2[i] if DOUBLES[i] < 0 else sum_w[DOUBLES[i]], 1)
        store_fields(
            fields, first_key, broken, i * splits + split, field_stride, at, row_exists, count, mean * ratio,
            m2 * ratio * ratio, tl.where(has_keys, peak * ratio, NOTHING), rest, rest2.to(tl.float64) * (inverse * inverse),
            (cross.to(tl.float64) * inverse - max_t64 * rest) * ln2 * ratio,
            tl.where(has_keys, first_logit * ratio, NOTHING),
            tl.where(has_keys, key, NO_KEY), (tl.abs(cross) < float("inf")) == 0,
        )  # fmt: skip
    return tl.sum(sum_w[len(DOUBLES) - 1], 1) > TOO_SMALL


@triton.jit
def _store_interpolated(fields, first_key, broken, splits, split, field_stride, at, row_exists, count, mean, m2, peak,
                        first_logit, key, state, ln2, ratios, table, scales, FACTORS: tl.constexpr,
                        DOUBLES: tl.constexpr):  # fmt: skip
    """Store the fields at `scales` scales between the nodes, eight at a time, with the coefficients of `table`."""
    NODES: tl.constexpr = len(DOUBLES)
    has_keys = count > 0
    max_t, sum_w, _, sum_wt = _reduce_lanes(has_keys, state, ratios, FACTORS, DOUBLES)
    highest = tl.sum(sum_w[NODES - 1], 1)  # Σw at the highest node, [rows]
    # The exponent of one key that would weigh as much at the highest node as all summed keys together. Sums relative to it
    # are 1 at that node, which is what the table assumes.
    level = (tl.log2(tl.where(highest > 0, highest, 1.0)) / ratios[NODES - 1]).to(tl.float64)
    by, below_max = weights_at_scales(-level, ratios, FACTORS, DOUBLES), level - max_t
    values, slopes, is_broken = (), (), (tl.abs(max_t) < float("inf")) == 0
    for j in tl.static_range(NODES):
        value, slope = tl.sum(sum_w[j], 1).to(tl.float64), tl.sum(sum_wt[j], 1)
        values, slopes = values + (value * by[j],), slopes + ((slope.to(tl.float64) - level * value) * by[j],)
        is_broken |= (tl.abs(slope) < float("inf")) == 0
    for start in range(0, scales, 8):
        i = start + tl.arange(0, 8)
        scale_exists = i < scales
        here = row_exists[:, None] & scale_exists[None, :]
        ratio = tl.load(table + i, mask=scale_exists, other=0.0)[None, :]
        rest = tl.zeros([at.shape[0], 8], tl.float64)  # [rows, 8 scales]
        cross, rest2 = rest, rest
        for j in tl.static_range(2 * NODES):
            term = (values[j // 2] if j % 2 == 0 else slopes[j // 2])[:, None]
            coefficients = table + (1 + 3 * j) * scales + i
            rest += term * tl.load(coefficients, mask=scale_exists, other=0.0)[None, :]
            cross += term * tl.load(coefficients + scales, mask=scale_exists, other=0.0)[None, :]
            rest2 += term * tl.load(coefficients + 2 * scales, mask=scale_exists, other=0.0)[None, :]
        scaled, nats = tl.exp2(below_max[:, None] * ratio), ln2[:, None] * ratio
        store_fields(
            fields, first_key, broken, (i * splits + split)[None, :], field_stride, at[:, None], here, count[:, None],
            mean[:, None] * ratio, m2[:, None] * ratio * ratio,
            tl.where(has_keys[:, None], peak[:, None] * ratio, NOTHING),
            rest * scaled, rest2 * scaled * scaled, (cross + below_max[:, None] * rest) * scaled * nats,
            tl.where(has_keys[:, None], first_logit[:, None] * ratio, NOTHING),
            tl.where(has_keys, key, NO_KEY)[:, None], is_broken[:, None],
        )  # fmt: skip
    return (highest > TOO_SMALL) & (highest < TOO_LARGE) | (count <= 1)
