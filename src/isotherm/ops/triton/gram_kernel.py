# mypy: ignore-errors
"""Mean and spread of plain logits from sums over the keys alone: O(d²) a row instead of O(n·d), and nothing per logit.

With k̄ the mean key, Σ_j q·k_j = n q·k̄ and Σ_j (q·k_j − q·k̄)² = qᵀ(Σ k kᵀ − n k̄k̄ᵀ)q. `gram` sums k and k kᵀ over chunks
of keys; `fold` sums those along the chunks, so that they serve every row that sees whole chunks. What a row sees beyond
those, the attention kernel adds up itself, and it does the product with q at its end, when a tile is at hand anyway.

Both let the next kernel begin before they are through (programmatic dependent launch): what they make is only wanted
when the first rows are done.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit(do_not_specialize=["hkv", "chunk", "chunks"])
def gram(k_ptr, second, first, k_sb, k_sh, k_st, hkv, chunk, chunks,
         D: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """k kᵀ and k summed over a chunk: second [B·Hkv, chunks, D, D], first [B·Hkv, chunks, D]."""
    if EARLY:
        gdc_launch_dependents()
    head = tl.program_id(0)
    wide, step = tl.arange(0, D), tl.arange(0, BN)
    start = k_ptr + (head // hkv).to(tl.int64) * k_sb + (head % hkv).to(tl.int64) * k_sh
    start += (tl.program_id(1) * chunk).to(tl.int64) * k_st
    squares, sums = tl.zeros([D, D], tl.float32), tl.zeros([D, 16], tl.float32)
    ones = tl.full([BN, 16], 1.0, k_ptr.dtype.element_ty)
    for i in tl.range(0, chunk, BN, num_stages=STAGES):
        k = tl.load(start + (i + step)[:, None] * k_st + wide[None, :])
        # The matrix units cut off where float32 rounds: they add up BN keys, not the whole chunk.
        squares = tl.fma(tl.dot(tl.trans(k), k), 1.0, squares)
        sums = tl.fma(tl.dot(tl.trans(k), ones), 1.0, sums)
    place = head.to(tl.int64) * chunks + tl.program_id(1)
    tl.store(second + place * (D * D) + wide[:, None] * D + wide[None, :], squares)
    tl.store(first + place * D + wide, tl.max(sums, 1))


@triton.jit(do_not_specialize=["chunk", "chunks"])
def fold(second, first, parts, centre, chunk, chunks,
         D: tl.constexpr, BR: tl.constexpr, EVERY: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """Σ(k − k̄)(k − k̄)ᵀ up to each chunk, or of all, as three bfloat16 numbers that add up to a float32; k̄; and √Σk².

    parts [B·Hkv, chunks or 1, 3 D, D], centre [B·Hkv, chunks or 1, 2, D].
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(0).to(tl.int64)
    rows, wide = tl.program_id(1) * BR + tl.arange(0, BR), tl.arange(0, D)
    here = rows[:, None] * D + wide[None, :]
    squares, sums, mine = tl.zeros([BR, D], tl.float32), tl.zeros([D], tl.float32), tl.zeros([BR], tl.float32)
    for i in range(chunks):
        at = head * chunks + i
        squares += tl.load(second + at * (D * D) + here)
        sums += tl.load(first + at * D + wide)
        mine += tl.load(first + at * D + rows)
        if EVERY or i == chunks - 1:
            count = ((i + 1) * chunk).to(tl.float32)
            left = squares - mine[:, None] * (sums / count)[None, :]
            high = left.to(parts.dtype.element_ty)
            left -= high.to(tl.float32)
            middle = left.to(parts.dtype.element_ty)
            low = (left - middle.to(tl.float32)).to(parts.dtype.element_ty)
            place = head * chunks + i if EVERY else head
            to = parts + place * (3 * D * D)
            tl.store(to + here, high)
            tl.store(to + D * D + here, middle)
            tl.store(to + 2 * D * D + here, low)
            tl.store(centre + place * (2 * D) + rows, mine / count)
            square = tl.sum(tl.where(rows[:, None] == wide[None, :], squares, 0.0), 1)
            tl.store(centre + place * (2 * D) + D + rows, tl.sqrt(square))
