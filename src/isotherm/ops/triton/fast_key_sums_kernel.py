# mypy: ignore-errors
"""Sums over the keys alone, which give mean and spread of a row's logits in O(d²) instead of O(n·d).

With k̄ the mean key, Σ_j q·k_j = n q·k̄ and Σ_j (q·k_j − q·k̄)² = qᵀ(Σ k kᵀ − n k̄k̄ᵀ)q. Each program sums k and k kᵀ over
one chunk of keys. The last program of a head to finish adds up the chunks, so that the sums serve every row that sees whole
chunks. The fast pass adds up what a row sees beyond its whole chunks, and multiplies by q at its end (`chunk_moments`).

The fast pass may start before this kernel ends (programmatic dependent launch), since it needs the sums only when its first
rows are done. That reaches from one kernel to the next only, hence a single kernel here. All its programs have to run at
the same time, so they are few and small.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents


@triton.jit
def _store_sums(sum_kk, sum_k, count, scatter, key_means, place, D: tl.constexpr):
    """Store Σ(k − k̄)(k − k̄)ᵀ [d, d] as two bfloat16 parts (their sum is exact to 2⁻¹⁸), k̄ and √(Σk² + 4 Σ(k − k̄)²) [d]."""
    dims, mean = tl.arange(0, D), sum_k / count  # [d]
    centred = sum_kk - sum_k[:, None] * mean[None, :]  # [d, d]
    high = centred.to(scatter.dtype.element_ty)
    low = (centred - high.to(tl.float32)).to(scatter.dtype.element_ty)
    to = scatter + place * (2 * D * D) + dims[:, None] * D + dims[None, :]
    tl.store(to, high)
    tl.store(to + D * D, low)
    error = tl.sum(tl.where(dims[:, None] == dims[None, :], tl.fma(centred, 4.0, sum_kk), 0.0), 1)  # [d]
    tl.store(key_means + place * (2 * D) + dims, mean)
    tl.store(key_means + place * (2 * D) + D + dims, tl.sqrt(tl.maximum(error, 0.0)))


@triton.jit(do_not_specialize=["hkv", "chunk", "chunks"])
def sum_keys(k_desc, chunk_kk, chunk_k, finished, scatter, key_means, hkv, chunk, chunks,
             D: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, SEVERAL: tl.constexpr, PREFIXES: tl.constexpr,
             OVERLAP: tl.constexpr):  # fmt: skip
    """Sum one chunk of a head. The last program to finish stores the sums up to each chunk (PREFIXES) or over all chunks.

    If a head has SEVERAL chunks, chunk_kk [B·Hkv, chunks, D, D] and chunk_k [B·Hkv, chunks, D] hold the sums of each.
    scatter [B·Hkv, chunks or 1, 2 D, D] and key_means [B·Hkv, chunks or 1, 2, D] are what `_store_sums` fills.
    """
    if OVERLAP:
        gdc_launch_dependents()
    head, mine, dims = tl.program_id(0), tl.program_id(1), tl.arange(0, D)
    b, h = head // hkv, head % hkv
    sum_kk, sums = tl.zeros([D, D], tl.float32), tl.zeros([D, 16], tl.float32)
    ones = tl.full([BN, 16], 1.0, k_desc.dtype)  # 16 equal columns: the matrix units' smallest width
    for i in tl.range(mine * chunk, (mine + 1) * chunk, BN, num_stages=STAGES):
        k = k_desc.load([b, h, i, 0]).reshape(BN, D)  # [keys, d]
        # The matrix units truncate where float32 rounds, so they add up BN keys only and not the whole chunk.
        sum_kk = tl.fma(tl.dot(tl.trans(k), k), 1.0, sum_kk)
        sums = tl.fma(tl.dot(tl.trans(k), ones), 1.0, sums)
    sum_k, first_chunk = tl.max(sums, 1), head.to(tl.int64) * chunks  # sum_k [d]
    if SEVERAL:
        at = chunk_kk + first_chunk * (D * D) + dims[:, None] * D + dims[None, :]  # [d, d]
        tl.store(at + mine.to(tl.int64) * (D * D), sum_kk)
        tl.store(chunk_k + (first_chunk + mine) * D + dims, sum_k)
        tl.debug_barrier()
        if tl.atomic_add(finished + head, 1, sem="acq_rel") == chunks - 1:
            sum_kk, sum_k = tl.zeros([D, D], tl.float32), tl.zeros([D], tl.float32)
            for i in range(chunks):
                sum_kk += tl.load(at, cache_modifier=".cg")
                sum_k += tl.load(chunk_k + (first_chunk + i) * D + dims, cache_modifier=".cg")
                at += D * D
                if PREFIXES or i == chunks - 1:
                    count = ((i + 1) * chunk).to(tl.float32)
                    place = first_chunk + i if PREFIXES else head.to(tl.int64)
                    _store_sums(sum_kk, sum_k, count, scatter, key_means, place, D)
    else:
        _store_sums(sum_kk, sum_k, chunk.to(tl.float32), scatter, key_means, first_chunk, D)
