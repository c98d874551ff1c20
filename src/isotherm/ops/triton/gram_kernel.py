# mypy: ignore-errors
"""Mean and spread of plain logits from sums over the keys alone: O(d²) a row instead of O(n·d), and nothing per logit.

With k̄ the mean key, Σ_j q·k_j = n q·k̄ and Σ_j (q·k_j − q·k̄)² = qᵀ(Σ k kᵀ − n k̄k̄ᵀ)q. `gram` sums k and k kᵀ over chunks
of keys; the last program of a head to be done sums those along the chunks, so that they serve every row that sees whole
chunks. What a row sees beyond those, the attention kernel adds up itself, and it does the product with q at its end,
when a tile is at hand anyway.

The next kernel begins before this one is through (programmatic dependent launch): it wants the sums only when its first
rows are done. That works from one kernel to the next alone, so there is only one here; and all its programs have to be
running, so they are few and small.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents


@triton.jit
def _emit(squares, total, count, parts, centre, place, D: tl.constexpr):
    """Σ(k − k̄)(k − k̄)ᵀ as two bfloat16 numbers that add up to it but for 2⁻¹⁸; k̄; and √(Σk² + 4 Σ(k − k̄)²)."""
    wide, mean = tl.arange(0, D), total / count
    centred = squares - total[:, None] * mean[None, :]
    high = centred.to(parts.dtype.element_ty)
    low = (centred - high.to(tl.float32)).to(parts.dtype.element_ty)
    to = parts + place * (2 * D * D) + wide[:, None] * D + wide[None, :]
    tl.store(to, high)
    tl.store(to + D * D, low)
    doubt = tl.sum(tl.where(wide[:, None] == wide[None, :], tl.fma(centred, 4.0, squares), 0.0), 1)
    tl.store(centre + place * (2 * D) + wide, mean)
    tl.store(centre + place * (2 * D) + D + wide, tl.sqrt(tl.maximum(doubt, 0.0)))


@triton.jit(do_not_specialize=["hkv", "chunk", "chunks"])
def gram(k_desc, second, first, done, parts, centre, hkv, chunk, chunks,
         D: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, SHARED: tl.constexpr, EVERY: tl.constexpr,
         EARLY: tl.constexpr):  # fmt: skip
    """One chunk of a head; the last to be `done` sums up to each chunk (EVERY), or over all.

    second [B·Hkv, chunks, D, D] and first [B·Hkv, chunks, D] hold k kᵀ and k of each chunk meanwhile, if heads are SHARED;
    parts [B·Hkv, chunks or 1, 2 D, D] and centre [B·Hkv, chunks or 1, 2, D] are what `_emit` makes of them.
    """
    if EARLY:
        gdc_launch_dependents()
    head, mine, wide = tl.program_id(0), tl.program_id(1), tl.arange(0, D)
    b, h = head // hkv, head % hkv
    squares, sums = tl.zeros([D, D], tl.float32), tl.zeros([D, 16], tl.float32)
    ones = tl.full([BN, 16], 1.0, k_desc.dtype)
    for i in tl.range(mine * chunk, (mine + 1) * chunk, BN, num_stages=STAGES):
        k = k_desc.load([b, h, i, 0]).reshape(BN, D)
        # The matrix units cut off where float32 rounds: they add up BN keys, not the whole chunk.
        squares = tl.fma(tl.dot(tl.trans(k), k), 1.0, squares)
        sums = tl.fma(tl.dot(tl.trans(k), ones), 1.0, sums)
    total, lead = tl.max(sums, 1), head.to(tl.int64) * chunks
    if SHARED:
        at = second + lead * (D * D) + wide[:, None] * D + wide[None, :]
        tl.store(at + mine.to(tl.int64) * (D * D), squares)
        tl.store(first + (lead + mine) * D + wide, total)
        tl.debug_barrier()
        if tl.atomic_add(done + head, 1, sem="acq_rel") == chunks - 1:
            squares, total = tl.zeros([D, D], tl.float32), tl.zeros([D], tl.float32)
            for i in range(chunks):
                squares += tl.load(at, cache_modifier=".cg")
                total += tl.load(first + (lead + i) * D + wide, cache_modifier=".cg")
                at += D * D
                if EVERY or i == chunks - 1:
                    count = ((i + 1) * chunk).to(tl.float32)
                    _emit(squares, total, count, parts, centre, lead + i if EVERY else head.to(tl.int64), D)
    else:
        _emit(squares, total, chunk.to(tl.float32), parts, centre, lead, D)
