# mypy: ignore-errors
# ruff: noqa: PLR0915
"""The rows that `dense_kernel` cannot be trusted with, done again: nearly frozen ones, and those out of its range.

In two passes over the keys. The first finds the largest logit and the mean; the second takes weights relative to the one
and moments about the other, so nothing overflows and no digits cancel. Both are products q·k, to be scaled after they have been
subtracted: the largest weight is then 1 whatever the scale. It is kept apart from the sums, as in `products_kernel`, and every
tile has sums of its own, so that many small numbers are not lost beside a large one.

Few rows of a block are such rows, as a rule, and where attention is saturated there are some in every block. So a program
looks through SPAN rows for those that `finish_kernel` has marked, and gathers them, BM at a time.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from isotherm.ops.triton.dense_kernel import heads_of
from isotherm.ops.triton.fields_kernel import LN2, keep_fields
from isotherm.ops.triton.lanes import HIDDEN, LANES, first_columns, halves, highest, ordered


@triton.jit
def _extent(s, column, limit, sign, top, total, BM: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr):
    """Per lane [BM, 8], with a tile's part: the largest ±q·k, and their sum."""
    if BN > LANES:
        s, rest = halves(s, BM, BN)
        top, total = _extent(s, column, limit, sign, top, total, BM, BN // 2, MASKED)
        top, total = _extent(rest, column + BN // 2, limit, sign, top, total, BM, BN // 2, MASKED)
    else:
        t = s * sign
        u = t
        if MASKED:
            seen = column + tl.arange(0, LANES)[None, :] <= limit[:, None]
            t, u = tl.where(seen, t, float("-inf")), tl.where(seen, t, 0.0)
        top, total = tl.maximum(top, t), total + u
    return top, total


@triton.jit
def _look(s, column, limit, sign, factor, peak, centre, top, rest, rest2, cross, total, squares, BM: tl.constexpr,
          BN: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Per lane, with a tile's part: the largest exponent; of the others Σw, Σw², Σwt; Σu and Σu² about the centre."""
    if BN > LANES:
        s, later = halves(s, BM, BN)
        top, rest, rest2, cross, total, squares = _look(
            s, column, limit, sign, factor, peak, centre, top, rest, rest2, cross, total, squares, BM, BN // 2, MASKED
        )
        top, rest, rest2, cross, total, squares = _look(
            later, column + BN // 2, limit, sign, factor, peak, centre, top, rest, rest2, cross, total, squares, BM,
            BN // 2, MASKED,
        )  # fmt: skip
    else:
        t, u = (s * sign - peak[:, None]) * factor, s * sign - centre[:, None]
        if MASKED:
            seen = column + tl.arange(0, LANES)[None, :] <= limit[:, None]
            t, u = tl.where(seen, t, HIDDEN), tl.where(seen, u, 0.0)
        under, top = ordered(top, t)
        w = tl.exp2(under)
        rest, rest2, cross = rest + w, tl.fma(w, w, rest2), tl.fma(w, under, cross)
        total, squares = total + u, tl.fma(u, u, squares)
    return top, rest, rest2, cross, total, squares


@triton.jit(do_not_specialize=["queries", "keys", "hq", "groups", "total_rows", "split_keys"])
def careful(q_ptr, k_desc, v_desc, rows_ptr, positions, marks, fields, first_key, broken, out_ptr, lse_ptr, q_sb, q_sh, q_st,
            queries, keys, hq, groups, factor, unit_high, unit_low, total_rows, split_keys,
            D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SPAN: tl.constexpr, CAUSAL: tl.constexpr,
            OUTPUT: tl.constexpr, ROWS: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """The marked rows among SPAN of a head, BM of them in each turn; `program_id(1)` programs take turns, (2) is the split."""
    if EARLY:
        gdc_wait()
    spans = tl.cdiv(queries, SPAN)
    head, span, split = tl.program_id(0) // spans, tl.program_id(0) % spans, tl.program_id(2).to(tl.int64)
    n, home = total_rows.to(tl.int64), head.to(tl.int64) * queries
    every = span * SPAN + tl.arange(0, SPAN)
    marked = tl.load(marks + split * n + home + every, mask=every < queries, other=0).to(tl.int32)
    if tl.max(marked, 0) == 0:
        return
    upto = tl.cumsum(marked, 0)
    many = tl.max(upto, 0)
    b, h, hk = heads_of(head, hq, groups)
    begin = tl.program_id(2) * split_keys
    wide = tl.arange(0, D)
    unit = tl.full([BM], 0.0, tl.float64) + unit_high + unit_low
    sign = tl.where(factor > 0, 1.0, -1.0)
    factor, scale = factor * sign, unit * factor * sign
    for turn in range(tl.program_id(1) * BM, many, tl.num_programs(1) * BM):
        wanted = turn + tl.arange(0, BM)
        inside = wanted < many
        # A row's place is the number of rows before it: those up to which there are not yet enough marked ones.
        row = span * SPAN + tl.sum((upto[None, :] <= tl.minimum(wanted, many - 1)[:, None]).to(tl.int32), 1)
        source = row.to(tl.int64)
        if ROWS:
            source = tl.load(rows_ptr + source)
        limit = tl.full([BM], 0, tl.int32) + (tl.minimum(keys, begin + split_keys) - 1)
        if CAUSAL:
            limit = tl.minimum(limit, tl.load(positions + source).to(tl.int32))
        whole = begin // BN + tl.maximum(tl.min(limit, 0) + 1 - begin, 0) // BN
        tiles = (tl.max(limit, 0) + BN) // BN
        q_at = q_ptr + b.to(tl.int64) * q_sb + h.to(tl.int64) * q_sh + source[:, None] * q_st
        q = tl.load(q_at + wide[None, :])
        z = tl.zeros([BM, LANES], tl.float32)
        sink, top, total = tl.zeros([BM], tl.float32), z + float("-inf"), z
        for part in tl.static_range(2):
            for i in range(begin // BN if part == 0 else whole, whole if part == 0 else tiles):
                s = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)
                if i * BN == begin:
                    few = first_columns(s, BM, BN)
                    sink = tl.sum(tl.where(tl.arange(0, 16)[None, :] == 0, few, 0.0), 1)
                top, total = _extent(s, i * BN, limit, sign, top, total, BM, BN, part == 1)
        count = limit + 1 - begin
        peak, centre = tl.max(top, 1), tl.sum(total, 1) / tl.maximum(count, 1).to(tl.float32)
        top, rest, rest2, cross, total, squares = z + HIDDEN, z, z, z, z, z
        o = tl.zeros([BM, D], tl.float32)
        for part in tl.static_range(2):
            for i in range(begin // BN if part == 0 else whole, whole if part == 0 else tiles):
                s = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)
                top, w1, w2, wt, u1, u2 = _look(
                    s, i * BN, limit, sign, factor, peak, centre, top, z, z, z, z, z, BM, BN, part == 1
                )
                rest, rest2, cross, total, squares = rest + w1, rest2 + w2, cross + wt, total + u1, squares + u2
                if OUTPUT:
                    seen = i * BN + tl.arange(0, BN)[None, :] <= limit[:, None]
                    w = tl.where(seen, tl.exp2((s * sign - peak[:, None]) * factor), 0.0)
                    v = v_desc.load([b, hk, i * BN, 0]).reshape(BN, D)
                    o = tl.dot(w.to(v.dtype), v, o)
        # The largest of all lanes stays apart, those of the other lanes join the sums.
        under = tl.where(highest(top), HIDDEN, top)
        w = tl.exp2(under)
        rest = tl.sum(rest + w, 1).to(tl.float64)
        rest2 = tl.sum(tl.fma(w, w, rest2), 1).to(tl.float64)
        cross = tl.sum(tl.fma(w, under, cross), 1).to(tl.float64) * unit
        total, seen = tl.sum(total, 1).to(tl.float64), tl.maximum(count, 1).to(tl.float64)
        spread = tl.maximum(tl.sum(squares, 1).to(tl.float64) - total * total / seen, 0.0) * scale * scale
        keep_fields(
            fields, first_key, broken, split, n, home + row, inside, count.to(tl.float64),
            (centre.to(tl.float64) + total / seen) * scale, spread, peak.to(tl.float64) * scale, rest, rest2, cross,
            sink.to(tl.float64) * sign * scale, tl.full([BM], 0, tl.int64) + begin, (tl.abs(cross) < float("inf")) == 0,
        )  # fmt: skip
        if OUTPUT:
            weight = (1.0 + rest).to(tl.float32)
            out_at = out_ptr + (home + row)[:, None] * D + wide[None, :]
            tl.store(out_at, (o / weight[:, None]).to(out_ptr.dtype.element_ty), mask=inside[:, None])
            lse = peak.to(tl.float64) * scale + tl.log2(1.0 + rest.to(tl.float32)).to(tl.float64) * LN2
            tl.store(lse_ptr + home + row, lse.to(tl.float32), mask=inside)
