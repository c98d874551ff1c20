# mypy: ignore-errors
# ruff: noqa: PLR0915
"""What `dense_kernel` does, without the output, at four scales an octave apart: r, 2r, 4r and 8r.

Weights at twice a scale are weights squared, so three of the four exponentials become multiplications, and Σw² of one
scale is Σw of the next. Each lane keeps its largest exponent apart from its sums, since rows freeze at the upper scales:
the largest weight is then all but a hair of the sum, and the hair is what `RowStats.rest` wants. Of a new exponent and
the largest so far the lower one goes into the sums: one exponential a logit, and none of the largest.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from isotherm.ops.triton.dense_kernel import halves, with_sums
from isotherm.ops.triton.finish_kernel import merged, moments

NOTHING = tl.constexpr(-1e300)
NO_KEY = tl.constexpr(9223372036854775807)
HIDDEN = tl.constexpr(-512.0)


@triton.jit
def _ordered(t, u):
    """The lower and the higher; NaN if either is."""
    return tl.minimum(t, u, propagate_nan=tl.PropagateNan.ALL), tl.maximum(t, u, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _apart(t, a, b, c, d, e, x1, x2, x4, x8, t_new, a_new, b_new, c_new, d_new, e_new, y1, y2, y4, y8):
    """Two lanes' sums brought together: the lower of the two largest joins them."""
    under, t = _ordered(t, t_new)
    low = tl.exp2(under)
    low2 = low * low
    low4 = low2 * low2
    low8 = low4 * low4
    return (t, a + a_new + low, b + b_new + low2, c + c_new + low4, d + d_new + low8, e + e_new + low8 * low8,
            x1 + y1 + low * under, x2 + y2 + low2 * under, x4 + y4 + low4 * under, x8 + y8 + low8 * under)  # fmt: skip


@triton.jit
def _look(s, column, limit, factor, reference, top, r1, r2, r4, r8, r16, x1, x2, x4, x8, sums, squares,
          BM: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr, MOMENTS: tl.constexpr):  # fmt: skip
    """The sums with a tile's part added, eight columns after another, as in `dense_kernel`.

    Per lane, each [BM, 8]: the largest exponent t; of the others Σw, Σw², Σw⁴, Σw⁸, Σw¹⁶, Σwt, Σw²t, Σw⁴t, Σw⁸t; Σt; Σt².
    """
    if BN > 8:
        s, rest = halves(s, BM, BN)
        top, r1, r2, r4, r8, r16, x1, x2, x4, x8, sums, squares = _look(
            s, column, limit, factor, reference, top, r1, r2, r4, r8, r16, x1, x2, x4, x8, sums, squares,
            BM, BN // 2, MASKED, MOMENTS,
        )  # fmt: skip
        top, r1, r2, r4, r8, r16, x1, x2, x4, x8, sums, squares = _look(
            rest, column + BN // 2, limit, factor, reference, top, r1, r2, r4, r8, r16, x1, x2, x4, x8, sums, squares,
            BM, BN // 2, MASKED, MOMENTS,
        )  # fmt: skip
    else:
        t = s * factor - reference[:, None]
        u = t
        if MASKED:
            seen = column + tl.arange(0, 8)[None, :] <= limit[:, None]
            t = tl.where(seen, t, HIDDEN)
            u = tl.where(seen, t, 0.0)
        under, top = _ordered(top, t)
        low = tl.exp2(under)
        low2 = low * low
        low4 = low2 * low2
        low8 = low4 * low4
        r1, r2, r4 = r1 + low, tl.fma(low, low, r2), tl.fma(low2, low2, r4)
        r8, r16 = tl.fma(low4, low4, r8), tl.fma(low8, low8, r16)
        x1, x2 = tl.fma(low, under, x1), tl.fma(low2, under, x2)
        x4, x8 = tl.fma(low4, under, x4), tl.fma(low8, under, x8)
        if MOMENTS:
            sums, squares = sums + u, tl.fma(u, u, squares)
    return top, r1, r2, r4, r8, r16, x1, x2, x4, x8, sums, squares


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
    q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)
    few, wide = tl.arange(0, 16), tl.arange(0, D)
    at = k_ptr + b.to(tl.int64) * k_sb + hk.to(tl.int64) * k_sh
    start = tl.dot(q, tl.load(at + tl.minimum(few, keys - 1)[:, None] * k_st + wide[None, :]).T)
    sink = tl.sum(tl.where(few[None, :] == 0, start, 0.0), 1)
    reference = tl.max(tl.where(few[None, :] <= limit[:, None], start, float("-inf")), 1)
    reference = tl.where(reference > float("-inf"), reference, 0.0) * factor
    z = tl.zeros([BM, 8], tl.float32)
    top, r1, r2, r4, r8, r16, x1, x2, x4, x8, sums, squares = z + HIDDEN, z, z, z, z, z, z, z, z, z, z, z
    known = 0
    if CHUNKS:
        known = whole * BN // chunk * (chunk // BN)
    for part in tl.static_range(0 if CHUNKS else 1, 3):
        begin = 0 if part == 0 else (known if part == 1 else whole)
        end = known if part == 0 else (whole if part == 1 else tiles)
        for i in tl.range(begin, end, num_stages=STAGES if part < 2 else 1):
            s = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)
            top, r1, r2, r4, r8, r16, x1, x2, x4, x8, sums, squares = _look(
                s, i * BN, limit, factor, reference, top, r1, r2, r4, r8, r16, x1, x2, x4, x8, sums, squares,
                BM, BN, part == 2, part > 0,
            )  # fmt: skip

    top, r1, r2, r4, r8, r16, x1, x2, x4, x8 = tl.reduce((top, r1, r2, r4, r8, r16, x1, x2, x4, x8), 1, _apart)
    sums, squares = tl.sum(sums, 1), tl.sum(squares, 1)
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
    fine = (tl.abs(top) <= LIMIT) | (some == 0)
    fine &= (tl.abs(x8) < float("inf")) & (blurred == 0)
    tl.store(flags + head.to(tl.int64) * blocks + block, tl.max(tl.where(fine | (inside == 0), 0, 1), 0).to(tl.int8))
    top = tl.where(some, top, 0.0)
    share = 1.0 / tl.exp2(top).to(tl.float64)
    top = top.to(tl.float64)
    count = tl.where(some, limit + 1, 0).to(tl.float64)
    n = total_rows.to(tl.int64)
    at = head.to(tl.int64) * queries + rows
    for k in tl.static_range(4):
        if k == 0:
            rest, rest2, cross = r1, r2, x1
        elif k == 1:
            rest, rest2, cross = r2, r4, x2
        elif k == 2:
            rest, rest2, cross = r4, r8, x4
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
        tl.store(to + 6 * n, (cross.to(tl.float64) * share - top * others) * unit, mask=inside)
        tl.store(to + 7 * n, tl.where(some, sink.to(tl.float64) * unit * factor, NOTHING), mask=inside)
        tl.store(first_key + k * n + at, tl.where(some, 0, NO_KEY), mask=inside)
        tl.store(broken + k * n + at, inside == 0, mask=inside)
        unit, share, mean, spread = unit * 2.0, share * share, mean * 2.0, spread * 4.0
