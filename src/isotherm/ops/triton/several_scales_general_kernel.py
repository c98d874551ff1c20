# mypy: ignore-errors
# ruff: noqa: RUF005, SIM102
"""The general kernel at several scales: statistics without output, bias and cap, from one pass over q·kᵀ.

Logits, reference, moments and first logit are those at the lowest scale. `several_scales_sums_kernel` makes the weights at
all scales of them, in eight lanes a row. The reference has less room than with one scale, because weights must stay in
range at the highest scale.
"""

import triton
import triton.language as tl

from isotherm.ops.triton.general_kernel import (
    add_moments,
    block_rows,
    exponents,
    load_keys,
    load_query,
    logits,
    no_moments,
    row_bounds,
    visible_keys,
    visible_tiles,
)
from isotherm.ops.triton.several_scales_sums_kernel import add_weights, no_sums, store_scales, weights_at_scales
from isotherm.ops.triton.shared_kernel import LANES, LN2, LOG2E, low_high, split_halves


@triton.jit
def _add_tile(t, state, ratios, BM: tl.constexpr, BN: tl.constexpr, FACTORS: tl.constexpr, DOUBLES: tl.constexpr):
    """Add a tile of exponents to the state of the lanes, each part of it [rows, 8]."""
    if BN > LANES:
        t, later = split_halves(t, BM, BN)
        state = _add_tile(t, state, ratios, BM, BN // 2, FACTORS, DOUBLES)
        state = _add_tile(later, state, ratios, BM, BN // 2, FACTORS, DOUBLES)
    else:
        max_t, sum_w, sum_w2, sum_wt = state
        t, max_t = low_high(max_t, t)
        sum_w, sum_w2, sum_wt = add_weights(t, ratios, sum_w, sum_w2, sum_wt, FACTORS, DOUBLES)
        state = max_t, sum_w, sum_w2, sum_wt
    return state


@triton.jit
def _move_reference(state, shift, ratios, FACTORS: tl.constexpr, DOUBLES: tl.constexpr):
    """Return the state relative to another reference, `shift` [rows] below the old one."""
    max_t, sum_w, sum_w2, sum_wt = state
    weights, shift = weights_at_scales(shift, ratios, FACTORS, DOUBLES), shift[:, None]
    new_w, new_w2, new_wt = (), (), ()
    for i in tl.static_range(len(DOUBLES)):
        by = weights[i][:, None]
        new_w, new_wt = new_w + (sum_w[i] * by,), new_wt + (tl.fma(sum_w[i], shift, sum_wt[i]) * by,)
        new_w2 = new_w2 + (sum_w2[i] * by * by if DOUBLES[i] < 0 else sum_w2[i],)
    return max_t + shift, new_w, new_w2, new_wt


@triton.jit(do_not_specialize=["queries", "keys", "behind", "ahead", "split_keys", "splits", "total_rows", "hq", "groups",
                               "scales"])  # fmt: skip
def general_scales(
        q_ptr, k_ptr, mask_ptr, positions, documents, rows_ptr, flags, fields, first_key, broken,
        q_sb, q_sh, q_st, q_sd, k_sb, k_sh, k_st, k_sd, m_sb, m_sh, m_st, m_ss, d_half, d_sb,
        queries, keys, D, hq, groups, behind, ahead, scale, ratios, ratios_low, room, split_keys, splits, total_rows,
        table, scales, BM: tl.constexpr, BN: tl.constexpr, PADDED_D: tl.constexpr, FACTORS: tl.constexpr,
        DOUBLES: tl.constexpr, GEOMETRY: tl.constexpr, MASK: tl.constexpr, SPLIT_Q: tl.constexpr, SAMPLED: tl.constexpr,
        FLAGGED: tl.constexpr, INTERPOLATE: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Compute BM rows of one head over the keys of split `program_id(1)`. `scale` is the lowest of the scales.

    With FLAGGED, only blocks with a flag are computed. With INTERPOLATE, blocks to be computed again get a flag.
    """
    K_DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    index, split = tl.program_id(0), tl.program_id(1).to(tl.int64)
    flags += split * tl.num_programs(0) + index
    if FLAGGED:
        if tl.load(flags) == 0:
            return
    b, h, hk, row, row_exists, query = block_rows(index, queries, hq, groups, rows_ptr, BM, SAMPLED)
    dims, columns = tl.arange(0, PADDED_D), tl.arange(0, BN)
    q_at = q_ptr + b * q_sb + h * q_sh + query[:, None] * q_st + dims[None, :] * q_sd  # [rows, d]
    q, q_low, size = load_query(q_at, row_exists[:, None], dims, D, K_DTYPE, SPLIT_Q)
    k_base = k_ptr + b * k_sb + hk * k_sh
    k_offsets = dims[:, None] * k_sd + columns[None, :] * k_st  # [d, keys]
    mask_ptr += b * m_sb + h * m_sh
    mask_rows = mask_ptr + query[:, None] * m_st  # [rows, 1]

    begin, end = row_bounds(query, row_exists, b, positions, documents, d_half, d_sb, keys, behind, ahead, GEOMETRY)
    begin, end, edge_tiles, full_tiles, starts = visible_tiles(
        row_exists, begin, end, keys, split_keys, BN, GEOMETRY, MASK
    )
    reference, moments = tl.full([BM], float("-inf"), tl.float32), no_moments(begin, MASK)
    state = no_sums(tl.zeros([BM, LANES], tl.float32), DOUBLES)
    for part in tl.static_range(1 if MASK else 2):
        for turn in range(edge_tiles if part == 0 else full_tiles):
            start, k = load_keys(
                turn, full_tiles, starts, k_base, k_offsets, k_st, dims, keys, D, BN, part == 0
            )  # k [d, keys]
            column = start + columns
            visible = visible_keys(column, column < keys, begin, end, mask_ptr, mask_rows, m_ss, MASK)
            s = logits(q, q_low, k, size * scale, 0.0, 0.0, SPLIT_Q, 0, False, PRECISION)  # [rows, keys]
            s, t, tile_max, new, base = exponents(s, visible, reference, room, part == 0, MASK)
            shift = tl.where(reference == float("-inf"), 0.0, (reference - base) * LOG2E)
            state = _add_tile(
                t, _move_reference(state, shift, ratios, FACTORS, DOUBLES), ratios, BM, BN, FACTORS, DOUBLES
            )
            moments = add_moments(moments, s, visible, start, tile_max, begin, end, BN, part == 0, MASK)
            reference = new

    count, mean, m2, peak, first_logit, first = moments
    field_stride, at, ln2 = total_rows.to(tl.int64), (b * hq + h) * queries + row, tl.full([BM], LN2, tl.float64)
    count, mean, m2, key = count.to(tl.float64), mean.to(tl.float64), m2.to(tl.float64), first.to(tl.int64)
    peak, first_logit = peak.to(tl.float64), first_logit.to(tl.float64)
    fine = store_scales(
        fields, first_key, broken, splits, split, field_stride, at, row_exists, count, mean, m2, peak, first_logit, key,
        state, ln2, ratios, ratios_low, table, scales, INTERPOLATE, FACTORS, DOUBLES,
    )  # fmt: skip
    if INTERPOLATE:
        tl.store(flags, tl.max(tl.where(fine | (row_exists == 0), 0, 1), 0).to(tl.int8))
