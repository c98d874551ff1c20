# mypy: ignore-errors
# ruff: noqa: PLR0912, PLR0915
"""What `dense_kernel` does, without the output, at four scales an octave apart: r, 2r, 4r and 8r.

Weights at twice a scale are weights squared, so three of the four exponentials become multiplications, and Σw² of one
scale is Σw of the next. Each lane keeps its largest weight apart from its sums, since rows freeze at the upper scales:
the largest is then all but a hair of the sum, and the hair is what `RowStats.rest` wants.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from isotherm.ops.triton.dense_kernel import with_sums
from isotherm.ops.triton.finish_kernel import merged, moments

NOTHING = tl.constexpr(-1e300)
NO_KEY = tl.constexpr(9223372036854775807)
HIDDEN = tl.constexpr(-512.0)


@triton.jit
def _apart(m, a, b, c, d, e, m_new, a_new, b_new, c_new, d_new, e_new):
    low = tl.minimum(m, m_new)
    low2 = low * low
    low4 = low2 * low2
    low8 = low4 * low4
    return (tl.maximum(m, m_new), a + a_new + low, b + b_new + low2, c + c_new + low4, d + d_new + low8,
            e + e_new + low8 * low8)  # fmt: skip


@triton.jit
def _tile(s, column, limit, factor, reference, BM: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr):
    """Per lane, each [BM, 8]: the largest weight; Σ of the others' 1st, 2nd, 4th, 8th, 16th powers; Σwt four times; Σt; Σt²."""
    t = s * factor - reference[:, None]
    u = t
    if MASKED:
        seen = column[None, :] <= limit[:, None]
        t = tl.where(seen, t, HIDDEN)
        u = tl.where(seen, t, 0.0)
    w = tl.exp2(t).reshape(BM, BN // 8, 8)
    t, u = t.reshape(BM, BN // 8, 8), u.reshape(BM, BN // 8, 8)
    z = tl.full([BM, BN // 8, 8], -0.0, tl.float32)
    m, a, b, c, d, e = tl.reduce((w, z, z, z, z, z), 1, _apart)
    w2 = w * w
    w4 = w2 * w2
    x1, x2, x4, x8 = tl.sum(w * t, 1), tl.sum(w2 * t, 1), tl.sum(w4 * t, 1), tl.sum(w4 * w4 * t, 1)
    return m, a, b, c, d, e, x1, x2, x4, x8, tl.sum(u, 1), tl.sum(u * u, 1)


@triton.jit(do_not_specialize=["queries", "keys", "blocks", "heads", "hq", "groups", "total_rows", "chunk", "kept"])
def octave(q_desc, k_desc, k_ptr, k_sb, k_sh, k_st, fields, first_key, broken, flags, positions, parts, centre,
           queries, keys, blocks, heads, hq, groups, factor, unit_high, unit_low, total_rows, chunk, kept,
           D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr,
           CHUNKS: tl.constexpr, EARLY: tl.constexpr, LIMIT: tl.constexpr):  # fmt: skip
    """One block of BM rows of one head at four scales; `factor` and `unit` are those of the lowest."""
    block, head = blocks - 1 - tl.program_id(0) // heads, tl.program_id(0) % heads
    b, h = head // hq, head % hq
    hk = h // groups
    rows = block * BM + tl.arange(0, BM)
    inside = rows < queries
    limit = tl.full([BM], 0, tl.int32) + (keys - 1)
    seen, whole = keys, keys // BN
    if CAUSAL:
        limit = tl.minimum(limit, tl.load(positions + tl.minimum(rows, queries - 1)).to(tl.int32))
        seen = tl.maximum(tl.max(limit, 0) + 1, 1)
        whole = tl.maximum(tl.min(limit, 0) + 1, 0) // BN
    tiles = (seen + BN - 1) // BN
    ahead = tl.arange(0, BN)
    q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)
    few, wide = tl.arange(0, 16), tl.arange(0, D)
    at = k_ptr + b.to(tl.int64) * k_sb + hk.to(tl.int64) * k_sh
    start = tl.dot(q, tl.load(at + tl.minimum(few, keys - 1)[:, None] * k_st + wide[None, :]).T)
    sink = tl.sum(tl.where(few[None, :] == 0, start, 0.0), 1)
    reference = tl.max(tl.where(few[None, :] <= limit[:, None], start, float("-inf")), 1)
    reference = tl.where(reference > float("-inf"), reference, 0.0) * factor
    z = tl.zeros([BM, 8], tl.float32)
    m, r1, r2, r4, r8, r16, x1, x2, x4, x8, sums, squares = z, z, z, z, z, z, z, z, z, z, z, z
    known = 0
    if CHUNKS:
        known = whole * BN // chunk * (chunk // BN)
    for part in tl.static_range(0 if CHUNKS else 1, 3):
        begin = 0 if part == 0 else (known if part == 1 else whole)
        end = known if part == 0 else (whole if part == 1 else tiles)
        for i in tl.range(begin, end, num_stages=STAGES if part < 2 else 1):
            s = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)
            mm, a1, a2, a4, a8, a16, y1, y2, y4, y8, su, sq = _tile(
                s, i * BN + ahead, limit, factor, reference, BM, BN, part == 2
            )
            m, r1, r2, r4, r8, r16 = _apart(m, r1, r2, r4, r8, r16, mm, a1, a2, a4, a8, a16)
            x1, x2, x4, x8 = x1 + y1, x2 + y2, x4 + y4, x8 + y8
            if part > 0:
                sums, squares = sums + su, squares + sq

    m, r1, r2, r4, r8, r16 = tl.reduce((m, r1, r2, r4, r8, r16), 1, _apart)
    sums, squares = tl.sum(sums, 1), tl.sum(squares, 1)
    x8 = tl.sum(x8, 1)
    some = limit >= 0
    unit = tl.full([BM], 0.0, tl.float64) + unit_high + unit_low
    base, direct = reference.to(tl.float64), limit + 1 - known * BN
    mean, spread, blurred = moments(sums, squares, direct, base, unit, CHUNKS)
    if CHUNKS:
        if EARLY:
            gdc_wait()  # the sums of the keys lay where the fields go
        along, reach, square = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
        if known > 0:
            place = (b * (hq // groups) + hk).to(tl.int64) * kept + tl.minimum(known * BN // chunk, kept) - 1
            along, reach, square = with_sums(q_desc, parts, centre, b, h, block, place, BM, D)
        mean, spread, doubtful = merged(mean, spread, direct, limit + 1, along, reach, square, unit * factor)
        blurred |= doubtful
    blurred &= limit > 0
    fine = ((m <= LIMIT) & (m > 1.0 / LIMIT) | (some == 0)) & (tl.abs(x8) < float("inf")) & (blurred == 0)
    tl.store(flags + head.to(tl.int64) * blocks + block, tl.max(tl.where(fine | (inside == 0), 0, 1), 0).to(tl.int8))
    m = tl.where(some, m, 1.0)
    top, share = tl.log2(m).to(tl.float64), 1.0 / m.to(tl.float64)
    count = tl.where(some, limit + 1, 0).to(tl.float64)
    n = total_rows.to(tl.int64)
    at = head.to(tl.int64) * queries + rows
    for k in tl.static_range(4):
        if k == 0:
            rest, rest2, cross = r1, r2, tl.sum(x1, 1)
        elif k == 1:
            rest, rest2, cross = r2, r4, tl.sum(x2, 1)
        elif k == 2:
            rest, rest2, cross = r4, r8, tl.sum(x4, 1)
        else:
            rest, rest2, cross = r8, r16, x8
        others = rest.to(tl.float64) * share
        to = fields + k * 8 * n + at
        tl.store(to, count, mask=inside)
        tl.store(to + n, mean, mask=inside)
        tl.store(to + 2 * n, spread, mask=inside)
        tl.store(to + 3 * n, tl.where(some, (base + top) * unit, NOTHING), mask=inside)
        tl.store(to + 4 * n, others, mask=inside)
        tl.store(to + 5 * n, rest2.to(tl.float64) * share * share, mask=inside)
        tl.store(to + 6 * n, (cross.to(tl.float64) * share - top * (1.0 + others)) * unit, mask=inside)
        tl.store(to + 7 * n, tl.where(some, sink.to(tl.float64) * unit * factor, NOTHING), mask=inside)
        tl.store(first_key + k * n + at, tl.where(some, 0, NO_KEY), mask=inside)
        tl.store(broken + k * n + at, inside == 0, mask=inside)
        unit, share, mean, spread = unit * 2.0, share * share, mean * 2.0, spread * 4.0
