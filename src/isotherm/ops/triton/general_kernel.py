# mypy: ignore-errors
# ruff: noqa: PLR0915
"""The general kernel: output and row statistics of every problem that the reference takes.

One program computes one block of rows of one head. Its weights are relative to a reference logit that moves when weights
would leave their range, so logits of any size keep their digits. Each tile is summed apart before it joins the running
sums, and the largest weight of each lane is kept out of the sums. The rows may be a sample. The keys of a row may be split
over several programs; `key_splits_kernel` then merges their fields.
"""

import triton
import triton.language as tl

from isotherm.ops.triton.shared_kernel import (
    HIDDEN,
    LANES,
    LN2,
    LOG2E,
    NO_KEY,
    NOTHING,
    is_row_max,
    low_high,
    split_halves,
    store_fields,
)

NO_COLUMN = tl.constexpr(2147483647)
LOWEST = tl.constexpr(-3e38)


@triton.jit
def logits(q, q_low, k, row_scale, bias, softcap, SPLIT_Q: tl.constexpr, BIAS: tl.constexpr, SOFTCAP: tl.constexpr,
           PRECISION: tl.constexpr):  # fmt: skip
    """Return s in nats [rows, keys] of q [rows, d] and k [d, keys]. `q_low` is what rounding q to the keys' type left over."""
    s = tl.dot(q, k, input_precision=PRECISION)  # [rows, keys]
    if SPLIT_Q:
        s = tl.dot(q_low, k, s, input_precision=PRECISION)
    if SOFTCAP:
        # tanh(x) = 1 − 2/(1 + e^2x). Near 0 that difference cancels, so a series replaces it.
        x = s * row_scale[:, None] / softcap
        far = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
        near = x * (1.0 - x * x * (1.0 / 3.0 - x * x * (2.0 / 15.0)))
        s = tl.where(tl.abs(x) < 0.06, near, far) * softcap
        if BIAS:
            s += bias
    else:
        # An explicit FMA: the compiler would contract a bare product with the later subtraction of the reference. The largest
        # logit minus itself would then be its rounding error, which is hundreds for a logit of 1e10.
        s = tl.fma(s, row_scale[:, None], bias)
    return s


@triton.jit
def load_query(q_at, row_exists, dims, D, K_DTYPE: tl.constexpr, SPLIT_Q: tl.constexpr):
    """Return q [rows, d] in the keys' type, what rounding left over [rows, d], and the power of two taken out [rows]."""
    q = tl.load(q_at, mask=row_exists & (dims < D)[None, :], other=0.0)  # [rows, d]
    if SPLIT_Q:
        size = tl.maximum(tl.max(tl.abs(q), 1), 1e-30)  # [rows]
        size = tl.where(size < float("inf"), tl.exp2(tl.ceil(tl.log2(size))), size)
        q = q / size[:, None]
        high = q.to(K_DTYPE)
        return high, (q - high.to(tl.float32)).to(K_DTYPE), size
    return q.to(K_DTYPE), q.to(K_DTYPE), tl.full([q.shape[0]], 1.0, tl.float32)


@triton.jit
def block_rows(index, queries, hq, groups, rows_ptr, BM: tl.constexpr, SAMPLED: tl.constexpr):
    """Return batch, query head, key head and, each [rows], index, existence and query of block `index`."""
    blocks = tl.cdiv(queries, BM)
    head, block = index // blocks, index % blocks
    b, h = (head // hq).to(tl.int64), (head % hq).to(tl.int64)
    row = block * BM + tl.arange(0, BM)
    row_exists = row < queries
    query = row.to(tl.int64)
    if SAMPLED:
        query = tl.load(rows_ptr + row, mask=row_exists, other=0)
    return b, h, h // groups, row, row_exists, query


@triton.jit
def row_bounds(query, row_exists, b, positions, documents, d_half, d_sb, keys, behind, ahead, GEOMETRY: tl.constexpr):
    """Return, each like `query`: the first key that causality, window and document let it see, and the one after its last.

    GEOMETRY is 0 if every row sees every key, 1 if causality and window tell, 2 if documents do, too. Where queries follow
    each other, their bounds ascend.
    """
    begin = query.to(tl.int32) * 0
    end = begin + keys
    if GEOMETRY:
        position = tl.load(positions + query, mask=row_exists, other=0).to(tl.int32)
        begin, end = tl.maximum(begin, position - behind), tl.minimum(end, position + ahead + 1)
    if GEOMETRY == 2:
        documents += b * d_sb + query
        begin = tl.maximum(begin, tl.load(documents, mask=row_exists, other=0).to(tl.int32))
        end = tl.minimum(end, tl.load(documents + d_half, mask=row_exists, other=0).to(tl.int32))
    return begin, end


@triton.jit
def visible_tiles(
    row_exists, begin, end, keys, split_keys, BN: tl.constexpr, GEOMETRY: tl.constexpr, MASK: tl.constexpr
):
    """Return which keys of split `program_id(1)` the rows see by their bounds, and the tiles that hold them.

    begin, end [rows]: the bounds, within this split. edge_tiles: how many tiles some row sees only in
    part; the first tile is always one of them, so that a row's first key is in an edge tile. full_tiles: how many tiles every
    row sees in full. starts, for `load_keys`: the first key, the number of edge tiles before the full ones, and the first key
    of the full tiles.
    """
    first_key, last_key = 0, keys
    if GEOMETRY:
        first_key = tl.min(tl.where(row_exists, begin, NO_COLUMN), 0)
        last_key = tl.max(tl.where(row_exists, end, 0), 0)
    first_key = tl.maximum(first_key // BN * BN, tl.program_id(1) * split_keys)
    last_key = tl.minimum(last_key, (tl.program_id(1) + 1) * split_keys)
    begin, end = tl.maximum(begin, first_key), tl.minimum(end, last_key)
    full_start = (tl.max(tl.where(row_exists, begin, 0), 0) // BN + 1) * BN
    if MASK:  # every tile is an edge tile
        full_start = tl.maximum(full_start, last_key)
    leading = tl.maximum(tl.cdiv(tl.minimum(full_start, last_key) - first_key, BN), 0)
    full_tiles = tl.maximum(tl.min(tl.where(row_exists, end, NO_COLUMN), 0) - full_start, 0) // BN
    edge_tiles = leading + tl.maximum(tl.cdiv(last_key - full_start - full_tiles * BN, BN), 0)
    starts = (first_key, leading, full_start)
    return tl.where(row_exists, begin, 0), tl.where(row_exists, end, 0), edge_tiles, full_tiles, starts


@triton.jit
def load_keys(turn, full_tiles, starts, k_base, k_offsets, k_st, dims, keys, D, BN: tl.constexpr, EDGE: tl.constexpr):
    """Return the first key and the tile [d, keys] of the `turn`-th edge tile or, without EDGE, of the `turn`-th full one."""
    first_key, leading, full_start = starts
    start = full_start + turn * BN
    there = (dims < D)[:, None]
    if EDGE:
        start = tl.where(turn < leading, first_key + turn * BN, full_start + (full_tiles + turn - leading) * BN)
        there &= (start + tl.arange(0, BN) < keys)[None, :]
    return start, tl.load(k_base + start.to(tl.int64) * k_st + k_offsets, mask=there, other=0.0)


@triton.jit
def visible_keys(column, key_exists, begin, end, mask_ptr, mask_rows, m_ss, MASK: tl.constexpr):
    """Return bool [rows, keys]: the key is between `begin` and `end` of the row, and the mask does not hide it.

    MASK is 1 for a mask that all rows share, 2 for one with rows of its own.
    """
    visible = (column[None, :] >= begin[:, None]) & (column[None, :] < end[:, None])  # [rows, keys]
    if MASK == 1:
        visible &= (tl.load(mask_ptr + column.to(tl.int64) * m_ss, mask=key_exists, other=0) != 0)[None, :]
    elif MASK == 2:
        visible &= tl.load(mask_rows + column[None, :].to(tl.int64) * m_ss, mask=visible, other=0) != 0
    return visible


@triton.jit
def exponents(s, visible, reference, room, EDGE: tl.constexpr, MASK: tl.constexpr):
    """Return s with hidden keys at −inf, t [rows, keys], and each [rows]: the tile's largest s, the new reference, its base.

    t = (s − base) · log₂e. The reference moves to the tile's largest logit when weights would exceed 2^room. The base is the
    reference, or 0 as long as a row has seen no key.
    """
    if MASK:  # from here on −inf means a hidden key, so a visible logit of −inf becomes a large negative number
        s = tl.where(s == float("-inf"), LOWEST, s)
    if EDGE:
        s = tl.where(visible, s, float("-inf"))
    tile_max = tl.max(s, 1)  # [rows]
    new = tl.where((tile_max - reference) * LOG2E > room, tile_max, reference)
    base = tl.where(new == float("-inf"), 0.0, new)
    t = (s - base[:, None]) * LOG2E  # [rows, keys]
    if EDGE:
        t = tl.where(visible, t, HIDDEN)
    return s, t, tile_max, new, base


@triton.jit
def no_moments(begin, MASK: tl.constexpr):
    """Return the state of `add_moments` before the first tile."""
    z = tl.zeros_like(begin).to(tl.float32)
    return z, z, z, z + float("-inf"), z, (begin * 0 + NO_COLUMN) if MASK else begin


@triton.jit
def add_moments(moments, s, visible, start, tile_max, begin, end, BN: tl.constexpr, EDGE: tl.constexpr,
                MASK: tl.constexpr):  # fmt: skip
    """Add a tile to count, mean, Σ(s − mean)², largest logit, first logit and first key, each [rows]."""
    count, mean, m2, max_s, first_logit, first_key = moments
    column = start + tl.arange(0, BN)
    # Deviations are about the mean so far; in the first tile about its largest logit.
    centre = tl.where(count > 0, mean, tile_max)
    deviation = s - centre[:, None]  # [rows, keys]
    n = tl.full(begin.shape, BN, tl.float32)  # visible keys of the tile, [rows]
    if EDGE:
        deviation = tl.where(visible, deviation, 0.0)
        n = tl.maximum(tl.minimum(end, start + BN) - tl.maximum(begin, start), 0).to(tl.float32)
    if MASK:  # counted from s and not from `visible`, because s has the layout of the sums
        n = tl.sum(tl.where(s != float("-inf"), 1.0, 0.0), 1)
    sum_deviation = tl.sum(deviation, 1)
    shift = sum_deviation / tl.maximum(n, 1.0)
    share = n / tl.maximum(count + n, 1.0)
    m2 += tl.maximum(tl.sum(deviation * deviation, 1) - sum_deviation * shift, 0.0) + tl.where(
        count > 0, shift * shift * share * count, 0.0
    )
    mean = tl.where(count > 0, mean + shift * share, tl.where(n > 0, centre + shift, 0.0))
    if MASK:
        found = tl.min(tl.where(s != float("-inf"), column[None, :], NO_COLUMN), 1)
        value = tl.sum(tl.where(column[None, :] == found[:, None], s, 0.0), 1)
        first_logit = tl.where(found < first_key, value, first_logit)
        first_key = tl.minimum(first_key, found)
    elif EDGE:
        first_logit += tl.sum(tl.where(column[None, :] == begin[:, None], s, 0.0), 1)
    return count + n, mean, m2, tl.maximum(max_s, tile_max), first_logit, first_key


@triton.jit
def _add_tile(t, w, max_t, max_w, rest_w, rest_w2, rest_wt, BM: tl.constexpr, BN: tl.constexpr):
    """Add a tile to the state of each lane [rows, 8]: its largest t and w, and Σw, Σw², Σwt of its other keys."""
    if BN > LANES:
        t, t_later = split_halves(t, BM, BN)
        w, w_later = split_halves(w, BM, BN)
        max_t, max_w, rest_w, rest_w2, rest_wt = _add_tile(t, w, max_t, max_w, rest_w, rest_w2, rest_wt, BM, BN // 2)
        max_t, max_w, rest_w, rest_w2, rest_wt = _add_tile(
            t_later, w_later, max_t, max_w, rest_w, rest_w2, rest_wt, BM, BN // 2
        )
    else:
        t, max_t = low_high(max_t, t)
        w, max_w = tl.minimum(w, max_w), tl.maximum(w, max_w)
        rest_w, rest_w2, rest_wt = rest_w + w, tl.fma(w, w, rest_w2), tl.fma(w, t, rest_wt)
    return max_t, max_w, rest_w, rest_w2, rest_wt


@triton.jit
def _divisor(sum_w, max_w, V_DTYPE: tl.constexpr):
    """Return what the output is divided by: Σw, with the largest weight rounded as in the product with the values.

    In a frozen row the largest weight is the whole sum, and the output is then that key's value to the last bit.
    """
    return tl.where(sum_w > 0, sum_w + (max_w.to(V_DTYPE).to(tl.float32) - max_w), 1.0)


@triton.jit(do_not_specialize=["queries", "keys", "behind", "ahead", "split_keys", "total_rows", "hq", "groups"])
def attend(q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, positions, documents, rows_ptr, out_ptr, lse_ptr, fields, first_key, broken,
           q_sb, q_sh, q_st, q_sd, k_sb, k_sh, k_st, k_sd, v_sb, v_sh, v_st, v_sd,
           b_sb, b_sh, b_st, b_ss, m_sb, m_sh, m_st, m_ss, d_half, d_sb, o_sb, o_sh, o_st,
           queries, keys, D, DV, hq, groups, behind, ahead, scale, softcap, split_keys, total_rows,
           BM: tl.constexpr, BN: tl.constexpr, PADDED_D: tl.constexpr, PADDED_DV: tl.constexpr, GEOMETRY: tl.constexpr,
           MASK: tl.constexpr, BIAS: tl.constexpr, SOFTCAP: tl.constexpr, SPLIT_Q: tl.constexpr, SAMPLED: tl.constexpr,
           OUTPUT: tl.constexpr, STATS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Compute BM rows of one head over the keys of split `program_id(1)`."""
    K_DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    ROOM: tl.constexpr = 8.0 if v_ptr.dtype.element_ty == tl.float16 else 32.0
    b, h, hk, row, row_exists, query = block_rows(tl.program_id(0), queries, hq, groups, rows_ptr, BM, SAMPLED)
    dims, dims_v, columns = tl.arange(0, PADDED_D), tl.arange(0, PADDED_DV), tl.arange(0, BN)
    q_at = q_ptr + b * q_sb + h * q_sh + query[:, None] * q_st + dims[None, :] * q_sd  # [rows, d]
    q, q_low, size = load_query(q_at, row_exists[:, None], dims, D, K_DTYPE, SPLIT_Q)
    row_scale = size * scale  # [rows]
    # One 64-bit address a tile and 32-bit offsets within it: a tile of 64-bit addresses would fill the registers.
    k_base, v_base = k_ptr + b * k_sb + hk * k_sh, v_ptr + b * v_sb + hk * v_sh
    k_offsets = dims[:, None] * k_sd + columns[None, :] * k_st  # [d, keys]
    v_offsets = columns[:, None] * v_st + dims_v[None, :] * v_sd  # [keys, dv]
    bias_ptr, mask_ptr = bias_ptr + b * b_sb + h * b_sh, mask_ptr + b * m_sb + h * m_sh
    bias_rows, mask_rows = bias_ptr + query[:, None] * b_st, mask_ptr + query[:, None] * m_st  # [rows, 1]

    begin, end = row_bounds(query, row_exists, b, positions, documents, d_half, d_sb, keys, behind, ahead, GEOMETRY)
    begin, end, edge_tiles, full_tiles, starts = visible_tiles(
        row_exists, begin, end, keys, split_keys, BN, GEOMETRY, MASK
    )
    reference, moments = tl.full([BM], float("-inf"), tl.float32), no_moments(begin, MASK)
    z, sum_w, max_s = tl.zeros([BM, LANES], tl.float32), tl.zeros([BM], tl.float32), reference
    max_t, max_w, rest_w, rest_w2, rest_wt = z + HIDDEN, z, z, z, z  # [rows, 8]
    o = tl.zeros([BM, PADDED_DV], tl.float32)  # [rows, dv]
    # Part 0: edge tiles. Part 1: full tiles, which need no test of what is visible.
    for part in tl.static_range(1 if MASK else 2):
        for turn in range(edge_tiles if part == 0 else full_tiles):
            start, k = load_keys(
                turn, full_tiles, starts, k_base, k_offsets, k_st, dims, keys, D, BN, part == 0
            )  # k [d, keys]
            column = start + columns
            key_exists = column < keys
            bias, visible = 0.0, visible_keys(column, key_exists, begin, end, mask_ptr, mask_rows, m_ss, MASK)
            if BIAS == 1:  # [1, keys]
                at = bias_ptr + column.to(tl.int64) * b_ss
                bias = tl.load(at, mask=key_exists, other=0.0).to(tl.float32)[None, :]
            elif BIAS == 2:  # [rows, keys]
                at = bias_rows + column[None, :].to(tl.int64) * b_ss
                bias = tl.load(at, mask=visible if part == 0 else row_exists[:, None], other=0.0).to(tl.float32)
            s = logits(q, q_low, k, row_scale, bias, softcap, SPLIT_Q, BIAS, SOFTCAP, PRECISION)  # [rows, keys]
            s, t, tile_max, new, base = exponents(s, visible, reference, ROOM, part == 0, MASK)
            rescale = tl.exp2((reference - base) * LOG2E)  # old weights are relative to the old reference; [rows]
            w = tl.exp2(t)  # [rows, keys]
            if STATS:
                shift = tl.where(reference == float("-inf"), 0.0, (reference - base) * LOG2E)[:, None]
                by = rescale[:, None]
                max_t, max_w, rest_wt, rest_w, rest_w2 = (
                    max_t + shift,
                    max_w * by,
                    (rest_wt + shift * rest_w) * by,
                    rest_w * by,
                    rest_w2 * by * by,
                )
                max_t, max_w, tile_w, tile_w2, tile_wt = _add_tile(t, w, max_t, max_w, z, z, z, BM, BN)
                rest_w, rest_w2, rest_wt = rest_w + tile_w, rest_w2 + tile_w2, rest_wt + tile_wt
                moments = add_moments(moments, s, visible, start, tile_max, begin, end, BN, part == 0, MASK)
            else:
                sum_w, max_s = sum_w * rescale + tl.sum(w, 1), tl.maximum(max_s, tile_max)
            if OUTPUT:
                v_at = v_base + start.to(tl.int64) * v_st + v_offsets
                v = tl.load(
                    v_at,
                    mask=key_exists[:, None] & (dims_v < DV)[None, :] if part == 0 else (dims_v < DV)[None, :],
                    other=0.0,
                )  # [keys, dv]
                o = tl.dot(w.to(v.dtype), v, o * rescale[:, None], input_precision=PRECISION)
            reference = new

    # Reduce the lanes: the largest key of the row stays out of the sums, the largest of the other lanes join them.
    if STATS:
        largest, row_max_t, row_max_w = is_row_max(max_t), tl.max(max_t, 1).to(tl.float64), tl.max(max_w, 1)
        lane_w, lane_t = tl.where(largest, 0.0, max_w), tl.where(largest, HIDDEN, max_t)
        rest_w, rest_w2 = tl.sum(rest_w + lane_w, 1), tl.sum(tl.fma(lane_w, lane_w, rest_w2), 1)
        rest_wt = tl.sum(tl.fma(lane_w, lane_t, rest_wt), 1)
        sum_w = row_max_w + rest_w
    else:
        row_max_w = tl.exp2((max_s - reference) * LOG2E)
    at = (b * hq + h) * queries + row
    if OUTPUT:
        o = o / _divisor(sum_w, row_max_w, v_ptr.dtype.element_ty)[:, None]
        out_at = out_ptr + b * o_sb + h * o_sh + row.to(tl.int64)[:, None] * o_st + dims_v[None, :]
        tl.store(out_at, o.to(out_ptr.dtype.element_ty), mask=row_exists[:, None] & (dims_v < DV)[None, :])
        lse = reference.to(tl.float64) + tl.log2(tl.where(sum_w > 0, sum_w, 1.0)).to(tl.float64) * LN2
        tl.store(lse_ptr + at, tl.where(sum_w == 0, float("-inf"), lse.to(tl.float32)), mask=row_exists)
    if STATS:
        count, mean, m2, max_s, first_logit, first = moments
        field_stride, has_keys = total_rows.to(tl.int64), count > 0
        # From weights relative to the reference to weights relative to the largest.
        inverse = 1.0 / tl.where(row_max_w > 0, row_max_w, 1.0).to(tl.float64)
        rest = rest_w.to(tl.float64) * inverse
        cross = rest_wt.to(tl.float64) * inverse - tl.where(has_keys, row_max_t, 0.0) * rest
        # NaN or Inf among the logits makes `cross` NaN.
        store_fields(
            fields, first_key, broken, tl.program_id(1).to(tl.int64), field_stride, at, row_exists, count.to(tl.float64),
            mean.to(tl.float64), m2.to(tl.float64), tl.where(has_keys, max_s.to(tl.float64), NOTHING), rest,
            rest_w2.to(tl.float64) * inverse * inverse, cross * LN2,
            tl.where(has_keys, first_logit.to(tl.float64), NOTHING),
            tl.where(has_keys, first.to(tl.int64), NO_KEY), (tl.abs(cross) < float("inf")) == 0,
        )  # fmt: skip
