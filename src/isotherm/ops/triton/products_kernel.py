# mypy: ignore-errors
# ruff: noqa: RUF005
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

LOST = tl.constexpr(2.0**-96)
"""A smaller sum of weights may lack some that are below the least of float32, 2⁻¹²⁶: 131,072 of them make 2⁻¹³ of this."""


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
def keep_sums(fields, first_key, broken, splits, split, n, at, inside, count, mean, m2, peak, first_logit, key, state, unit,
              ratios, ratios_low, MADE: tl.constexpr, TWICE: tl.constexpr):  # fmt: skip
    """The fields at every scale, of split `split`, from the lanes' sums and what the lowest scale has.

    `unit` turns exponents at the lowest scale into nats. Gives back the sum of all but the largest weight at the highest.
    """
    HELP: tl.constexpr = len(MADE) - len(TWICE)
    top, sums, squares, crosses = state
    # The largest of all lanes stays apart, those of the other lanes join the sums.
    others = tl.where(highest(top), HIDDEN, top)
    sums, squares, crosses = add(others, ratios, sums, squares, crosses, MADE, TWICE)
    some = count > 0
    top = tl.where(some, tl.max(top, 1), 0.0)
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
    return tl.sum(sums[len(TWICE) - 1], 1)


@triton.jit
def _look(s, column, limit, factor, reference, ratios, state, BM: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr,
          MOMENTS: tl.constexpr, MADE: tl.constexpr, TWICE: tl.constexpr):  # fmt: skip
    """The state with a tile's part added, a few columns after another, as in `dense_kernel`.

    Per lane, each [BM, PAIRS]: the largest exponent; the sums of `add` of the others; Σt; Σt².
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
        sums, squares, crosses = add(under, ratios, sums, squares, crosses, MADE, TWICE)
        if MOMENTS:
            total, total2 = total + u, tl.fma(u, u, total2)
        state = top, sums, squares, crosses, total, total2
    return state


@triton.jit
def _few(s, column, limit, BM: tl.constexpr, BN: tl.constexpr):
    """Per lane, each [BM, PAIRS]: its first logit, and of those that the row sees the largest, the smallest and their sum."""
    if BN > PAIRS:
        s, rest = parted(s, BM, BN)
        first, largest, smallest, total = _few(s, column, limit, BM, BN // 2)
        _, high, low, more = _few(rest, column + (BN // 2 if BN > LANES else 1), limit, BM, BN // 2)
        largest, smallest, total = tl.maximum(largest, high), tl.minimum(smallest, low), total + more
    else:
        seen = column + 2 * tl.arange(0, PAIRS)[None, :] <= limit[:, None]
        first, total = s, tl.where(seen, s, 0.0)
        largest, smallest = tl.where(seen, s, float("-inf")), tl.where(seen, s, float("inf"))
    return first, largest, smallest, total


@triton.jit
def _reference_of(s, limit, factor, most, BM: tl.constexpr, BN: tl.constexpr):
    """What weights are relative to, and the first logit, in the lanes that the sums are in: tiles would be moved otherwise.

    The largest of the first 16 logits, as in `dense_kernel`. Where logits are as large as without 1/√d, the largest of
    thousands is too far above that for weights that are squared: there it is taken for as far above as the smallest of the
    16 is below their mean, if that is more than a quarter of the room there is, and for four fifths of the room at most.
    """
    first, largest, smallest, total = _few(first_columns(s, BM, BN), 0, limit, BM, 16)
    sink = tl.sum(tl.where(tl.arange(0, PAIRS)[None, :] == 0, first, 0.0), 1)
    count = tl.minimum(tl.maximum(limit + 1, 1), 16).to(tl.float32)
    above = (tl.sum(total, 1) / count - tl.min(smallest, 1)) * factor
    above = tl.where(above > 0.25 * most, tl.minimum(above, 0.8 * most), 0.0)
    largest = tl.max(largest, 1)
    return tl.where(largest > float("-inf"), largest * factor + above, 0.0), sink


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
    top, sums, squares, crosses = no_sums(z, TWICE)
    state = top, sums, squares, crosses, z, z
    known = 0
    if CHUNKS:
        known = whole * BN // chunk * (chunk // BN)
    for part in tl.static_range(0 if CHUNKS else 1, 3):
        begin = 0 if part == 0 else (known if part == 1 else whole)
        end = known if part == 0 else (whole if part == 1 else tiles)
        for i in tl.range(begin, end, num_stages=STAGES):
            s = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)
            if i == 0:
                reference, sink = _reference_of(s, limit, factor, most, BM, BN)
            state = _look(s, i * BN, limit, factor, reference, ratios, state, BM, BN, part == 2, part > 0, MADE, TWICE)

    top, sums, squares, crosses, total, total2 = state
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
    n, at = total_rows.to(tl.int64), head.to(tl.int64) * queries + rows
    some, largest = limit >= 0, tl.max(top, 1)
    count = tl.where(some, limit + 1, 0).to(tl.float64)
    peak = (base + tl.where(some, largest, 0.0).to(tl.float64)) * unit
    rest = keep_sums(
        fields, first_key, broken, 1, 0, n, at, inside, count, mean, spread, peak, sink.to(tl.float64) * unit * factor,
        tl.zeros([BM], tl.int64), (top, sums, squares, crosses), unit, ratios, ratios_low, MADE, TWICE,
    )  # fmt: skip
    # Where the reference was set above all logits, weights may be too small for float32.
    fine = (tl.abs(largest) <= most) & ((largest > -most / 16) | (rest > LOST)) & ((blurred & (limit > 0)) == 0)
    flag = tl.max(tl.where(fine | (some == 0) | (inside == 0), 0, 1), 0).to(tl.int8)
    tl.store(flags + head.to(tl.int64) * blocks + block, flag)
