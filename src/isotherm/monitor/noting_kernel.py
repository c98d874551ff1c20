# mypy: ignore-errors
"""Kernels that note attention inside compiled code: sums over the rows of each head, and squared gradients.

Both read a flag on the device first and return if it is 0, so a step that nobody looks at costs two launches a layer. Rows are
summed in float32 within a block and in float64 across blocks; a gate is known to about 1e-6, which is more than its mean tells.
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1e30)


@triton.jit
def fold(s, visible, peak, total, squared, crossed, first, moment, second, MASKED: tl.constexpr):
    """Count a block of logits in. `s` [rows, keys] is in bits, as are all sums: Σe, Σe², Σe·(s − peak), and the moments of the
    logits counted from the largest of the first block with some. NaN and Inf spread into the moments, where they are found in
    the end."""
    highest = tl.maximum(peak, tl.max(tl.where(visible, s, NOTHING) if MASKED else s, 1))
    first = tl.where(peak == NOTHING, highest, first)
    away = s - first[:, None]
    below = s - highest[:, None]
    e = tl.exp2(below)
    if MASKED:
        away = tl.where(visible, away, 0.0)
        e = tl.where(visible, e, 0.0)
        below = tl.where(visible, below, 0.0)
    moment += tl.sum(away, 1)
    second += tl.sum(away * away, 1)
    shrink = tl.exp2(peak - highest)
    crossed = shrink * (crossed + total * (peak - highest)) + tl.sum(e * below, 1)
    total = shrink * total + tl.sum(e, 1)
    squared = shrink * shrink * squared + tl.sum(e * e, 1)
    return highest, total, squared, crossed, first, moment, second


@triton.jit
def add_rows(state, heads, peak, count, total, squared, crossed, moment, second, GATE: tl.constexpr):
    """Add the statistics of a block of rows to a head's column of `state`."""
    some = tl.maximum(count, 1.0)
    variance = second / some - (moment / some) * (moment / some)
    broken = (tl.abs(variance) < float("inf")) == 0  # NaN too
    valid = (count > 0) & (broken == 0)
    known = valid & (count > 1)
    whole = tl.where(total > 0, total, 1.0)
    entropy = tl.log(whole) - LN2 * crossed / whole
    fraction = entropy / tl.log(tl.where(known, count, 2.0))
    gate = tl.maximum(1.0 - squared / (whole * whole), 0.0)
    spread = LN2 * tl.sqrt(tl.maximum(variance, 0.0))
    tl.atomic_add(state, tl.sum((count > 0).to(tl.float64)))
    tl.atomic_add(state + heads, tl.sum(valid.to(tl.float64)))
    tl.atomic_add(state + 2 * heads, tl.sum(known.to(tl.float64)))
    tl.atomic_add(state + 3 * heads, tl.sum(tl.where(valid, spread, 0.0).to(tl.float64)))
    tl.atomic_add(state + 4 * heads, tl.sum(tl.where(known, fraction, 0.0).to(tl.float64)))
    tl.atomic_add(state + 5 * heads, tl.sum(tl.where(valid, gate, 0.0).to(tl.float64)))
    tl.atomic_add(state + 6 * heads, tl.sum((known & (gate < GATE)).to(tl.float64)))
    tl.atomic_add(state + 7 * heads, tl.sum(((count > 0) & broken).to(tl.float64)))
    tl.atomic_max(state + 8 * heads, tl.max(tl.where(valid, LN2 * peak, -float("inf"))).to(tl.float64))


@triton.jit
def note_rows(
    q, k, mask, armed, pool, offset, scale, heads, groups, queries, keys, rows,
    q_b, q_h, q_t, q_d, k_b, k_h, k_s, k_d, m_b, m_h, m_t, m_s,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
    EXACT: tl.constexpr, GATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what a block of rows of one head says to a state [9, heads] in the pool: eight sums, and the largest logit."""
    if tl.load(armed) != 0:
        b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
        # The last blocks of rows see the most keys under a causal mask: they begin first.
        index = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM + tl.arange(0, BM)
        exists = index < rows
        at = index
        if not EXACT:
            at = ((queries - 1) * index.to(tl.int64) // tl.maximum(rows - 1, 1)).to(tl.int32)
            at = tl.where(rows == 1, queries - 1, at)
        dims = tl.arange(0, BD)
        q_at = q + b * q_b + h * q_h + at.to(tl.int64)[:, None] * q_t + dims[None, :] * q_d
        query = tl.load(q_at, mask=exists[:, None] & (dims < D)[None, :], other=0.0)  # [BM, BD]
        k_at = k + b * k_b + (h // groups) * k_h + dims[:, None] * k_d
        m_at = mask + b * m_b + h * m_h + at.to(tl.int64)[:, None] * m_t
        # Every row sees the first keys, but for a mask or the last block; these need no comparison.
        clear = tl.minimum(tl.min(tl.where(exists, at, 2147483647)) + 1, keys) if CAUSAL else keys
        clear = 0 if MASK else clear // BN * BN
        last = tl.minimum(tl.max(tl.where(exists, at, 0)) + 1, keys) if CAUSAL else keys
        bits = tl.cast(scale, tl.float32) * LOG2E  # the compiler passes a number as float64
        peak = tl.full([BM], NOTHING, tl.float32)
        total = tl.zeros([BM], tl.float32)
        squared, crossed, first, moment, second = total, total, total, total, total
        # Only a mask's keys are counted: such a sum has another layout than the logits, and drags them through shared memory.
        count = total if MASK else tl.minimum(at + 1, keys).to(tl.float32) if CAUSAL else total + keys
        for start in range(0, clear, BN):
            key = (start + tl.arange(0, BN)).to(tl.int64)
            tile = tl.load(k_at + key[None, :] * k_s, mask=(dims < D)[:, None], other=0.0)
            s = tl.dot(query, tile, input_precision=PRECISION) * bits  # [BM, BN]
            peak, total, squared, crossed, first, moment, second = fold(
                s, True, peak, total, squared, crossed, first, moment, second, MASKED=False
            )
        for start in range(clear, last, BN):
            key = start + tl.arange(0, BN)
            k_tile = k_at + key.to(tl.int64)[None, :] * k_s
            tile = tl.load(k_tile, mask=(key < keys)[None, :] & (dims < D)[:, None], other=0.0)
            s = tl.dot(query, tile, input_precision=PRECISION) * bits
            visible = exists[:, None] & (key < keys)[None, :]
            if CAUSAL:
                visible = visible & (key[None, :] <= at[:, None])
            if MASK:
                visible = visible & (tl.load(m_at + key.to(tl.int64)[None, :] * m_s, mask=visible, other=0) != 0)
                count += tl.sum(visible.to(tl.float32), 1)
            peak, total, squared, crossed, first, moment, second = fold(
                s, visible, peak, total, squared, crossed, first, moment, second, MASKED=True
            )
        count = tl.where(exists, count, 0.0)
        add_rows(pool + offset + h, heads, peak, count, total, squared, crossed, moment, second, GATE)


@triton.jit
def note_squares(
    g_q, g_k, armed, pool, offset, batch, heads_q, heads_k, queries, keys,
    q_b, q_h, q_t, q_d, k_b, k_h, k_s, k_d, D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Add the squared length of a block of two gradients to two numbers in the pool: that of q, or (in the last axis) of k."""
    of_k = tl.program_id(2) == 1
    heads = tl.where(of_k, heads_k, heads_q)
    b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    if (tl.load(armed) != 0) & (b < batch):
        t = tl.program_id(0) * BT + tl.arange(0, BT)
        dims = tl.arange(0, BD)
        if of_k:
            at = g_k + b * k_b + h * k_h + t.to(tl.int64)[:, None] * k_s + dims[None, :] * k_d
            inside = t < keys
        else:
            at = g_q + b * q_b + h * q_h + t.to(tl.int64)[:, None] * q_t + dims[None, :] * q_d
            inside = t < queries
        x = tl.load(at, mask=inside[:, None] & (dims < D)[None, :], other=0.0).to(tl.float32)
        tl.atomic_add(pool + offset + of_k.to(tl.int32), tl.sum(x * x).to(tl.float64))
