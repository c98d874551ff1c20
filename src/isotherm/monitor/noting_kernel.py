# mypy: ignore-errors
# ruff: noqa: PLR0915
"""Kernels that note attention inside compiled code: sums over the rows of each head, and squared gradients.

Both read a flag on the device first and return if it is 0, so a step that nobody looks at costs two launches a layer. Rows are
summed in float32 within a block and in float64 across blocks; a gate is known to about 1e-6, which is more than its mean tells.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1e30)


@triton.jit
def note_rows(
    q, k, mask, armed, state, scale, heads, groups, queries, keys, rows,
    q_b, q_h, q_t, q_d, k_b, k_h, k_s, k_d, m_b, m_h, m_t, m_s,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
    EXACT: tl.constexpr, GATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what a block of rows of one head says to `state` [9, heads]: eight sums, and the largest logit."""
    if tl.load(armed) != 0:
        b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
        index = tl.program_id(0) * BM + tl.arange(0, BM)
        exists = index < rows
        at = index if EXACT else ((queries - 1) * index.to(tl.int64) // tl.maximum(rows - 1, 1)).to(tl.int32)
        if not EXACT:
            at = tl.where(rows == 1, queries - 1, at)
        dims = tl.arange(0, BD)
        q_at = q + b * q_b + h * q_h + at.to(tl.int64)[:, None] * q_t + dims[None, :] * q_d
        query = tl.load(q_at, mask=exists[:, None] & (dims < D)[None, :], other=0.0)  # [BM, BD]
        k_at = k + b * k_b + (h // groups) * k_h
        m_at = mask + b * m_b + h * m_h + at.to(tl.int64)[:, None] * m_t
        last = tl.minimum(tl.max(tl.where(exists, at, 0)) + 1, keys) if CAUSAL else keys
        peak = tl.full([BM], NOTHING, tl.float32)
        count = tl.zeros([BM], tl.float32)
        total, squared, crossed = count, count, count  # Σe, Σe², Σe·(s − peak)
        first, moment, second, broken = count, count, count, count  # a logit to count from, Σ(s − first), Σ(s − first)²
        for start in range(0, last, BN):
            key = start + tl.arange(0, BN)
            k_tile = k_at + key.to(tl.int64)[None, :] * k_s + dims[:, None] * k_d
            tile = tl.load(k_tile, mask=(key < keys)[None, :] & (dims < D)[:, None], other=0.0)
            s = tl.dot(query, tile, input_precision=PRECISION) * scale  # [BM, BN]
            visible = exists[:, None] & (key < keys)[None, :]
            if CAUSAL:
                visible = visible & (key[None, :] <= at[:, None])
            if MASK:
                visible = visible & (tl.load(m_at + key.to(tl.int64)[None, :] * m_s, mask=visible, other=0) != 0)
            finite = tl.abs(s) < float("inf")  # False for NaN too
            broken = tl.maximum(broken, tl.max(tl.where(visible & (finite == 0), 1.0, 0.0), 1))
            seen = visible & finite
            highest = tl.maximum(peak, tl.max(tl.where(seen, s, NOTHING), 1))
            first = tl.where(count == 0, highest, first)
            away = tl.where(seen, s - first[:, None], 0.0)
            moment += tl.sum(away, 1)
            second += tl.sum(away * away, 1)
            count += tl.sum(seen.to(tl.float32), 1)
            below = tl.where(seen, s - highest[:, None], 0.0)
            e = tl.where(seen, tl.exp2(below * LOG2E), 0.0)
            shrink = tl.exp2((peak - highest) * LOG2E)
            crossed = shrink * (crossed + total * (peak - highest)) + tl.sum(e * below, 1)
            total = shrink * total + tl.sum(e, 1)
            squared = shrink * shrink * squared + tl.sum(e * e, 1)
            peak = highest
        valid = (count > 0) & (broken == 0)
        known = valid & (count > 1)
        whole = tl.where(total > 0, total, 1.0)
        entropy = tl.log(whole) - crossed / whole
        fraction = entropy / tl.log(tl.where(known, count, 2.0))
        gate = tl.maximum(1.0 - squared / (whole * whole), 0.0)
        some = tl.maximum(count, 1.0)
        spread = tl.sqrt(tl.maximum(second / some - (moment / some) * (moment / some), 0.0))
        place = state + h
        tl.atomic_add(place, tl.sum(((count > 0) | (broken > 0)).to(tl.float64)))
        tl.atomic_add(place + heads, tl.sum(valid.to(tl.float64)))
        tl.atomic_add(place + 2 * heads, tl.sum(known.to(tl.float64)))
        tl.atomic_add(place + 3 * heads, tl.sum(tl.where(valid, spread, 0.0).to(tl.float64)))
        tl.atomic_add(place + 4 * heads, tl.sum(tl.where(known, fraction, 0.0).to(tl.float64)))
        tl.atomic_add(place + 5 * heads, tl.sum(tl.where(valid, gate, 0.0).to(tl.float64)))
        tl.atomic_add(place + 6 * heads, tl.sum((known & (gate < GATE)).to(tl.float64)))
        tl.atomic_add(place + 7 * heads, tl.sum((broken > 0).to(tl.float64)))
        tl.atomic_max(place + 8 * heads, tl.max(tl.where(valid, peak, -float("inf"))).to(tl.float64))


@triton.jit
def note_squares(
    g_q, g_k, armed, squares, batch, heads_q, heads_k, queries, keys,
    q_b, q_h, q_t, q_d, k_b, k_h, k_s, k_d, D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Add the squared length of a block of two gradients to `squares` [2]: that of q, or (in the last axis) that of k."""
    if tl.load(armed) != 0:
        of_k = tl.program_id(2) == 1
        heads = tl.where(of_k, heads_k, heads_q)
        b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
        t = tl.program_id(0) * BT + tl.arange(0, BT)
        dims = tl.arange(0, BD)
        if of_k:
            at = g_k + b * k_b + h * k_h + t.to(tl.int64)[:, None] * k_s + dims[None, :] * k_d
            inside = (t < keys) & (b < batch)
        else:
            at = g_q + b * q_b + h * q_h + t.to(tl.int64)[:, None] * q_t + dims[None, :] * q_d
            inside = (t < queries) & (b < batch)
        x = tl.load(at, mask=inside[:, None] & (dims < D)[None, :], other=0.0).to(tl.float32)
        tl.atomic_add(squares + of_k.to(tl.int32), tl.sum(x * x).to(tl.float64))
