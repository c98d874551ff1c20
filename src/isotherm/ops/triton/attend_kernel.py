# mypy: ignore-errors
# ruff: noqa: PLR0915
"""Attention and its row statistics for everything the reference takes: one block of rows of one head per program.

Weights are relative to a reference that moves when they would leave their range, so logits of any size keep their digits;
every tile has sums of its own, and the largest weight is kept apart from them. Rows may be a sample, and the keys of a row
may be split over several programs, whose fields `merge` brings together.
"""

import triton
import triton.language as tl

from isotherm.ops.triton.fields_kernel import LN2, LOG2E, NO_KEY, NOTHING, divisor, keep_fields
from isotherm.ops.triton.lanes import HIDDEN, LANES, halves, highest, ordered

NO_COLUMN = tl.constexpr(2147483647)
LOWEST = tl.constexpr(-3e38)


@triton.jit
def logits(q, q_low, k_tile, row_scale, bias_at, softcap, PARTS: tl.constexpr, BIAS: tl.constexpr,
           SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """s in nats [BM, BN]; `q_low` is what rounding q to the keys' precision left over."""
    s = tl.dot(q, k_tile, input_precision=PRECISION)
    if PARTS:
        s = tl.dot(q_low, k_tile, s, input_precision=PRECISION)
    if SOFTCAP:
        # tanh(x) = 1 − 2/(1 + e^2x); small x by its series, where that difference has no digits.
        x = s * row_scale[:, None] / softcap
        far = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
        near = x * (1.0 - x * x * (1.0 / 3.0 - x * x * (2.0 / 15.0)))
        s = tl.where(tl.abs(x) < 0.06, near, far) * softcap
        if BIAS:
            s += bias_at
    else:
        # A bare product would be contracted with what is subtracted from it later: the largest logit less itself would be what
        # rounding it had left over, and of a logit of 1e10 that is hundreds.
        s = tl.fma(s, row_scale[:, None], bias_at)
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
def tiles_of(
    inside, place, keys, behind, ahead, split_keys, BN: tl.constexpr, GEOMETRY: tl.constexpr, MASK: tl.constexpr
):
    """Of split `program_id(1)`: the keys from `begin` to `end` that each row sees, but for a mask, and the blocks they are in.

    How many blocks not every row sees whole (or are the first: a row's first key is in one of these), how many every row does,
    and, for `take_keys`, where they lie: the first key of all, how many of the former come first, and where the latter begin.
    """
    first_seen, last_seen = 0, keys
    if GEOMETRY:
        least = tl.min(tl.where(inside, place, 2147483647), 0)
        most = tl.max(tl.where(inside, place, -2147483648), 0)
        first_seen = tl.maximum(least - behind, 0)
        last_seen = tl.minimum(most + ahead + 1, keys)
    first_seen = tl.maximum(first_seen // BN * BN, tl.program_id(1) * split_keys)
    last_seen = tl.minimum(last_seen, (tl.program_id(1) + 1) * split_keys)
    begin, end = tl.zeros_like(place) + first_seen, tl.zeros_like(place) + last_seen
    if GEOMETRY:
        begin, end = tl.maximum(begin, place - behind), tl.minimum(end, place + ahead + 1)
    whole = (tl.max(tl.where(inside, begin, 0), 0) // BN + 1) * BN
    if MASK:
        whole = tl.maximum(whole, last_seen)
    lead = tl.maximum(tl.cdiv(tl.minimum(whole, last_seen) - first_seen, BN), 0)
    wholes = tl.maximum(tl.min(tl.where(inside, end, NO_COLUMN), 0) - whole, 0) // BN
    edges = lead + tl.maximum(tl.cdiv(last_seen - whole - wholes * BN, BN), 0)
    return tl.where(inside, begin, 0), tl.where(inside, end, 0), edges, wholes, (first_seen, lead, whole)


@triton.jit
def take_keys(turn, wholes, where, k_base, k_off, k_st, wide, keys, D, BN: tl.constexpr, EDGE: tl.constexpr):
    """Where the `turn`-th block of keys starts, of those that every row sees whole or of the others, and its tile."""
    first_seen, lead, whole = where
    start = whole + turn * BN
    there = (wide < D)[:, None]
    if EDGE:
        start = tl.where(turn < lead, first_seen + turn * BN, whole + (wholes + turn - lead) * BN)
        there &= (start + tl.arange(0, BN) < keys)[None, :]
    return start, tl.load(k_base + start.to(tl.int64) * k_st + k_off, mask=there, other=0.0)


@triton.jit
def seen_of(column, real, begin, end, mask_ptr, mask_at, m_ss, MASK: tl.constexpr):
    """Which rows see which of a block's keys, [BM, BN]: those from `begin` to `end` that a mask does not hide."""
    seen = (column[None, :] >= begin[:, None]) & (column[None, :] < end[:, None])
    if MASK == 1:  # the same for every row
        seen &= (tl.load(mask_ptr + column.to(tl.int64) * m_ss, mask=real, other=0) != 0)[None, :]
    elif MASK == 2:
        seen &= tl.load(mask_at + column[None, :].to(tl.int64) * m_ss, mask=seen, other=0) != 0
    return seen


@triton.jit
def exponents(s, seen, reference, room, EDGE: tl.constexpr, MASK: tl.constexpr):
    """Logits, hidden ones at −inf; exponents of the weights; the largest logit; the reference, and what it counts as."""
    if MASK:  # from here on −inf says that a key is hidden, so none that is seen may have it
        s = tl.where(s == float("-inf"), LOWEST, s)
    if EDGE:
        s = tl.where(seen, s, float("-inf"))
    here = tl.max(s, 1)
    # What weights are relative to moves only when they would leave their range.
    new = tl.where((here - reference) * LOG2E > room, here, reference)
    base = tl.where(new == float("-inf"), 0.0, new)
    t = (s - base[:, None]) * LOG2E
    if EDGE:
        t = tl.where(seen, t, HIDDEN)
    return s, t, here, new, base


@triton.jit
def no_moments(begin, MASK: tl.constexpr):
    """What `with_moments` starts from."""
    z = tl.zeros_like(begin).to(tl.float32)
    return z, z, z, z + float("-inf"), z, (begin * 0 + NO_COLUMN) if MASK else begin


@triton.jit
def with_moments(moments, s, seen, start, here, begin, end, BN: tl.constexpr, EDGE: tl.constexpr, MASK: tl.constexpr):
    """Count, mean, Σ(s − mean)², the largest logit, and the first with its key, with a tile's part added.

    `here` is the tile's largest logit. Hidden keys have −inf, if there may be some: at an EDGE.
    """
    count, mean, m2, peak, first_s, first = moments
    column = start + tl.arange(0, BN)
    # About the mean so far; at first about the largest logit.
    centre = tl.where(count > 0, mean, here)
    u = s - centre[:, None]
    n = tl.full(begin.shape, BN, tl.float32)
    if EDGE:
        u = tl.where(seen, u, 0.0)
        n = tl.maximum(tl.minimum(end, start + BN) - tl.maximum(begin, start), 0).to(tl.float32)
    if MASK:  # told from the logits, since these lie where the sums are made
        n = tl.sum(tl.where(s != float("-inf"), 1.0, 0.0), 1)
    away = tl.sum(u, 1)
    fair = away / tl.maximum(n, 1.0)
    share = n / tl.maximum(count + n, 1.0)
    m2 += tl.maximum(tl.sum(u * u, 1) - away * fair, 0.0) + tl.where(count > 0, fair * fair * share * count, 0.0)
    mean = tl.where(count > 0, mean + fair * share, tl.where(n > 0, centre + fair, 0.0))
    if MASK:
        found = tl.min(tl.where(s != float("-inf"), column[None, :], NO_COLUMN), 1)
        value = tl.sum(tl.where(column[None, :] == found[:, None], s, 0.0), 1)
        first_s = tl.where(found < first, value, first_s)
        first = tl.minimum(first, found)
    elif EDGE:
        first_s += tl.sum(tl.where(column[None, :] == begin[:, None], s, 0.0), 1)
    return count + n, mean, m2, tl.maximum(peak, here), first_s, first


@triton.jit
def _under(t, w, top, big, rest, rest2, cross, BM: tl.constexpr, BN: tl.constexpr):
    """Per lane: the largest exponent and weight; Σw, Σw², Σwt with a tile's part added, of all others."""
    if BN > LANES:
        t, t_later = halves(t, BM, BN)
        w, w_later = halves(w, BM, BN)
        top, big, rest, rest2, cross = _under(t, w, top, big, rest, rest2, cross, BM, BN // 2)
        top, big, rest, rest2, cross = _under(t_later, w_later, top, big, rest, rest2, cross, BM, BN // 2)
    else:
        t, top = ordered(top, t)
        low, big = tl.minimum(w, big), tl.maximum(w, big)
        rest, rest2, cross = rest + low, tl.fma(low, low, rest2), tl.fma(low, t, cross)
    return top, big, rest, rest2, cross


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
    ROOM: tl.constexpr = 8.0 if v_ptr.dtype.element_ty == tl.float16 else 32.0
    b, h, hk, row, inside, source, place = rows_of(tl.program_id(0), queries, hq, groups, rows_ptr, positions, BM, ROWS)
    wide, wide_v, step = tl.arange(0, WIDE), tl.arange(0, WIDE_V), tl.arange(0, BN)
    q_at = q_ptr + b * q_sb + h * q_sh + source[:, None] * q_st + wide[None, :] * q_sd
    q, q_low, size = take_query(q_at, inside[:, None], wide, D, K_DTYPE, PARTS)
    row_scale = size * scale
    # One 64-bit address a tile, 32-bit offsets within it: a tile of 64-bit addresses would fill the registers.
    k_base, v_base = k_ptr + b * k_sb + hk * k_sh, v_ptr + b * v_sb + hk * v_sh
    k_off, v_off = wide[:, None] * k_sd + step[None, :] * k_st, step[:, None] * v_st + wide_v[None, :] * v_sd
    bias_ptr, mask_ptr = bias_ptr + b * b_sb + h * b_sh, mask_ptr + b * m_sb + h * m_sh
    bias_at, mask_at = bias_ptr + source[:, None] * b_st, mask_ptr + source[:, None] * m_st

    begin, end, edges, wholes, where = tiles_of(inside, place, keys, behind, ahead, split_keys, BN, GEOMETRY, MASK)
    reference, moments = tl.full([BM], float("-inf"), tl.float32), no_moments(begin, MASK)
    z, total, ceiling = tl.zeros([BM, LANES], tl.float32), tl.zeros([BM], tl.float32), reference
    top, big, rest, rest2, cross = z + HIDDEN, z, z, z, z
    o = tl.zeros([BM, WIDE_V], tl.float32)
    # Blocks of keys that not every row sees whole, and the first one; then all others.
    for part in tl.static_range(1 if MASK else 2):
        for turn in range(edges if part == 0 else wholes):
            start, k = take_keys(turn, wholes, where, k_base, k_off, k_st, wide, keys, D, BN, part == 0)
            column = start + step
            real = column < keys
            added, seen = 0.0, seen_of(column, real, begin, end, mask_ptr, mask_at, m_ss, MASK)
            if BIAS == 1:
                added = tl.load(bias_ptr + column.to(tl.int64) * b_ss, mask=real, other=0.0).to(tl.float32)[None, :]
            elif BIAS == 2:
                at = bias_at + column[None, :].to(tl.int64) * b_ss
                added = tl.load(at, mask=seen if part == 0 else inside[:, None], other=0.0).to(tl.float32)
            s = logits(q, q_low, k, row_scale, added, softcap, PARTS, BIAS, SOFTCAP, PRECISION)
            s, t, here, new, base = exponents(s, seen, reference, ROOM, part == 0, MASK)
            keep = tl.exp2((reference - base) * LOG2E)
            w = tl.exp2(t)
            if STATS:
                shift = tl.where(reference == float("-inf"), 0.0, (reference - base) * LOG2E)[:, None]
                by = keep[:, None]
                top, big, cross, rest, rest2 = (
                    top + shift,
                    big * by,
                    (cross + shift * rest) * by,
                    rest * by,
                    rest2 * by * by,
                )
                top, big, w1, w2, wt = _under(t, w, top, big, z, z, z, BM, BN)
                rest, rest2, cross = rest + w1, rest2 + w2, cross + wt
                moments = with_moments(moments, s, seen, start, here, begin, end, BN, part == 0, MASK)
            else:
                total, ceiling = total * keep + tl.sum(w, 1), tl.maximum(ceiling, here)
            if OUTPUT:
                v_at = v_base + start.to(tl.int64) * v_st + v_off
                v = tl.load(
                    v_at,
                    mask=real[:, None] & (wide_v < DV)[None, :] if part == 0 else (wide_v < DV)[None, :],
                    other=0.0,
                )
                o = tl.dot(w.to(v.dtype), v, o * keep[:, None], input_precision=PRECISION)
            reference = new

    if STATS:
        # The largest of all lanes stays apart, those of the other lanes join the sums.
        apart, above, largest = highest(top), tl.max(top, 1).to(tl.float64), tl.max(big, 1)
        low, under = tl.where(apart, 0.0, big), tl.where(apart, HIDDEN, top)
        rest, rest2 = tl.sum(rest + low, 1), tl.sum(tl.fma(low, low, rest2), 1)
        cross = tl.sum(tl.fma(low, under, cross), 1)
        total = largest + rest
    else:
        largest = tl.exp2((ceiling - reference) * LOG2E)
    at = (b * hq + h) * queries + row
    if OUTPUT:
        o = o / divisor(total, largest, v_ptr.dtype.element_ty)[:, None]
        out_at = out_ptr + at[:, None] * DV + wide_v[None, :]
        tl.store(out_at, o.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (wide_v < DV)[None, :])
        lse = reference.to(tl.float64) + tl.log2(tl.where(total > 0, total, 1.0)).to(tl.float64) * LN2
        tl.store(lse_ptr + at, tl.where(total == 0, float("-inf"), lse.to(tl.float32)), mask=inside)
    if STATS:
        count, mean, m2, peak, first_s, first = moments
        n, met = total_rows.to(tl.int64), count > 0
        one = 1.0 / tl.where(largest > 0, largest, 1.0).to(tl.float64)
        rest_d = rest.to(tl.float64) * one
        cross_d = cross.to(tl.float64) * one - tl.where(met, above, 0.0) * rest_d
        # NaN or Inf among the logits makes Σ w·(s − peak) NaN.
        keep_fields(
            fields, first_key, broken, tl.program_id(1).to(tl.int64), n, at, inside, count.to(tl.float64),
            mean.to(tl.float64), m2.to(tl.float64), tl.where(met, peak.to(tl.float64), NOTHING), rest_d,
            rest2.to(tl.float64) * one * one, cross_d * LN2, tl.where(met, first_s.to(tl.float64), NOTHING),
            tl.where(met, first.to(tl.int64), NO_KEY), (tl.abs(cross_d) < float("inf")) == 0,
        )  # fmt: skip


@triton.jit(do_not_specialize=["splits", "total_rows"])
def merge(parts, part_keys, fields, first_key, broken, splits, total_rows, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Fields of disjoint sets of keys brought together, in float64, all parts [PARTS, BLOCK] at once.

    `program_id(1)` is one of several scales.
    """
    n, scale = total_rows.to(tl.int64), tl.program_id(1).to(tl.int64)
    parts, part_keys = parts + scale * splits * 8 * n, part_keys + scale * splits * n
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
    keep_fields(
        fields, first_key, broken, scale, n, at, inside, count, mean, tl.sum(m2 + counts * away * away, 0), peak,
        tl.sum(weight * rests + other, 0), tl.sum(weight * weight * rests2 + other * other, 0), cross,
        tl.max(tl.where(keys == first[None, :], logits, NOTHING), 0), first, (tl.abs(cross) < float("inf")) == 0,
    )  # fmt: skip
