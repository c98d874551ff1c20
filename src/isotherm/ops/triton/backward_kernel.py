# mypy: ignore-errors
# ruff: noqa: PLR0915
"""Gradients, for everything `attend_kernel` takes: weights are computed again from lse.

Two kernels, one that owns rows (d_q, d_bias) and one that owns keys (d_k, d_v): each sum has one owner, so nothing
depends on the order in which programs run. Only a bias that several rows or heads share is added to atomically.
"""

import triton
import triton.language as tl

from isotherm.ops.triton.attend_kernel import logits, take_query
from isotherm.ops.triton.fields_kernel import LOG2E


@triton.jit
def _tile(q, q_low, k, v, d_o, row_scale, added, softcap, seen, lse, delta,
          PARTS: tl.constexpr, BIAS: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Weights p, and the gradients of the logits [BM, BN]: with the bias in them, and of scale·q·k alone.

    No weight is above 1: what comes out above it, where logits are so large that rounding lse shows, is 1.
    """
    s = logits(q, q_low, k, row_scale, added, softcap, PARTS, BIAS, SOFTCAP, PRECISION)
    exponent = tl.minimum((s - lse[:, None]) * LOG2E, 0.0, propagate_nan=tl.PropagateNan.ALL)
    p = tl.where(seen, tl.exp2(exponent), 0.0)
    d_s = p * (tl.dot(d_o, v, input_precision=PRECISION) - delta[:, None])
    d_bare = d_s
    if SOFTCAP:
        bare = s
        if BIAS:
            bare = s - added
        d_bare = d_s * (1.0 - (bare / softcap) * (bare / softcap))
    return p, d_s, d_bare


@triton.jit(do_not_specialize=["queries", "keys", "behind", "ahead", "hq", "groups"])
def rows(q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, positions, d_out, lse_ptr, delta_ptr, d_q, d_bias,
         q_sb, q_sh, q_st, q_sd, k_sb, k_sh, k_st, k_sd, v_sb, v_sh, v_st, v_sd,
         b_sb, b_sh, b_st, b_ss, m_sb, m_sh, m_st, m_ss, g_sb, g_sh, g_st, g_ss,
         queries, keys, D, DV, hq, groups, behind, ahead, scale, softcap,
         BM: tl.constexpr, BN: tl.constexpr, WIDE: tl.constexpr, WIDE_V: tl.constexpr, GEOMETRY: tl.constexpr,
         MASK: tl.constexpr, BIAS: tl.constexpr, SOFTCAP: tl.constexpr, PARTS: tl.constexpr, D_BIAS: tl.constexpr,
         PRECISION: tl.constexpr):  # fmt: skip
    """d_q of BM rows of one head; d_bias of them where `D_BIAS` (1: each entry has one owner, 2: shared)."""
    K_DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    blocks = tl.cdiv(queries, BM)
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    b, h = (head // hq).to(tl.int64), (head % hq).to(tl.int64)
    hk = h // groups
    row = block * BM + tl.arange(0, BM)
    inside = row < queries
    at = head.to(tl.int64) * queries + row
    place = tl.load(positions + row, mask=inside, other=0).to(tl.int32)
    wide, wide_v, step = tl.arange(0, WIDE), tl.arange(0, WIDE_V), tl.arange(0, BN)
    far = row.to(tl.int64)[:, None]
    q_at = q_ptr + b * q_sb + h * q_sh + far * q_st + wide[None, :] * q_sd
    q, q_low, size = take_query(q_at, inside[:, None], wide, D, K_DTYPE, PARTS)
    row_scale = size * scale
    d_o = tl.load(d_out + at[:, None] * DV + wide_v[None, :], mask=inside[:, None] & (wide_v < DV)[None, :], other=0.0)
    d_o = d_o.to(K_DTYPE)
    lse = tl.load(lse_ptr + at, mask=inside, other=float("-inf"))
    some = lse > float("-inf")
    lse = tl.where(some, lse, 0.0)
    delta = tl.load(delta_ptr + at, mask=inside, other=0.0)
    k_base, v_base = k_ptr + b * k_sb + hk * k_sh, v_ptr + b * v_sb + hk * v_sh
    k_off, v_off = wide[:, None] * k_sd + step[None, :] * k_st, wide_v[:, None] * v_sd + step[None, :] * v_st
    first_seen, last_seen = tl.program_id(0) * 0, keys
    if GEOMETRY:
        least = tl.min(tl.where(inside, place, 2147483647), 0)
        most = tl.max(tl.where(inside, place, -2147483648), 0)
        first_seen = tl.maximum(least - behind, 0) // BN * BN
        last_seen = tl.minimum(most + ahead + 1, keys)
    grad = tl.zeros([BM, WIDE], tl.float32)
    k_base += first_seen.to(tl.int64) * k_st
    v_base += first_seen.to(tl.int64) * v_st
    for start in range(first_seen, last_seen, BN):
        column = start + step
        real = column < keys
        far_k = column[None, :].to(tl.int64)
        k = tl.load(k_base + k_off, mask=real[None, :] & (wide < D)[:, None], other=0.0)
        v = tl.load(v_base + v_off, mask=real[None, :] & (wide_v < DV)[:, None], other=0.0)
        seen = real[None, :] & inside[:, None] & some[:, None]
        if GEOMETRY:
            seen &= (column[None, :] >= place[:, None] - behind) & (column[None, :] <= place[:, None] + ahead)
        if MASK:
            seen &= tl.load(mask_ptr + b * m_sb + h * m_sh + far * m_st + far_k * m_ss, mask=seen, other=0) != 0
        added = 0.0
        if BIAS:
            added = tl.load(bias_ptr + b * b_sb + h * b_sh + far * b_st + far_k * b_ss, mask=seen, other=0.0).to(
                tl.float32
            )
        _, d_s, d_bare = _tile(q, q_low, k, v, d_o, row_scale, added, softcap, seen, lse, delta,
                               PARTS, BIAS, SOFTCAP, PRECISION)  # fmt: skip
        if D_BIAS:
            to = d_bias + b * g_sb + h * g_sh + far * g_st + far_k * g_ss
            if D_BIAS == 1:
                tl.store(to, d_s, mask=seen)
            else:
                tl.atomic_add(to, d_s, mask=seen)
        grad = tl.dot(d_bare.to(K_DTYPE), tl.trans(k), grad, input_precision=PRECISION)
        k_base += BN * k_st
        v_base += BN * v_st
    to = d_q + at[:, None] * D + wide[None, :]
    tl.store(to, (grad * scale).to(d_q.dtype.element_ty), mask=inside[:, None] & (wide < D)[None, :])


@triton.jit(do_not_specialize=["queries", "keys", "behind", "ahead", "hq", "groups"])
def columns(q_ptr, k_ptr, v_ptr, bias_ptr, mask_ptr, positions, d_out, lse_ptr, delta_ptr, d_k, d_v,
            q_sb, q_sh, q_st, q_sd, k_sb, k_sh, k_st, k_sd, v_sb, v_sh, v_st, v_sd,
            b_sb, b_sh, b_st, b_ss, m_sb, m_sh, m_st, m_ss,
            queries, keys, D, DV, hq, groups, behind, ahead, scale, softcap,
            BM: tl.constexpr, BN: tl.constexpr, WIDE: tl.constexpr, WIDE_V: tl.constexpr, GEOMETRY: tl.constexpr,
            MASK: tl.constexpr, BIAS: tl.constexpr, SOFTCAP: tl.constexpr, PARTS: tl.constexpr,
            PRECISION: tl.constexpr):  # fmt: skip
    """d_k, d_v of BN keys of one key head, over all rows of all query heads that share it."""
    K_DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    blocks = tl.cdiv(keys, BN)
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    hkv = hq // groups
    b, hk = (head // hkv).to(tl.int64), (head % hkv).to(tl.int64)
    column = block * BN + tl.arange(0, BN)
    real = column < keys
    far_k = column[None, :].to(tl.int64)
    wide, wide_v, step = tl.arange(0, WIDE), tl.arange(0, WIDE_V), tl.arange(0, BM)
    k = tl.load(k_ptr + b * k_sb + hk * k_sh + wide[:, None] * k_sd + far_k * k_st,
                mask=real[None, :] & (wide < D)[:, None], other=0.0)  # fmt: skip
    v = tl.load(v_ptr + b * v_sb + hk * v_sh + wide_v[:, None] * v_sd + far_k * v_st,
                mask=real[None, :] & (wide_v < DV)[:, None], other=0.0)  # fmt: skip
    grad_k, grad_v = tl.zeros([BN, WIDE], tl.float32), tl.zeros([BN, WIDE_V], tl.float32)
    lowest, highest = block * BN, tl.minimum(block * BN + BN, keys) - 1
    row_blocks = tl.cdiv(queries, BM)
    for index in range(groups * row_blocks):
        h = hk * groups + index // row_blocks
        row = index % row_blocks * BM + step
        inside = row < queries
        place = tl.load(positions + row, mask=inside, other=0).to(tl.int32)
        wanted = True
        if GEOMETRY:
            most = tl.max(tl.where(inside, place, -2147483648), 0)
            least = tl.min(tl.where(inside, place, 2147483647), 0)
            wanted = (most + ahead >= lowest) & (least - behind <= highest)
        if wanted:
            at = (b * hq + h) * queries + row
            far = row.to(tl.int64)[:, None]
            q_at = q_ptr + b * q_sb + h * q_sh + far * q_st + wide[None, :] * q_sd
            q, q_low, size = take_query(q_at, inside[:, None], wide, D, K_DTYPE, PARTS)
            row_scale = size * scale
            d_o = tl.load(
                d_out + at[:, None] * DV + wide_v[None, :], mask=inside[:, None] & (wide_v < DV)[None, :], other=0.0
            )
            d_o = d_o.to(K_DTYPE)
            lse = tl.load(lse_ptr + at, mask=inside, other=float("-inf"))
            some = lse > float("-inf")
            lse = tl.where(some, lse, 0.0)
            delta = tl.load(delta_ptr + at, mask=inside, other=0.0)
            seen = real[None, :] & inside[:, None] & some[:, None]
            if GEOMETRY:
                seen &= (column[None, :] >= place[:, None] - behind) & (column[None, :] <= place[:, None] + ahead)
            if MASK:
                seen &= tl.load(mask_ptr + b * m_sb + h * m_sh + far * m_st + far_k * m_ss, mask=seen, other=0) != 0
            added = 0.0
            if BIAS:
                bias_at = bias_ptr + b * b_sb + h * b_sh + far * b_st + far_k * b_ss
                added = tl.load(bias_at, mask=seen, other=0.0).to(tl.float32)
            p, _, d_bare = _tile(q, q_low, k, v, d_o, row_scale, added, softcap, seen, lse, delta,
                                 PARTS, BIAS, SOFTCAP, PRECISION)  # fmt: skip
            grad_v = tl.dot(tl.trans(p.to(K_DTYPE)), d_o, grad_v, input_precision=PRECISION)
            d_bare = tl.trans((d_bare * row_scale[:, None]).to(K_DTYPE))
            grad_k = tl.dot(d_bare, q, grad_k, input_precision=PRECISION)
            if PARTS:
                grad_k = tl.dot(d_bare, q_low, grad_k, input_precision=PRECISION)
    at = head.to(tl.int64) * keys + column
    tl.store(d_k + at[:, None] * D + wide[None, :], grad_k.to(d_k.dtype.element_ty),
             mask=real[:, None] & (wide < D)[None, :])  # fmt: skip
    tl.store(d_v + at[:, None] * DV + wide_v[None, :], grad_v.to(d_v.dtype.element_ty),
             mask=real[:, None] & (wide_v < DV)[None, :])  # fmt: skip
