# mypy: ignore-errors
"""What `dense_kernel` does, without the output, at several scales in one pass (`sums_kernel`)."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from isotherm.ops.triton.dense_kernel import block_of, heads_of, reach_of, with_sums
from isotherm.ops.triton.finish_kernel import merged, moments
from isotherm.ops.triton.lanes import HIDDEN, LANES, PAIRS, first_columns, highest, ordered, parted
from isotherm.ops.triton.sums_kernel import add, keep, no_sums


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
def _reference_of(s, limit, factor, most, BM: tl.constexpr, BN: tl.constexpr, BETWEEN: tl.constexpr):
    """What weights are relative to, and the first logit, in the lanes that the sums are in: tiles would be moved otherwise.

    The largest of the first 16 logits, as in `dense_kernel`. Where logits are as large as without 1/√d, the largest of
    thousands is too far above that for weights that are squared: there it is taken for as far above as the smallest of the
    16 is below their mean, if that is more than a quarter of the room there is, and for four fifths of the room at most.
    If BETWEEN, the largest that another lane holds: the very largest is kept apart, and may be far above all that is summed.
    """
    first, largest, smallest, total = _few(first_columns(s, BM, BN), 0, limit, BM, 16)
    sink = tl.sum(tl.where(tl.arange(0, PAIRS)[None, :] == 0, first, 0.0), 1)
    count = tl.minimum(tl.maximum(limit + 1, 1), 16).to(tl.float32)
    above = (tl.sum(total, 1) / count - tl.min(smallest, 1)) * factor
    above = tl.where(above > 0.25 * most, tl.minimum(above, 0.8 * most), 0.0)
    second = tl.max(tl.where(highest(largest), float("-inf"), largest), 1)
    largest = tl.max(largest, 1)
    if BETWEEN:
        largest = tl.where(second > float("-inf"), second, largest)
    return tl.where(largest > float("-inf"), largest * factor + above, 0.0), sink


@triton.jit(do_not_specialize=["queries", "keys", "blocks", "heads", "hq", "groups", "total_rows", "chunk", "kept",
                               "scales"])  # fmt: skip
def products(q_desc, k_desc, fields, first_key, broken, flags, positions, parts, centre, table,
           queries, keys, blocks, heads, hq, groups, factor, unit_high, unit_low, ratios, ratios_low, most, total_rows,
           chunk, kept, scales, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
           CAUSAL: tl.constexpr, CHUNKS: tl.constexpr, EARLY: tl.constexpr, BETWEEN: tl.constexpr, MADE: tl.constexpr,
           TWICE: tl.constexpr):  # fmt: skip
    """One block of BM rows of one head at `scales` scales; `factor` and `unit` are those of ratio 1, the lowest one's."""
    head, block = block_of(CAUSAL)
    if head >= heads:
        return
    b, h, hk = heads_of(head, hq, groups)
    rows = block * BM + tl.arange(0, BM)
    inside, limit = rows < queries, tl.full([BM], 0, tl.int32) + (keys - 1)
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
    state = no_sums(z, TWICE) + (z, z)  # noqa: RUF005
    known = 0
    if CHUNKS:
        known = whole * BN // chunk * (chunk // BN)
    for part in tl.static_range(0 if CHUNKS else 1, 3):
        begin = 0 if part == 0 else (known if part == 1 else whole)
        end = known if part == 0 else (whole if part == 1 else tiles)
        for i in tl.range(begin, end, num_stages=STAGES):
            s = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)
            if i == 0:
                reference, sink = _reference_of(s, limit, factor, most, BM, BN, BETWEEN)
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
    sink, key = sink.to(tl.float64) * unit * factor, tl.zeros([BM], tl.int64)
    fine = keep(
        fields, first_key, broken, 1, 0, n, at, inside, count, mean, spread, peak, sink, key, (top, sums, squares, crosses),
        unit, ratios, ratios_low, table, scales, BETWEEN, MADE, TWICE,
    )  # fmt: skip
    if not BETWEEN:  # weights are too small only where the reference was set above all logits
        fine = (fine | (largest > -most / 16)) & (tl.abs(largest) <= most)
    fine &= (blurred & (limit > 0)) == 0
    flag = tl.max(tl.where(fine | (some == 0) | (inside == 0), 0, 1), 0).to(tl.int8)
    tl.store(flags + head.to(tl.int64) * blocks + block, flag)
