# mypy: ignore-errors
# ruff: noqa: PLR0915, SIM108
"""Attention and its row statistics for everything the reference takes: one block of rows of one head per program.

A running maximum, so logits of any size keep their digits; the tiles' sums are merged as `RowStats` merges them. Rows
may be a sample, and the keys of a row may be split over several programs, whose fields `merge` brings together.
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1e300)
NO_KEY = tl.constexpr(9223372036854775807)
NO_COLUMN = tl.constexpr(2147483647)


@triton.jit
def logits(q, q_low, k_tile, row_scale, bias_at, softcap, PARTS: tl.constexpr, BIAS: tl.constexpr,
           SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """s in nats [BM, BN]; `q_low` is what rounding q to the keys' precision left over."""
    s = tl.dot(q, k_tile, input_precision=PRECISION)
    if PARTS:
        s = tl.dot(q_low, k_tile, s, input_precision=PRECISION)
    s = s * row_scale[:, None]
    if SOFTCAP:
        # tanh(x) = 1 − 2/(1 + e^2x); small x by its series, where that difference has no digits.
        x = s / softcap
        far = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
        near = x * (1.0 - x * x * (1.0 / 3.0 - x * x * (2.0 / 15.0)))
        s = tl.where(tl.abs(x) < 0.06, near, far) * softcap
    if BIAS:
        s += bias_at
    return s


@triton.jit
def take_query(at, inside, wide, D, K_DTYPE: tl.constexpr, PARTS: tl.constexpr):
    """A block of q as the products want it: itself, or two parts of the keys' precision and each row's size."""
    q = tl.load(at, mask=inside & (wide < D)[None, :], other=0.0)
    if PARTS:
        size = tl.maximum(tl.max(tl.abs(q), 1), 1e-30)
        size = tl.where(size < float("inf"), tl.exp2(tl.ceil(tl.log2(size))), size)
        q = q / size[:, None]
        high = q.to(K_DTYPE)
        return high, (q - high.to(tl.float32)).to(K_DTYPE), size
    return q.to(K_DTYPE), q.to(K_DTYPE), tl.full([q.shape[0]], 1.0, tl.float32)


@triton.jit
def rows_of(index, queries, hq, groups, rows_ptr, positions, BM: tl.constexpr, ROWS: tl.constexpr):
    """What the `index`-th block of rows is: batch, head, key head, its rows, which of them exist, where they lie and stand."""
    blocks = tl.cdiv(queries, BM)
    head, block = index // blocks, index % blocks
    b, h = (head // hq).to(tl.int64), (head % hq).to(tl.int64)
    row = block * BM + tl.arange(0, BM)
    inside = row < queries
    source = row.to(tl.int64)
    if ROWS:
        source = tl.load(rows_ptr + row, mask=inside, other=0)
    place = tl.load(positions + source, mask=inside, other=0).to(tl.int32)
    return b, h, h // groups, row, inside, source, place


@triton.jit
def span_of(inside, place, keys, behind, ahead, split_keys, BN: tl.constexpr, GEOMETRY: tl.constexpr):
    """The keys any of these rows may see, within split `program_id(1)`; the first at a multiple of BN."""
    first_seen, last_seen = 0, keys
    if GEOMETRY:
        least = tl.min(tl.where(inside, place, 2147483647), 0)
        most = tl.max(tl.where(inside, place, -2147483648), 0)
        first_seen = tl.maximum(least - behind, 0)
        last_seen = tl.minimum(most + ahead + 1, keys)
    first_seen = tl.maximum(first_seen // BN * BN, tl.program_id(1) * split_keys)
    return first_seen, tl.minimum(last_seen, (tl.program_id(1) + 1) * split_keys)


@triton.jit
def seen_by(column, real, inside, place, behind, ahead, mask_at, m_ss, GEOMETRY: tl.constexpr, MASK: tl.constexpr):
    """Which rows see which of a block's keys, [BM, BN]."""
    seen = real[None, :] & inside[:, None]
    if GEOMETRY:
        seen &= (column[None, :] >= place[:, None] - behind) & (column[None, :] <= place[:, None] + ahead)
    if MASK:
        seen &= tl.load(mask_at + column[None, :].to(tl.int64) * m_ss, mask=seen, other=0) != 0
    return seen


@triton.jit(do_not_specialize=["queries", "keys", "behind", "ahead", "split_keys", "total_rows", "hq", "groups"])
def attend(q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, positions, rows_ptr, out_ptr, lse_ptr, fields, first_key, broken,
           q_sb, q_sh, q_st, q_sd, k_sb, k_sh, k_st, k_sd, v_sb, v_sh, v_st, v_sd,
           b_sb, b_sh, b_st, b_ss, m_sb, m_sh, m_st, m_ss,
           queries, keys, D, DV, hq, groups, behind, ahead, scale, softcap, split_keys, total_rows,
           BM: tl.constexpr, BN: tl.constexpr, WIDE: tl.constexpr, WIDE_V: tl.constexpr, GEOMETRY: tl.constexpr,
           MASK: tl.constexpr, BIAS: tl.constexpr, SOFTCAP: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
           OUTPUT: tl.constexpr, STATS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """BM rows of one head over the keys of split `program_id(1)`."""
    K_DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    b, h, hk, row, inside, source, place = rows_of(tl.program_id(0), queries, hq, groups, rows_ptr, positions, BM, ROWS)
    wide, wide_v, step = tl.arange(0, WIDE), tl.arange(0, WIDE_V), tl.arange(0, BN)
    q_at = q_ptr + b * q_sb + h * q_sh + source[:, None] * q_st + wide[None, :] * q_sd
    q, q_low, size = take_query(q_at, inside[:, None], wide, D, K_DTYPE, PARTS)
    row_scale = size * scale
    # One 64-bit address a tile, 32-bit offsets within it: a tile of 64-bit addresses would fill the registers.
    k_base, v_base = k_ptr + b * k_sb + hk * k_sh, v_ptr + b * v_sb + hk * v_sh
    k_off, v_off = wide[:, None] * k_sd + step[None, :] * k_st, step[:, None] * v_st + wide_v[None, :] * v_sd
    bias_at = bias_ptr + b * b_sb + h * b_sh + source[:, None] * b_st
    mask_at = mask_ptr + b * m_sb + h * m_sh + source[:, None] * m_st

    first_seen, last_seen = span_of(inside, place, keys, behind, ahead, split_keys, BN, GEOMETRY)

    peak = tl.full([BM], float("-inf"), tl.float32)
    rest, rest2, cross = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    count, mean, m2 = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    first, first_s = tl.full([BM], NO_COLUMN, tl.int32), tl.zeros([BM], tl.float32)
    o = tl.zeros([BM, WIDE_V], tl.float32)
    k_base += first_seen.to(tl.int64) * k_st
    v_base += first_seen.to(tl.int64) * v_st
    for start in range(first_seen, last_seen, BN):
        column = start + step
        real = column < keys
        k = tl.load(k_base + k_off, mask=real[None, :] & (wide < D)[:, None], other=0.0)
        seen = seen_by(column, real, inside, place, behind, ahead, mask_at, m_ss, GEOMETRY, MASK)
        added = 0.0
        if BIAS:
            added = tl.load(bias_at + column[None, :].to(tl.int64) * b_ss, mask=seen, other=0.0).to(tl.float32)
        s = logits(q, q_low, k, row_scale, added, softcap, PARTS, BIAS, SOFTCAP, PRECISION)
        s = tl.where(seen, s, float("-inf"))
        here = tl.max(s, 1)
        new = tl.maximum(peak, here)
        base = tl.where(new == float("-inf"), 0.0, new)
        gap = tl.where(seen, (s - base[:, None]) * LOG2E, 0.0)
        w = tl.where(seen, tl.exp2(gap), 0.0)
        keep = tl.exp2((peak - base) * LOG2E)
        shift = tl.where(peak == float("-inf"), 0.0, (peak - base) * LOG2E)
        if STATS:
            # The largest key is left out of rest and rest2, once, wherever it stands; equals of it are not.
            below = tl.where(s < here[:, None], w, 0.0)
            equals = tl.sum(tl.where(seen & (s == here[:, None]), 1.0, 0.0), 1)
            top = tl.where(here == float("-inf"), 0.0, tl.exp2((here - base) * LOG2E))
            low = tl.minimum(keep, top)
            more = tl.maximum(equals - 1.0, 0.0) * top
            cross = keep * (cross + shift * tl.where(count > 0, 1.0 + rest, 0.0)) + tl.sum(w * gap, 1)
            rest2 = rest2 * keep * keep + tl.sum(below * below, 1) + low * low + more * top
            rest = rest * keep + tl.sum(below, 1) + low + more
            n = tl.sum(tl.where(seen, 1.0, 0.0), 1)
            fair = tl.sum(tl.where(seen, s - base[:, None], 0.0), 1) / tl.maximum(n, 1.0)
            away = tl.where(seen, (s - base[:, None]) - fair[:, None], 0.0)
            part = n / tl.maximum(count + n, 1.0)
            between = fair + (base - mean)
            m2 += tl.sum(away * away, 1) + tl.where(count > 0, between * between * part * count, 0.0)
            mean += between * part
            count += n
            found = tl.min(tl.where(seen, column[None, :], NO_COLUMN), 1)
            value = tl.sum(tl.where(seen & (column[None, :] == found[:, None]), s, 0.0), 1)
            first_s = tl.where(first == NO_COLUMN, value, first_s)
            first = tl.minimum(first, found)
        else:
            rest = rest * keep + tl.sum(w, 1)
        if OUTPUT:
            v_at = v_base + v_off
            v = tl.load(v_at, mask=real[:, None] & (wide_v < DV)[None, :], other=0.0)
            o = tl.dot(w.to(v.dtype), v, o * keep[:, None], input_precision=PRECISION)
        peak = new
        k_base += BN * k_st
        v_base += BN * v_st

    some = peak > float("-inf")
    if STATS:
        total = tl.where(some, 1.0 + rest, 0.0)
    else:
        total = rest
    at = (b * hq + h) * queries + row
    if OUTPUT:
        o = o / tl.where(total > 0, total, 1.0)[:, None]
        out_at = out_ptr + at[:, None] * DV + wide_v[None, :]
        tl.store(out_at, o.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (wide_v < DV)[None, :])
        lse = peak.to(tl.float64) + tl.log2(tl.where(total > 0, total, 1.0)).to(tl.float64) * LN2
        tl.store(lse_ptr + at, tl.where(total == 0, float("-inf"), lse.to(tl.float32)), mask=inside)
    if STATS:
        n = total_rows.to(tl.int64)
        base = fields + tl.program_id(1).to(tl.int64) * 8 * n + at
        met = count > 0
        peak_d = tl.where(some, peak.to(tl.float64), NOTHING)
        tl.store(base, count.to(tl.float64), mask=inside)
        tl.store(base + n, mean.to(tl.float64), mask=inside)
        tl.store(base + 2 * n, m2.to(tl.float64), mask=inside)
        tl.store(base + 3 * n, peak_d, mask=inside)
        tl.store(base + 4 * n, rest.to(tl.float64), mask=inside)
        tl.store(base + 5 * n, rest2.to(tl.float64), mask=inside)
        tl.store(base + 6 * n, cross.to(tl.float64) * LN2, mask=inside)
        tl.store(base + 7 * n, tl.where(met, first_s.to(tl.float64), NOTHING), mask=inside)
        found = tl.where(met, first.to(tl.int64), NO_KEY)
        tl.store(first_key + tl.program_id(1).to(tl.int64) * n + at, found, mask=inside)
        # NaN or Inf among the logits makes Σ w·(s − peak) NaN.
        tl.store(broken + tl.program_id(1).to(tl.int64) * n + at, (tl.abs(cross) < float("inf")) == 0, mask=inside)


@triton.jit(do_not_specialize=["splits", "total_rows"])
def merge(parts, part_keys, fields, first_key, broken, splits, total_rows, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Fields of disjoint sets of keys brought together, in float64, all parts [PARTS, BLOCK] at once."""
    n = total_rows.to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside, part = at < n, tl.arange(0, PARTS)[:, None]
    there = (part < splits) & inside[None, :]
    here = parts + part.to(tl.int64) * (8 * n) + at[None, :]
    counts = tl.load(here, mask=there, other=0.0)
    means = tl.load(here + n, mask=there, other=0.0)
    m2 = tl.load(here + 2 * n, mask=there, other=0.0)
    peaks = tl.load(here + 3 * n, mask=there, other=NOTHING)
    rests = tl.load(here + 4 * n, mask=there, other=0.0)
    rests2 = tl.load(here + 5 * n, mask=there, other=0.0)
    crosses = tl.load(here + 6 * n, mask=there, other=0.0)
    logits = tl.load(here + 7 * n, mask=there, other=NOTHING)
    keys = tl.load(part_keys + part.to(tl.int64) * n + at[None, :], mask=there, other=NO_KEY)
    count = tl.sum(counts, 0)
    mean = tl.sum(means * counts, 0) / tl.maximum(count, 1.0)
    away = means - mean[None, :]
    peak, first = tl.max(peaks, 0), tl.min(keys, 0)
    lower = tl.where(peaks == NOTHING, 0.0, peaks - peak[None, :])
    weight = tl.where(peaks == NOTHING, 0.0, tl.exp(lower))
    # The row's largest key is one part's largest; the other parts' largest belong to the rest.
    most = tl.min(tl.where(peaks == peak[None, :], part, PARTS), 0)
    other = tl.where(part == most[None, :], 0.0, weight)
    cross = tl.sum(weight * (crosses + lower * (1.0 + rests)), 0)
    out = fields + at
    tl.store(out, count, mask=inside)
    tl.store(out + n, mean, mask=inside)
    tl.store(out + 2 * n, tl.sum(m2 + counts * away * away, 0), mask=inside)
    tl.store(out + 3 * n, peak, mask=inside)
    tl.store(out + 4 * n, tl.sum(weight * rests + other, 0), mask=inside)
    tl.store(out + 5 * n, tl.sum(weight * weight * rests2 + other * other, 0), mask=inside)
    tl.store(out + 6 * n, cross, mask=inside)
    tl.store(out + 7 * n, tl.max(tl.where(keys == first[None, :], logits, NOTHING), 0), mask=inside)
    tl.store(first_key + at, first, mask=inside)
    tl.store(broken + at, (tl.abs(cross) < float("inf")) == 0, mask=inside)
