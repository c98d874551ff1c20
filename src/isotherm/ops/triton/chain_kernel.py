# mypy: ignore-errors
# ruff: noqa: PLR0912, PLR0915, RUF005
"""What `dense_kernel` does, without the output, at several scales in one pass: chains of scales that double.

Weights at twice a scale are weights squared, so a chain r, 2r, 4r … costs one exponential a logit, and Σw² of one of its
scales is Σw of the next. Each lane keeps its largest exponent apart from its sums, since rows freeze at the upper scales:
the largest weight is then all but a hair of the sum, and the hair is what `RowStats.rest` wants. Of a new exponent and
the largest so far the lower one goes into the sums. With eight chains everything waits for the exponentials.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from isotherm.ops.triton.dense_kernel import block_of, heads_of, reach_of, reference_of, with_sums
from isotherm.ops.triton.fields_kernel import NO_KEY, NOTHING, keep_fields
from isotherm.ops.triton.finish_kernel import merged, moments
from isotherm.ops.triton.lanes import HIDDEN, LANES, halves, highest, ordered


@triton.jit
def _add(t, ratios, sums, crosses, DEPTHS: tl.constexpr):
    """The sums with weights 2^(ratio·t) added: of every chain Σw, Σw², Σw⁴ …, and Σwt, Σw²t …"""
    new, new_crosses = (), ()
    for c in tl.static_range(len(DEPTHS)):
        w = tl.exp2(t) if c == 0 else tl.exp2(t * ratios[c])
        mine, my_crosses = (sums[c][0] + w,), ()
        for k in tl.static_range(tl.constexpr(DEPTHS[c])):
            my_crosses = my_crosses + (tl.fma(w, t, crosses[c][k]),)
            mine = mine + (tl.fma(w, w, sums[c][k + 1]),)
            w = w * w
        new, new_crosses = new + (mine,), new_crosses + (my_crosses,)
    return new, new_crosses


@triton.jit
def _look(s, column, limit, factor, reference, ratios, top, sums, crosses, total, squares, BM: tl.constexpr,
          BN: tl.constexpr, MASKED: tl.constexpr, MOMENTS: tl.constexpr, DEPTHS: tl.constexpr):  # fmt: skip
    """The sums with a tile's part added, eight columns after another, as in `dense_kernel`.

    Per lane, each [BM, 8]: the largest exponent; the sums of `_add` of the others; Σt; Σt².
    """
    if BN > LANES:
        s, rest = halves(s, BM, BN)
        top, sums, crosses, total, squares = _look(
            s, column, limit, factor, reference, ratios, top, sums, crosses, total, squares,
            BM, BN // 2, MASKED, MOMENTS, DEPTHS,
        )  # fmt: skip
        top, sums, crosses, total, squares = _look(
            rest, column + BN // 2, limit, factor, reference, ratios, top, sums, crosses, total, squares,
            BM, BN // 2, MASKED, MOMENTS, DEPTHS,
        )  # fmt: skip
    else:
        t = s * factor - reference[:, None]
        u = t
        if MASKED:
            seen = column + tl.arange(0, LANES)[None, :] <= limit[:, None]
            t = tl.where(seen, t, HIDDEN)
            u = tl.where(seen, t, 0.0)
        under, top = ordered(top, t)
        sums, crosses = _add(under, ratios, sums, crosses, DEPTHS)
        if MOMENTS:
            total, squares = total + u, tl.fma(u, u, squares)
    return top, sums, crosses, total, squares


@triton.jit(do_not_specialize=["queries", "keys", "blocks", "heads", "hq", "groups", "total_rows", "chunk", "kept"])
def chains(q_desc, k_desc, fields, first_key, broken, flags, positions, parts, centre,
           queries, keys, blocks, heads, hq, groups, factor, unit_high, unit_low, ratios, ratios_low, most, total_rows,
           chunk, kept, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr,
           CHUNKS: tl.constexpr, EARLY: tl.constexpr, DEPTHS: tl.constexpr):  # fmt: skip
    """One block of BM rows of one head at every scale `ratio`·2ᵏ of every chain; `factor` and `unit` are those of ratio 1."""
    head, block = block_of(CAUSAL)
    if head >= heads:
        return
    b, h, hk = heads_of(head, hq, groups)
    rows = block * BM + tl.arange(0, BM)
    inside = rows < queries
    limit = tl.full([BM], 0, tl.int32) + (keys - 1)
    seen, whole = keys, keys // BN
    if CAUSAL:
        limit = tl.minimum(limit, tl.load(positions + tl.minimum(rows, queries - 1)).to(tl.int32))
        first, last = reach_of(block, positions, queries, keys, BM)
        seen = tl.maximum(last + 1, 1)
        whole = tl.maximum(first + 1, 0) // BN
    tiles = (seen + BN - 1) // BN
    q = q_desc.load([b, h, block * BM, 0]).reshape(BM, D)
    reference, sink = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    z = tl.zeros([BM, LANES], tl.float32)
    top, total, squares, sums, crosses = z + HIDDEN, z, z, (), ()
    for c in tl.static_range(len(DEPTHS)):
        mine, my_crosses = (z,), ()
        for _ in tl.static_range(tl.constexpr(DEPTHS[c])):
            mine, my_crosses = mine + (z,), my_crosses + (z,)
        sums, crosses = sums + (mine,), crosses + (my_crosses,)
    known = 0
    if CHUNKS:
        known = whole * BN // chunk * (chunk // BN)
    for part in tl.static_range(0 if CHUNKS else 1, 3):
        begin = 0 if part == 0 else (known if part == 1 else whole)
        end = known if part == 0 else (whole if part == 1 else tiles)
        for i in tl.range(begin, end, num_stages=STAGES):
            s = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)
            if i == 0:
                reference, sink = reference_of(s, 0, limit, factor, BM, BN)
            top, sums, crosses, total, squares = _look(
                s, i * BN, limit, factor, reference, ratios, top, sums, crosses, total, squares,
                BM, BN, part == 2, part > 0, DEPTHS,
            )  # fmt: skip

    # The largest of all lanes stays apart, those of the other lanes join the sums.
    sums, crosses = _add(tl.where(highest(top), HIDDEN, top), ratios, sums, crosses, DEPTHS)
    top = tl.max(top, 1)
    some = limit >= 0
    unit = tl.full([BM], 0.0, tl.float64) + unit_high + unit_low
    base, direct = reference.to(tl.float64), limit + 1 - known * BN
    mean, spread, blurred = moments(tl.sum(total, 1), tl.sum(squares, 1), direct, base, unit, CHUNKS)
    if CHUNKS:
        if EARLY:
            gdc_wait()  # the sums of the keys lay where the fields go
        along, reach, square = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
        if known > 0:
            place = (b * (hq // groups) + hk).to(tl.int64) * kept + tl.minimum(known * BN // chunk, kept) - 1
            along, reach, square = with_sums(q_desc, parts, centre, b, h, block, place, BM, D)
        mean, spread, doubtful = merged(mean, spread, direct, limit + 1, along, reach, square, unit * factor)
        blurred |= doubtful
    fine = (tl.abs(top) <= most) & ((blurred & (limit > 0)) == 0)
    n, at = total_rows.to(tl.int64), head.to(tl.int64) * queries + rows
    double = tl.where(some, top, 0.0).to(tl.float64)
    count = tl.where(some, limit + 1, 0).to(tl.float64)
    peak, sink = (base + double) * unit, sink.to(tl.float64) * unit * factor
    place = 0
    for c in tl.static_range(len(DEPTHS)):
        w = 1.0 / tl.exp2(tl.where(some, top, 0.0) * ratios[c]).to(tl.float64)
        ratio = tl.full([BM], 0.0, tl.float64) + ratios[c] + ratios_low[c]
        fine &= tl.abs(tl.sum(crosses[c][0], 1)) < float("inf")
        for k in tl.static_range(tl.constexpr(DEPTHS[c])):
            rest, rest2 = tl.sum(sums[c][k], 1).to(tl.float64) * w, tl.sum(sums[c][k + 1], 1).to(tl.float64) * (w * w)
            cross = tl.sum(crosses[c][k], 1).to(tl.float64) * w - double * rest
            keep_fields(
                fields, first_key, broken, place, n, at, inside, count, mean * ratio, spread * ratio * ratio,
                tl.where(some, peak * ratio, NOTHING), rest, rest2, cross * unit * ratio,
                tl.where(some, sink * ratio, NOTHING), tl.where(some, 0, NO_KEY), inside == 0,
            )  # fmt: skip
            ratio, w, place = ratio * 2.0, w * w, place + 1
    flag = tl.max(tl.where(fine | (some == 0) | (inside == 0), 0, 1), 0).to(tl.int8)
    tl.store(flags + head.to(tl.int64) * blocks + block, flag)
