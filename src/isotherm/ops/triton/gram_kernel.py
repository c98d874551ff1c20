# mypy: ignore-errors
"""Mean and spread of plain logits from sums over the keys alone: O(d²) a row instead of O(n·d), and nothing per logit.

Σ_j q·k_j = q·Σk and Σ_j (q·k_j)² = qᵀ(Σ k kᵀ)q. `gram` sums k and k kᵀ over chunks of keys; summed up along the chunks
they serve every row that sees whole chunks. What a row sees beyond those the attention kernel adds up itself.
"""

import triton
import triton.language as tl

FROZEN = tl.constexpr(2.0**-9)


@triton.jit(do_not_specialize=["k_sb", "k_sh", "k_st", "hkv", "chunk", "chunks"])
def gram(k_ptr, sums, k_sb, k_sh, k_st, hkv, chunk, chunks, D: tl.constexpr, BN: tl.constexpr):
    """k kᵀ and, as one more row, k, summed over a chunk: sums [B·Hkv, chunks, D + 1, D]."""
    head = tl.program_id(1)
    wide, step = tl.arange(0, D), tl.arange(0, BN)
    start = k_ptr + (head // hkv).to(tl.int64) * k_sb + (head % hkv).to(tl.int64) * k_sh
    start += (tl.program_id(0) * chunk).to(tl.int64) * k_st
    second, first = tl.zeros([D, D], tl.float32), tl.zeros([D], tl.float32)
    for i in range(0, chunk, BN):
        k = tl.load(start + (i + step)[:, None] * k_st + wide[None, :])
        second = tl.dot(tl.trans(k), k, second)
        first += tl.sum(k.to(tl.float32), 0)
    to = sums + (head.to(tl.int64) * chunks + tl.program_id(0)) * ((D + 1) * D)
    tl.store(to + wide[:, None] * D + wide[None, :], second)
    tl.store(to + D * D + wide, first)


@triton.jit(
    do_not_specialize=["q_sb", "q_sh", "q_st", "queries", "keys", "hq", "groups", "chunk", "chunks", "total_rows"]
)
def moments(q_ptr, sums, fields, flags, positions, q_sb, q_sh, q_st, queries, keys, hq, groups, chunk, chunks,
            scale_high, scale_low, total_rows,
            D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    """The moments over whole chunks merged into the fields' own; BM and BN are those of the kernel that wrote them."""
    blocks = tl.cdiv(queries, BM)
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    b, h = (head // hq).to(tl.int64), (head % hq).to(tl.int64)
    rows = block * BM + tl.arange(0, BM)
    inside = rows < queries
    limit = tl.full([BM], 0, tl.int32) + (keys - 1)
    if CAUSAL:
        limit = tl.minimum(limit, tl.load(positions + tl.minimum(rows, queries - 1)).to(tl.int32))
    whole = tl.maximum(tl.min(limit, 0) + 1, 0) // BN * BN // chunk
    if whole > 0:
        wide = tl.arange(0, D)
        q_at = q_ptr + b * q_sb + h * q_sh + rows.to(tl.int64)[:, None] * q_st + wide[None, :]
        given = tl.load(q_at, mask=inside[:, None], other=0.0)
        q = given.to(tl.float32)
        at = sums + ((b * (hq // groups) + h // groups) * chunks + whole - 1) * ((D + 1) * D)
        second = tl.load(at + wide[:, None] * D + wide[None, :])
        if (
            given.dtype == tl.bfloat16
        ):  # three bfloat16 hold a float32: half the products of tf32x3, and none is rounded
            high = second.to(tl.bfloat16)
            middle = (second - high.to(tl.float32)).to(tl.bfloat16)
            low = (second - high.to(tl.float32) - middle.to(tl.float32)).to(tl.bfloat16)
            product = tl.dot(given, high, tl.dot(given, middle, tl.dot(given, low)))
        else:
            product = tl.dot(q, second, input_precision="tf32x3")
        square = tl.sum(product * q, 1).to(tl.float64)
        along = tl.sum(q * tl.load(at + D * D + wide)[None, :], 1).to(tl.float64)
        scale = tl.full([BM], 0.0, tl.float64) + scale_high + scale_low
        n = total_rows.to(tl.int64)
        to = fields + head.to(tl.int64) * queries + rows
        mine = (whole * chunk).to(tl.float64)
        spread = square - along * along / mine
        count = tl.load(to, mask=inside, other=1.0)
        share = mine / tl.maximum(count, 1.0)
        mean = tl.load(to + n, mask=inside, other=0.0)
        between = along / mine * scale - mean
        m2 = tl.load(to + 2 * n, mask=inside, other=0.0) + tl.maximum(spread, 0.0) * scale * scale
        tl.store(to + n, mean + between * share, mask=inside)
        tl.store(to + 2 * n, m2 + between * between * share * (count - mine), mask=inside)
        # As in `dense_kernel`: a difference that keeps less than 1/512 of its terms is not to be trusted.
        blurred = tl.where((spread < FROZEN * square) & inside, 1, 0).reshape(BM // 64, 64)
        sixties = tl.cdiv(queries, 64)
        sixty = block * (BM // 64) + tl.arange(0, BM // 64)
        flag = flags + head.to(tl.int64) * sixties + sixty
        known = tl.load(flag, mask=sixty < sixties, other=0)
        tl.store(flag, tl.maximum(known, tl.max(blurred, 1).to(tl.int8)), mask=sixty < sixties)
