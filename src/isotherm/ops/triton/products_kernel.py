# mypy: ignore-errors
# ruff: noqa: PLR0915, RUF005
"""What `dense_kernel` does, without the output, at several scales in one pass.

Where a scale is the sum of two others its weights are the products of theirs, and need no exponential of their own: twice
another, or evenly spaced with the step as a helper. The host says which (`scales.plan`). Σw² at a scale is Σw at twice it,
where that is among them. Each lane keeps its largest exponent apart from its sums, since rows freeze at the upper scales:
the largest weight is then all but a hair of the sum, and the hair is what `RowStats.rest` wants. Of a new exponent and
the largest so far the lower one goes into the sums. With eight exponentials a logit everything waits for these.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from isotherm.ops.triton.dense_kernel import block_of, heads_of, reach_of, with_sums
from isotherm.ops.triton.fields_kernel import NO_KEY, NOTHING, keep_fields
from isotherm.ops.triton.finish_kernel import merged, moments
from isotherm.ops.triton.lanes import HIDDEN, LANES, PAIRS, first_columns, highest, ordered, parted


@triton.jit
def _add(t, ratios, sums, squares, crosses, MADE: tl.constexpr, TWICE: tl.constexpr):
    """The sums with weights 2^(ratio·t) added: at every scale Σw, Σw² where no scale is twice it, and Σwt."""
    HELP: tl.constexpr = len(MADE) - len(TWICE)
    weights, new, new_squares, new_crosses = (), (), (), ()
    for i in tl.static_range(len(MADE)):
        own = t if i == HELP else t * ratios[i]  # the lowest scale's ratio is 1
        w = tl.exp2(own) if MADE[i][0] < 0 else weights[MADE[i][0]] * weights[MADE[i][1]]
        weights = weights + (w,)
        if i >= HELP:
            new, new_crosses = new + (sums[i - HELP] + w,), new_crosses + (tl.fma(w, t, crosses[i - HELP]),)
            old = squares[i - HELP]
            new_squares = new_squares + (tl.fma(w, w, old) if TWICE[i - HELP] < 0 else old,)
    return new, new_squares, new_crosses


@triton.jit
def _look(s, column, limit, factor, reference, ratios, state, BM: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr,
          MOMENTS: tl.constexpr, MADE: tl.constexpr, TWICE: tl.constexpr):  # fmt: skip
    """The state with a tile's part added, a few columns after another, as in `dense_kernel`.

    Per lane, each [BM, PAIRS]: the largest exponent; the sums of `_add` of the others; Σt; Σt².
    """
    if BN > PAIRS:
        s, rest = parted(s, BM, BN)
        state = _look(s, column, limit, factor, reference, ratios, state,
                      BM, BN // 2, MASKED, MOMENTS, MADE, TWICE)  # fmt: skip
        column += BN // 2 if BN > LANES else 1
        state = _look(rest, column, limit, factor, reference, ratios, state,
                      BM, BN // 2, MASKED, MOMENTS, MADE, TWICE)  # fmt: skip
    else:
        top, sums, squares, crosses, total, total2 = state
        t = s * factor - reference[:, None]
        u = t
        if MASKED:
            seen = column + 2 * tl.arange(0, PAIRS)[None, :] <= limit[:, None]
            t = tl.where(seen, t, HIDDEN)
            u = tl.where(seen, t, 0.0)
        under, top = ordered(top, t)
        sums, squares, crosses = _add(under, ratios, sums, squares, crosses, MADE, TWICE)
        if MOMENTS:
            total, total2 = total + u, tl.fma(u, u, total2)
        state = top, sums, squares, crosses, total, total2
    return state


@triton.jit
def _few(s, column, limit, BM: tl.constexpr, BN: tl.constexpr):
    """Per lane, each [BM, PAIRS]: its first logit, and the largest that the row sees."""
    if BN > PAIRS:
        s, rest = parted(s, BM, BN)
        first, largest = _few(s, column, limit, BM, BN // 2)
        _, other = _few(rest, column + (BN // 2 if BN > LANES else 1), limit, BM, BN // 2)
        largest = tl.maximum(largest, other)
    else:
        first = s
        largest = tl.where(column + 2 * tl.arange(0, PAIRS)[None, :] <= limit[:, None], s, float("-inf"))
    return first, largest


@triton.jit
def _reference_of(s, limit, factor, BM: tl.constexpr, BN: tl.constexpr):
    """What `dense_kernel.reference_of` finds, in the lanes that the sums are in: every tile would be moved otherwise."""
    first, largest = _few(first_columns(s, BM, BN), 0, limit, BM, 16)
    sink = tl.sum(tl.where(tl.arange(0, PAIRS)[None, :] == 0, first, 0.0), 1)
    largest = tl.max(largest, 1)
    return tl.where(largest > float("-inf"), largest, 0.0) * factor, sink


@triton.jit(do_not_specialize=["queries", "keys", "blocks", "heads", "hq", "groups", "total_rows", "chunk", "kept"])
def products(q_desc, k_desc, fields, first_key, broken, flags, positions, parts, centre,
           queries, keys, blocks, heads, hq, groups, factor, unit_high, unit_low, ratios, ratios_low, most, total_rows,
           chunk, kept, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr,
           CHUNKS: tl.constexpr, EARLY: tl.constexpr, MADE: tl.constexpr, TWICE: tl.constexpr):  # fmt: skip
    """One block of BM rows of one head at all scales; `factor` and `unit` are those of ratio 1, the lowest scale's."""
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
    z = tl.zeros([BM, PAIRS], tl.float32)
    none = ()
    for _ in tl.static_range(len(TWICE)):
        none = none + (z,)
    state = z + HIDDEN, none, none, none, z, z
    known = 0
    if CHUNKS:
        known = whole * BN // chunk * (chunk // BN)
    for part in tl.static_range(0 if CHUNKS else 1, 3):
        begin = 0 if part == 0 else (known if part == 1 else whole)
        end = known if part == 0 else (whole if part == 1 else tiles)
        for i in tl.range(begin, end, num_stages=STAGES):
            s = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)
            if i == 0:
                reference, sink = _reference_of(s, limit, factor, BM, BN)
            state = _look(s, i * BN, limit, factor, reference, ratios, state, BM, BN, part == 2, part > 0, MADE, TWICE)

    top, sums, squares, crosses, total, total2 = state
    # The largest of all lanes stays apart, those of the other lanes join the sums.
    others = tl.where(highest(top), HIDDEN, top)
    sums, squares, crosses = _add(others, ratios, sums, squares, crosses, MADE, TWICE)
    top = tl.max(top, 1)
    some = limit >= 0
    unit = tl.full([BM], 0.0, tl.float64) + unit_high + unit_low
    base, direct = reference.to(tl.float64), limit + 1 - known * BN
    mean, spread, blurred = moments(tl.sum(total, 1), tl.sum(total2, 1), direct, base, unit, CHUNKS)
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
    HELP: tl.constexpr = len(MADE) - len(TWICE)
    for i in tl.static_range(len(TWICE)):
        w = 1.0 / tl.exp2(tl.where(some, top, 0.0) * ratios[i + HELP]).to(tl.float64)
        ratio = tl.full([BM], 0.0, tl.float64) + ratios[i + HELP] + ratios_low[i + HELP]
        rest, cross = tl.sum(sums[i], 1).to(tl.float64) * w, tl.sum(crosses[i], 1)
        rest2 = tl.sum(squares[i] if TWICE[i] < 0 else sums[TWICE[i]], 1)
        fine &= tl.abs(cross) < float("inf")
        keep_fields(
            fields, first_key, broken, i, n, at, inside, count, mean * ratio, spread * ratio * ratio,
            tl.where(some, peak * ratio, NOTHING), rest, rest2.to(tl.float64) * (w * w),
            (cross.to(tl.float64) * w - double * rest) * unit * ratio, tl.where(some, sink * ratio, NOTHING),
            tl.where(some, 0, NO_KEY), inside == 0,
        )  # fmt: skip
    flag = tl.max(tl.where(fine | (some == 0) | (inside == 0), 0, 1), 0).to(tl.int8)
    tl.store(flags + head.to(tl.int64) * blocks + block, flag)
