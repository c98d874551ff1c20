# mypy: ignore-errors
"""Gradients of everything that `general_kernel` computes. The weights are computed again from lse.

One kernel owns rows (d_q, d_bias), the other owns keys (d_k, d_v). Each sum has one owner, so results do not depend on the
order in which programs run. Only a bias that several rows or heads share is added to atomically.
"""

import triton
import triton.language as tl

from isotherm.ops.triton.general_kernel import load_query, logits, row_bounds
from isotherm.ops.triton.shared_kernel import LOG2E


@triton.jit
def _load_rows(q_ptr, d_out, lse_ptr, delta_ptr, q_sb, q_sh, q_st, q_sd, b, h, query, row_exists, at, dims, dims_v, D, DV,
               scale, K_DTYPE: tl.constexpr, SPLIT_Q: tl.constexpr):  # fmt: skip
    """Return q and its remainder [rows, d], d_o [rows, dv] and, each [rows]: scale, lse, whether it has keys, delta."""
    q_at = q_ptr + b * q_sb + h * q_sh + query * q_st + dims[None, :] * q_sd
    q, q_low, size = load_query(q_at, row_exists[:, None], dims, D, K_DTYPE, SPLIT_Q)
    row_scale = size * scale
    there = row_exists[:, None] & (dims_v < DV)[None, :]  # [rows, dv]
    d_o = tl.load(d_out + at[:, None] * DV + dims_v[None, :], mask=there, other=0.0).to(K_DTYPE)
    lse = tl.load(lse_ptr + at, mask=row_exists, other=float("-inf"))
    has_keys = lse > float("-inf")
    lse = tl.where(has_keys, lse, 0.0)
    delta = tl.load(delta_ptr + at, mask=row_exists, other=0.0)
    return q, q_low, d_o, row_scale, lse, has_keys, delta


@triton.jit
def _visible_keys(mask_ptr, m_sb, m_sh, m_st, m_ss, b, h, query, key, column, begin, end, row_exists, has_keys,
                  key_exists, GEOMETRY: tl.constexpr, MASK: tl.constexpr):  # fmt: skip
    """Return bool [rows, keys]: the bounds of the row and the mask let it see the key."""
    visible = key_exists[None, :] & row_exists[:, None] & has_keys[:, None]
    if GEOMETRY:
        visible &= (column[None, :] >= begin[:, None]) & (column[None, :] < end[:, None])
    if MASK:
        visible &= tl.load(mask_ptr + b * m_sb + h * m_sh + query * m_st + key * m_ss, mask=visible, other=0) != 0
    return visible


@triton.jit
def _first_row_beyond(key, queries, b, positions, documents, d_half, d_sb, keys, behind, ahead, GEOMETRY: tl.constexpr,
                      ENDS: tl.constexpr):  # fmt: skip
    """Return the first row that ends after `key` (ENDS), or that begins after it: bounds ascend. `queries` if none does."""
    low, high = key * 0, key * 0 + queries
    while low < high:
        middle = (low + high) // 2
        begin, end = row_bounds(middle, True, b, positions, documents, d_half, d_sb, keys, behind, ahead, GEOMETRY)
        if (end if ENDS else begin) > key:
            high = middle
        else:
            low = middle + 1
    return low


@triton.jit
def _logit_gradients(q, q_low, k, v, d_o, row_scale, bias, softcap, visible, lse, delta, SPLIT_Q: tl.constexpr,
                     BIAS: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Return, each [rows, keys]: the weights p, the gradient of the logits, and the gradient of scale·q·k before the cap.

    p is limited to 1: at large logits, where the rounding of lse shows, e^(s − lse) can exceed it.
    """
    s = logits(q, q_low, k, row_scale, bias, softcap, SPLIT_Q, BIAS, SOFTCAP, PRECISION)  # [rows, keys]
    exponent = tl.minimum((s - lse[:, None]) * LOG2E, 0.0, propagate_nan=tl.PropagateNan.ALL)
    p = tl.where(visible, tl.exp2(exponent), 0.0)
    d_s = p * (tl.dot(d_o, v, input_precision=PRECISION) - delta[:, None])  # v is [dv, keys] here
    d_qk = d_s
    if SOFTCAP:
        capped = s
        if BIAS:
            capped = s - bias
        slope = 1.0 - (capped / softcap) * (capped / softcap)  # none where a bias of −inf hides the key
        d_qk = tl.where(p == 0.0, 0.0, d_s * slope)
    return p, d_s, d_qk


@triton.jit(do_not_specialize=["queries", "keys", "behind", "ahead", "hq", "groups"])
def query_gradients(
        q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, positions, documents, d_out, lse_ptr, delta_ptr, d_q, d_bias,
        q_sb, q_sh, q_st, q_sd, k_sb, k_sh, k_st, k_sd, v_sb, v_sh, v_st, v_sd,
        b_sb, b_sh, b_st, b_ss, m_sb, m_sh, m_st, m_ss, d_half, d_sb, g_sb, g_sh, g_st, g_ss,
        queries, keys, D, DV, hq, groups, behind, ahead, scale, softcap,
        BM: tl.constexpr, BN: tl.constexpr, PADDED_D: tl.constexpr, PADDED_DV: tl.constexpr, GEOMETRY: tl.constexpr,
        MASK: tl.constexpr, BIAS: tl.constexpr, SOFTCAP: tl.constexpr, SPLIT_Q: tl.constexpr, D_BIAS: tl.constexpr,
        PRECISION: tl.constexpr):  # fmt: skip
    """Store d_q of BM rows of one head, and their d_bias. D_BIAS: 0 none, 1 each entry has one owner, 2 shared entries."""
    K_DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    blocks = tl.cdiv(queries, BM)
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    b, h = (head // hq).to(tl.int64), (head % hq).to(tl.int64)
    hk = h // groups
    row = block * BM + tl.arange(0, BM)
    row_exists = row < queries
    at = head.to(tl.int64) * queries + row
    begin, end = row_bounds(row, row_exists, b, positions, documents, d_half, d_sb, keys, behind, ahead, GEOMETRY)
    dims, dims_v, columns = tl.arange(0, PADDED_D), tl.arange(0, PADDED_DV), tl.arange(0, BN)
    query = row.to(tl.int64)[:, None]
    q, q_low, d_o, row_scale, lse, has_keys, delta = _load_rows(
        q_ptr, d_out, lse_ptr, delta_ptr, q_sb, q_sh, q_st, q_sd, b, h, query, row_exists, at, dims, dims_v, D, DV, scale,
        K_DTYPE, SPLIT_Q,
    )  # fmt: skip
    k_base, v_base = k_ptr + b * k_sb + hk * k_sh, v_ptr + b * v_sb + hk * v_sh
    k_offsets = dims[:, None] * k_sd + columns[None, :] * k_st  # [d, keys]
    v_offsets = dims_v[:, None] * v_sd + columns[None, :] * v_st  # [dv, keys]
    first_key, last_key = tl.program_id(0) * 0, keys
    if GEOMETRY:
        first_key = tl.min(tl.where(row_exists, begin, 2147483647), 0) // BN * BN
        last_key = tl.max(tl.where(row_exists, end, 0), 0)
    grad_q = tl.zeros([BM, PADDED_D], tl.float32)  # [rows, d]
    k_base += first_key.to(tl.int64) * k_st
    v_base += first_key.to(tl.int64) * v_st
    for start in range(first_key, last_key, BN):
        column = start + columns
        key_exists = column < keys
        key = column[None, :].to(tl.int64)
        k = tl.load(k_base + k_offsets, mask=key_exists[None, :] & (dims < D)[:, None], other=0.0)  # [d, keys]
        v = tl.load(v_base + v_offsets, mask=key_exists[None, :] & (dims_v < DV)[:, None], other=0.0)  # [dv, keys]
        visible = _visible_keys(mask_ptr, m_sb, m_sh, m_st, m_ss, b, h, query, key, column, begin, end, row_exists, has_keys,
                                key_exists, GEOMETRY, MASK)  # fmt: skip
        bias = 0.0
        if BIAS:
            bias_at = bias_ptr + b * b_sb + h * b_sh + query * b_st + key * b_ss  # [rows, keys]
            bias = tl.load(bias_at, mask=visible, other=0.0).to(tl.float32)
        _, d_s, d_qk = _logit_gradients(q, q_low, k, v, d_o, row_scale, bias, softcap, visible, lse, delta,
                                        SPLIT_Q, BIAS, SOFTCAP, PRECISION)  # fmt: skip
        if D_BIAS:
            to = d_bias + b * g_sb + h * g_sh + query * g_st + key * g_ss
            if D_BIAS == 1:
                tl.store(to, d_s, mask=visible)
            else:
                tl.atomic_add(to, d_s, mask=visible)
        grad_q = tl.dot(d_qk.to(K_DTYPE), tl.trans(k), grad_q, input_precision=PRECISION)
        k_base += BN * k_st
        v_base += BN * v_st
    to = d_q + at[:, None] * D + dims[None, :]
    tl.store(to, (grad_q * scale).to(d_q.dtype.element_ty), mask=row_exists[:, None] & (dims < D)[None, :])


@triton.jit(do_not_specialize=["queries", "keys", "behind", "ahead", "hq", "groups"])
def key_gradients(
        q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, positions, documents, d_out, lse_ptr, delta_ptr, d_k, d_v,
        q_sb, q_sh, q_st, q_sd, k_sb, k_sh, k_st, k_sd, v_sb, v_sh, v_st, v_sd,
        b_sb, b_sh, b_st, b_ss, m_sb, m_sh, m_st, m_ss, d_half, d_sb,
        queries, keys, D, DV, hq, groups, behind, ahead, scale, softcap,
        BM: tl.constexpr, BN: tl.constexpr, PADDED_D: tl.constexpr, PADDED_DV: tl.constexpr, GEOMETRY: tl.constexpr,
        MASK: tl.constexpr, BIAS: tl.constexpr, SOFTCAP: tl.constexpr, SPLIT_Q: tl.constexpr,
        PRECISION: tl.constexpr):  # fmt: skip
    """Store d_k and d_v of BN keys of one key head, over all rows of all query heads that share it."""
    K_DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    blocks = tl.cdiv(keys, BN)
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    hkv = hq // groups
    b, hk = (head // hkv).to(tl.int64), (head % hkv).to(tl.int64)
    column = block * BN + tl.arange(0, BN)
    key_exists = column < keys
    key = column[None, :].to(tl.int64)
    dims, dims_v, rows = tl.arange(0, PADDED_D), tl.arange(0, PADDED_DV), tl.arange(0, BM)
    there = key_exists[None, :] & (dims < D)[:, None]  # [d, keys]
    k = tl.load(k_ptr + b * k_sb + hk * k_sh + dims[:, None] * k_sd + key * k_st, mask=there, other=0.0)
    there = key_exists[None, :] & (dims_v < DV)[:, None]  # [dv, keys]
    v = tl.load(v_ptr + b * v_sb + hk * v_sh + dims_v[:, None] * v_sd + key * v_st, mask=there, other=0.0)
    grad_k = tl.zeros([BN, PADDED_D], tl.float32)  # [keys, d]
    grad_v = tl.zeros([BN, PADDED_DV], tl.float32)  # [keys, dv]
    first_block, last_block = block * 0, tl.cdiv(queries, BM)
    if GEOMETRY:  # bounds ascend, so the rows that see one of these keys follow each other
        first_row = _first_row_beyond(block * BN, queries, b, positions, documents, d_half, d_sb, keys, behind, ahead,
                                      GEOMETRY, True)  # fmt: skip
        last_row = _first_row_beyond(block * BN + BN - 1, queries, b, positions, documents, d_half, d_sb, keys, behind,
                                     ahead, GEOMETRY, False)  # fmt: skip
        first_block, last_block = first_row // BM, tl.cdiv(last_row, BM)
    row_blocks = tl.maximum(last_block - first_block, 0)
    for index in range(groups * row_blocks):
        h = hk * groups + index // row_blocks
        row = (first_block + index % row_blocks) * BM + rows
        row_exists = row < queries
        begin, end = row_bounds(row, row_exists, b, positions, documents, d_half, d_sb, keys, behind, ahead, GEOMETRY)
        at = (b * hq + h) * queries + row
        query = row.to(tl.int64)[:, None]
        q, q_low, d_o, row_scale, lse, has_keys, delta = _load_rows(
            q_ptr, d_out, lse_ptr, delta_ptr, q_sb, q_sh, q_st, q_sd, b, h, query, row_exists, at, dims, dims_v, D, DV,
            scale, K_DTYPE, SPLIT_Q,
        )  # fmt: skip
        visible = _visible_keys(mask_ptr, m_sb, m_sh, m_st, m_ss, b, h, query, key, column, begin, end, row_exists, has_keys,
                                key_exists, GEOMETRY, MASK)  # fmt: skip
        bias = 0.0
        if BIAS:
            bias_at = bias_ptr + b * b_sb + h * b_sh + query * b_st + key * b_ss  # [rows, keys]
            bias = tl.load(bias_at, mask=visible, other=0.0).to(tl.float32)
        p, _, d_qk = _logit_gradients(q, q_low, k, v, d_o, row_scale, bias, softcap, visible, lse, delta,
                                      SPLIT_Q, BIAS, SOFTCAP, PRECISION)  # fmt: skip
        grad_v = tl.dot(tl.trans(p.to(K_DTYPE)), d_o, grad_v, input_precision=PRECISION)
        d_kq = tl.trans((d_qk * row_scale[:, None]).to(K_DTYPE))  # [keys, rows]
        grad_k = tl.dot(d_kq, q, grad_k, input_precision=PRECISION)
        if SPLIT_Q:
            grad_k = tl.dot(d_kq, q_low, grad_k, input_precision=PRECISION)
    at = head.to(tl.int64) * keys + column
    tl.store(d_k + at[:, None] * D + dims[None, :], grad_k.to(d_k.dtype.element_ty),
             mask=key_exists[:, None] & (dims < D)[None, :])  # fmt: skip
    tl.store(d_v + at[:, None] * DV + dims_v[None, :], grad_v.to(d_v.dtype.element_ty),
             mask=key_exists[:, None] & (dims_v < DV)[None, :])  # fmt: skip
