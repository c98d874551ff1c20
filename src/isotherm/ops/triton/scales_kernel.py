# mypy: ignore-errors
# ruff: noqa: PLR0915, SIM102
"""Row statistics at several scales from one pass over q·kᵀ.

Every positive scale has the same largest key, so the running maximum, the moments and the first logit are shared, in
units of bare q·k. Where one scale is twice another, its weights are the other's squared: an octave costs one
multiplication in place of an exponential, and Σw² of the lower is Σw of the upper.
"""

import triton
import triton.language as tl

from isotherm.ops.triton.attend_kernel import NO_COLUMN, rows_of, span_of, take_query
from isotherm.ops.triton.fields_kernel import LOG2E, NO_KEY, NOTHING

OUT = tl.constexpr(-1e30)


@triton.jit
def _seen_by(column, real, inside, place, behind, ahead, mask_at, m_ss, GEOMETRY: tl.constexpr, MASK: tl.constexpr):
    """Which rows see which of a block's keys, [BM, BN]."""
    seen = real[None, :] & inside[:, None]
    if GEOMETRY:
        seen &= (column[None, :] >= place[:, None] - behind) & (column[None, :] <= place[:, None] + ahead)
    if MASK:
        seen &= tl.load(mask_at + column[None, :].to(tl.int64) * m_ss, mask=seen, other=0) != 0
    return seen


@triton.jit
def _put(table, index: tl.constexpr, column, which):
    return tl.where(which[None, :] == index, column[:, None], table)


@triton.jit(
    do_not_specialize=["queries", "keys", "behind", "ahead", "split_keys", "splits", "total_rows", "hq", "groups"]
)
def scales(q_ptr, k_ptr, mask_ptr, positions, rows_ptr, flags, wanted, fields, first_key, broken,
           q_sb, q_sh, q_st, q_sd, k_sb, k_sh, k_st, k_sd, m_sb, m_sh, m_st, m_ss,
           queries, keys, D, hq, groups, behind, ahead, split_keys, splits, total_rows,
           BM: tl.constexpr, BN: tl.constexpr, WIDE: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr,
           STEP: tl.constexpr, CHAIN: tl.constexpr, GEOMETRY: tl.constexpr, MASK: tl.constexpr,
           PARTS: tl.constexpr, ROWS: tl.constexpr, FLAGGED: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Fields of BM rows at the K scales `wanted`, each STEP-th twice the one before it; if FLAGGED, only if they are."""
    K_DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    index = tl.program_id(0)
    if FLAGGED:
        if tl.load(flags + index) == 0:
            return
    b, h, hk, row, inside, source, place = rows_of(index, queries, hq, groups, rows_ptr, positions, BM, ROWS)
    wide, step, which = tl.arange(0, WIDE), tl.arange(0, BN), tl.arange(0, PAD)
    q_at = q_ptr + b * q_sb + h * q_sh + source[:, None] * q_st + wide[None, :] * q_sd
    q, q_low, size = take_query(q_at, inside[:, None], wide, D, K_DTYPE, PARTS)
    k_base = k_ptr + b * k_sb + hk * k_sh
    k_off = wide[:, None] * k_sd + step[None, :] * k_st
    mask_at = mask_ptr + b * m_sb + h * m_sh + source[:, None] * m_st
    scale = tl.full([PAD], 1.0, tl.float32)
    for i in tl.static_range(K):
        scale = tl.where(which == i, wanted[i], scale)
    factor = (scale * LOG2E)[None, :]
    first_seen, last_seen = span_of(inside, place, keys, behind, ahead, split_keys, BN, GEOMETRY)

    peak = tl.full([BM], float("-inf"), tl.float32)
    rest, rest2, cross = (
        tl.zeros([BM, PAD], tl.float32),
        tl.zeros([BM, PAD], tl.float32),
        tl.zeros([BM, PAD], tl.float32),
    )
    count, mean, m2 = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    first, first_s = tl.full([BM], NO_COLUMN, tl.int32), tl.zeros([BM], tl.float32)
    bad = tl.zeros([BM], tl.float32)
    k_base += first_seen.to(tl.int64) * k_st
    for start in range(first_seen, last_seen, BN):
        column = start + step
        real = column < keys
        k = tl.load(k_base + k_off, mask=real[None, :] & (wide < D)[:, None], other=0.0)
        seen = _seen_by(column, real, inside, place, behind, ahead, mask_at, m_ss, GEOMETRY, MASK)
        s = tl.dot(q, k, input_precision=PRECISION)
        if PARTS:
            s = tl.dot(q_low, k, s, input_precision=PRECISION)
            s = s * size[:, None]
        s = tl.where(seen, s, float("-inf"))
        here = tl.max(s, 1)
        new = tl.maximum(peak, here)
        base = tl.where(new == float("-inf"), 0.0, new)
        gap = s - base[:, None]
        below = tl.where(s < here[:, None], tl.maximum(gap, OUT), OUT)
        sums, squares, crosses = tl.zeros_like(rest), tl.zeros_like(rest), tl.zeros_like(rest)
        for lead in tl.static_range(STEP):
            w = tl.exp2(below * (wanted[lead] * LOG2E))
            total = tl.sum(w, 1)
            for octave in tl.static_range(CHAIN):
                if lead + octave * STEP < K:
                    sums = _put(sums, lead + octave * STEP, total, which)
                    crosses = _put(crosses, lead + octave * STEP, tl.sum(w * below, 1), which)
                    w = w * w
                    total = tl.sum(w, 1)
                    squares = _put(squares, lead + octave * STEP, total, which)
        equals = tl.sum(tl.where(seen & (s == here[:, None]), 1.0, 0.0), 1)
        old = tl.where(peak == float("-inf"), 0.0, peak - base)
        keep = tl.where((peak == float("-inf"))[:, None], 0.0, tl.exp2(old[:, None] * factor))
        lift = tl.where(here == float("-inf"), 0.0, here - base)
        top = tl.where((here == float("-inf"))[:, None], 0.0, tl.exp2(lift[:, None] * factor))
        low = tl.minimum(keep, top)
        more = tl.maximum(equals - 1.0, 0.0)[:, None] * top
        met = (count > 0)[:, None]
        cross = (
            keep * (cross + old[:, None] * tl.where(met, 1.0 + rest, 0.0)) + crosses + (equals * lift)[:, None] * top
        )
        rest2 = rest2 * keep * keep + squares + low * low + more * top
        rest = rest * keep + sums + low + more
        n = tl.sum(tl.where(seen, 1.0, 0.0), 1)
        fair = tl.sum(tl.where(seen, gap, 0.0), 1) / tl.maximum(n, 1.0)
        away = tl.where(seen, gap - fair[:, None], 0.0)
        bad += tl.sum(away * 0.0, 1)
        part = n / tl.maximum(count + n, 1.0)
        between = fair + (base - mean)
        m2 += tl.sum(away * away, 1) + between * between * part * count
        mean += between * part
        count += n
        found = tl.min(tl.where(seen, column[None, :], NO_COLUMN), 1)
        value = tl.sum(tl.where(seen & (column[None, :] == found[:, None]), s, 0.0), 1)
        first_s = tl.where(first == NO_COLUMN, value, first_s)
        first = tl.minimum(first, found)
        peak = new
        k_base += BN * k_st

    n = total_rows.to(tl.int64)
    at = ((b * hq + h) * queries + row)[:, None]
    part = which[None, :].to(tl.int64) * splits + tl.program_id(1)
    inside = inside[:, None] & (which < K)[None, :]
    met = (count > 0)[:, None]
    double = scale.to(tl.float64)[None, :]
    to = fields + part * 8 * n + at
    some = (peak > float("-inf"))[:, None]
    tl.store(to, tl.broadcast_to(count.to(tl.float64)[:, None], [BM, PAD]), mask=inside)
    tl.store(to + n, mean.to(tl.float64)[:, None] * double, mask=inside)
    tl.store(to + 2 * n, m2.to(tl.float64)[:, None] * double * double, mask=inside)
    tl.store(to + 3 * n, tl.where(some, peak.to(tl.float64)[:, None] * double, NOTHING), mask=inside)
    tl.store(to + 4 * n, rest.to(tl.float64), mask=inside)
    tl.store(to + 5 * n, rest2.to(tl.float64), mask=inside)
    # NaN or Inf among the logits reaches `bad` as NaN.
    tl.store(to + 6 * n, cross.to(tl.float64) * double + bad.to(tl.float64)[:, None], mask=inside)
    tl.store(to + 7 * n, tl.where(met, first_s.to(tl.float64)[:, None] * double, NOTHING), mask=inside)
    found = tl.broadcast_to(tl.where(count > 0, first.to(tl.int64), NO_KEY)[:, None], [BM, PAD])
    tl.store(first_key + part * n + at, found, mask=inside)
    tl.store(broken + part * n + at, (tl.abs(cross + bad[:, None]) < float("inf")) == 0, mask=inside)
