# mypy: ignore-errors
# ruff: noqa: PLR0915
"""Computes again the rows that `fast_finish_kernel` has marked: nearly frozen ones, and those out of the fast pass's range.

It passes over the keys twice. The first pass finds the largest product q·k and the mean; the second takes weights relative
to the largest and moments about the mean, so nothing overflows and no digits cancel. Products are scaled after the
subtraction, so the largest weight is exactly 1 at any scale. The largest weight is kept out of the sums, and every tile is
summed apart, so that many small numbers are not lost beside a large one.

Usually few rows of a block are marked, but in saturated attention almost every block has some. So a program gathers the
marked rows among SPAN rows, and computes BM of them at a time.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from isotherm.ops.triton.shared_kernel import (
    HIDDEN,
    LANES,
    LN2,
    batch_and_heads,
    first_16_columns,
    is_row_max,
    low_high,
    split_halves,
    store_fields,
)


@triton.jit
def _add_max_and_sum(qk, column, last_key, sign, max_qk, sum_qk, BM: tl.constexpr, BN: tl.constexpr,
                     MASKED: tl.constexpr):  # fmt: skip
    """Add a tile to the largest ±q·k and to their sum, per lane [rows, 8]."""
    if BN > LANES:
        qk, later = split_halves(qk, BM, BN)
        max_qk, sum_qk = _add_max_and_sum(qk, column, last_key, sign, max_qk, sum_qk, BM, BN // 2, MASKED)
        max_qk, sum_qk = _add_max_and_sum(later, column + BN // 2, last_key, sign, max_qk, sum_qk, BM, BN // 2, MASKED)
    else:
        for_max = qk * sign
        for_sum = for_max
        if MASKED:
            visible = column + tl.arange(0, LANES)[None, :] <= last_key[:, None]
            for_max, for_sum = tl.where(visible, for_max, float("-inf")), tl.where(visible, for_max, 0.0)
        max_qk, sum_qk = tl.maximum(max_qk, for_max), sum_qk + for_sum
    return max_qk, sum_qk


@triton.jit
def _add_tile(qk, column, last_key, sign, exp2_scale, peak, centre, sums, BM: tl.constexpr, BN: tl.constexpr,
              MASKED: tl.constexpr):  # fmt: skip
    """Add a tile to the sums of each lane [rows, 8]: its largest t; Σw, Σw², Σwt of its other keys; Σu and Σu².

    u = ±q·k − centre is a deviation from the mean.
    """
    if BN > LANES:
        qk, later = split_halves(qk, BM, BN)
        sums = _add_tile(qk, column, last_key, sign, exp2_scale, peak, centre, sums, BM, BN // 2, MASKED)
        sums = _add_tile(later, column + BN // 2, last_key, sign, exp2_scale, peak, centre, sums, BM, BN // 2, MASKED)
    else:
        max_t, rest_w, rest_w2, rest_wt, sum_u, sum_u2 = sums
        t, u = (qk * sign - peak[:, None]) * exp2_scale, qk * sign - centre[:, None]
        if MASKED:
            visible = column + tl.arange(0, LANES)[None, :] <= last_key[:, None]
            t, u = tl.where(visible, t, HIDDEN), tl.where(visible, u, 0.0)
        t, max_t = low_high(max_t, t)
        w = tl.exp2(t)
        rest_w, rest_w2, rest_wt = rest_w + w, tl.fma(w, w, rest_w2), tl.fma(w, t, rest_wt)
        sums = max_t, rest_w, rest_w2, rest_wt, sum_u + u, tl.fma(u, u, sum_u2)
    return sums


@triton.jit(do_not_specialize=["queries", "keys", "hq", "groups", "total_rows", "split_keys"])
def recompute(q_ptr, k_desc, v_desc, rows_ptr, positions, marks, fields, first_key, broken, out_ptr, lse_ptr,
              q_sb, q_sh, q_st, o_sb, o_sh, o_st, queries, keys, hq, groups, exp2_scale, ln2_high, ln2_low, total_rows,
              split_keys, WIDTH: tl.constexpr, WIDTH_V: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr,
              BN: tl.constexpr, SPAN: tl.constexpr, CAUSAL: tl.constexpr, OUTPUT: tl.constexpr, SAMPLED: tl.constexpr,
              OVERLAP: tl.constexpr):  # fmt: skip
    """Compute the marked rows among SPAN rows of a head. Programs along axis 1 take turns; axis 2 is the split."""
    if OVERLAP:
        gdc_wait()
    spans = tl.cdiv(queries, SPAN)
    head, span, split = tl.program_id(0) // spans, tl.program_id(0) % spans, tl.program_id(2).to(tl.int64)
    field_stride, first_row = total_rows.to(tl.int64), head.to(tl.int64) * queries
    candidates = span * SPAN + tl.arange(0, SPAN)
    marked = tl.load(marks + split * field_stride + first_row + candidates, mask=candidates < queries, other=0).to(
        tl.int32
    )  # [SPAN]
    if tl.max(marked, 0) == 0:
        return
    marked_so_far = tl.cumsum(marked, 0)  # [SPAN]
    total_marked = tl.max(marked_so_far, 0)
    b, h, hk = batch_and_heads(head, hq, groups)
    begin = tl.program_id(2) * split_keys
    dims, dims_v = tl.arange(0, D), tl.arange(0, DV)
    ln2 = tl.full([BM], 0.0, tl.float64) + ln2_high + ln2_low
    sign = tl.where(exp2_scale > 0, 1.0, -1.0)
    exp2_scale, scale = exp2_scale * sign, ln2 * exp2_scale * sign
    for turn in range(tl.program_id(1) * BM, total_marked, tl.num_programs(1) * BM):
        wanted = turn + tl.arange(0, BM)
        row_exists = wanted < total_marked
        # The index of the n-th marked row is the number of rows up to which fewer than n + 1 are marked.
        row = span * SPAN + tl.sum(
            (marked_so_far[None, :] <= tl.minimum(wanted, total_marked - 1)[:, None]).to(tl.int32), 1
        )  # [rows]
        query = row.to(tl.int64)
        if SAMPLED:
            query = tl.load(rows_ptr + query)
        last_key = tl.full([BM], 0, tl.int32) + (tl.minimum(keys, begin + split_keys) - 1)
        if CAUSAL:
            last_key = tl.minimum(last_key, tl.load(positions + query).to(tl.int32))
        full_tiles = begin // BN + tl.maximum(tl.min(last_key, 0) + 1 - begin, 0) // BN
        tiles = (tl.max(last_key, 0) + BN) // BN
        q_at = q_ptr + b.to(tl.int64) * q_sb + h.to(tl.int64) * q_sh + query[:, None] * q_st
        q = tl.load(q_at + dims[None, :], mask=(dims < WIDTH)[None, :], other=0.0)  # [rows, d]
        z = tl.zeros([BM, LANES], tl.float32)
        first_qk, max_qk, sum_qk = tl.zeros([BM], tl.float32), z + float("-inf"), z
        # First pass. Part 0: tiles that every row sees in full. Part 1: the others.
        for part in tl.static_range(2):
            for i in range(begin // BN if part == 0 else full_tiles, full_tiles if part == 0 else tiles):
                qk = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)  # [rows, keys]
                if i * BN == begin:
                    first_16 = first_16_columns(qk, BM, BN)
                    first_qk = tl.sum(tl.where(tl.arange(0, 16)[None, :] == 0, first_16, 0.0), 1)
                max_qk, sum_qk = _add_max_and_sum(qk, i * BN, last_key, sign, max_qk, sum_qk, BM, BN, part == 1)
        count = last_key + 1 - begin
        peak, centre = tl.max(max_qk, 1), tl.sum(sum_qk, 1) / tl.maximum(count, 1).to(tl.float32)  # [rows]
        # Second pass.
        max_t, rest_w, rest_w2, rest_wt, sum_u, sum_u2 = z + HIDDEN, z, z, z, z, z  # [rows, 8]
        o = tl.zeros([BM, DV], tl.float32)
        for part in tl.static_range(2):
            for i in range(begin // BN if part == 0 else full_tiles, full_tiles if part == 0 else tiles):
                qk = tl.dot(q, k_desc.load([b, hk, i * BN, 0]).reshape(BN, D).T)  # [rows, keys]
                max_t, tile_w, tile_w2, tile_wt, tile_u, tile_u2 = _add_tile(
                    qk, i * BN, last_key, sign, exp2_scale, peak, centre, (max_t, z, z, z, z, z), BM, BN, part == 1
                )
                rest_w, rest_w2, rest_wt = rest_w + tile_w, rest_w2 + tile_w2, rest_wt + tile_wt
                sum_u, sum_u2 = sum_u + tile_u, sum_u2 + tile_u2
                if OUTPUT:
                    visible = i * BN + tl.arange(0, BN)[None, :] <= last_key[:, None]
                    w = tl.where(visible, tl.exp2((qk * sign - peak[:, None]) * exp2_scale), 0.0)  # [rows, keys]
                    v = v_desc.load([b, hk, i * BN, 0]).reshape(BN, DV)  # [keys, dv]
                    o = tl.dot(w.to(v.dtype), v, o)
        # Reduce the lanes: the largest key of the row stays out of the sums, the largest of the other lanes join them.
        lane_t = tl.where(is_row_max(max_t), HIDDEN, max_t)
        lane_w = tl.exp2(lane_t)
        rest = tl.sum(rest_w + lane_w, 1).to(tl.float64)
        rest2 = tl.sum(tl.fma(lane_w, lane_w, rest_w2), 1).to(tl.float64)
        cross = tl.sum(tl.fma(lane_w, lane_t, rest_wt), 1).to(tl.float64) * ln2
        sum_u, n = tl.sum(sum_u, 1).to(tl.float64), tl.maximum(count, 1).to(tl.float64)
        m2 = tl.maximum(tl.sum(sum_u2, 1).to(tl.float64) - sum_u * sum_u / n, 0.0) * scale * scale
        store_fields(
            fields, first_key, broken, split, field_stride, first_row + row, row_exists, count.to(tl.float64),
            (centre.to(tl.float64) + sum_u / n) * scale, m2, peak.to(tl.float64) * scale, rest, rest2, cross,
            first_qk.to(tl.float64) * sign * scale, tl.full([BM], 0, tl.int64) + begin,
            (tl.abs(cross) < float("inf")) == 0,
        )  # fmt: skip
        if OUTPUT:
            sum_w = (1.0 + rest).to(tl.float32)
            out_at = out_ptr + b.to(tl.int64) * o_sb + h.to(tl.int64) * o_sh + row.to(tl.int64)[:, None] * o_st
            there = row_exists[:, None] & (dims_v < WIDTH_V)[None, :]
            tl.store(out_at + dims_v[None, :], (o / sum_w[:, None]).to(out_ptr.dtype.element_ty), mask=there)
            lse = peak.to(tl.float64) * scale + tl.log2(1.0 + rest.to(tl.float32)).to(tl.float64) * LN2
            tl.store(lse_ptr + first_row + row, lse.to(tl.float32), mask=row_exists)
