# mypy: ignore-errors
"""From the raw float32 sums of the fast pass to the fields of `RowStats` in float64, and to marks on rows to recompute.

This is a kernel of its own, so that the fast pass spends its time on tiles. The raw sums of a row lie in the memory of its
fields: raw sum i is half i % 2 of field i // 2, so no program overwrites what another still reads. They are:

    0 reference   1 max_w         2 sum_w         3 sum_w2        4 sum_wt     5 first_qk (q·k of the first key)
    6 sum_t       7 sum_t2        8 last_key (int32)              9 direct_keys (int32)
    10 chunk_mean 11 chunk_error  12 chunk_m2

sum_t and sum_t2 are over the `direct_keys` keys beyond the row's whole chunks. For the keys in whole chunks, 10 to 12 are
q·k̄, Σ|qᵢ|√(Σkᵢ² + 4 Σ(kᵢ − k̄ᵢ)²) and Σ(q·k − q·k̄)².
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from isotherm.ops.triton.shared_kernel import LN2, NO_KEY, NOTHING, store_fields

LEAST_SHARE = tl.constexpr(2.0**-9)
"""A difference is trusted if it keeps at least this share of its terms, for sums of up to MANY_KEYS numbers."""
MANY_KEYS = tl.constexpr(4096)
FEW_KEYS = tl.constexpr(64)
"""So few keys beside whole chunks weigh too little for their digits to matter."""
CHUNK_ROUNDING = tl.constexpr(2.0**-11)


@triton.jit
def _load_2(raw, field_stride, i: tl.constexpr, row_exists):
    """Load the raw sums 2i and 2i + 1, each [rows]."""
    at = raw[:, None] + i * 2 * field_stride + tl.arange(0, 2)[None, :]
    return tl.split(tl.load(at, mask=row_exists[:, None], other=0.0))


@triton.jit
def _least_share(count):
    """Return the share that a difference of sums over `count` numbers must keep: rounding grows with the count."""
    return LEAST_SHARE * tl.maximum(count.to(tl.float32) / MANY_KEYS, 1.0)


@triton.jit
def direct_moments(sum_t, sum_t2, direct_keys, base, ln2, KEY_SUMS: tl.constexpr):
    """Return mean and Σ(s − mean)² of the direct keys in nats, and whether they have too few digits, each [rows]."""
    # Digits cancel where the logits are far from the reference, compared with their spread.
    blurred = (sum_t2 - sum_t * sum_t / direct_keys < _least_share(direct_keys) * sum_t2) & (
        direct_keys > FEW_KEYS if KEY_SUMS else direct_keys > 1
    )
    mean = sum_t.to(tl.float64) / tl.maximum(direct_keys, 1).to(tl.float64)
    m2 = tl.maximum(sum_t2.to(tl.float64) - mean * sum_t.to(tl.float64), 0.0) * (ln2 * ln2)
    return tl.where(direct_keys > 0, (mean + base) * ln2, 0.0), m2, blurred


@triton.jit
def add_chunk_moments(mean, m2, direct_keys, count, chunk_mean, chunk_error, chunk_m2, scale):
    """Return mean and Σ(s − mean)² of all `count` keys of a row, and whether they have too few digits, each [rows]."""
    direct = direct_keys.to(tl.float64)
    share = 1.0 - direct / tl.maximum(count, 1).to(tl.float64)
    gap = tl.where(share > 0, chunk_mean.to(tl.float64) * scale - mean, 0.0)
    m2 += tl.maximum(chunk_m2, 0.0).to(tl.float64) * scale * scale + gap * gap * share * direct
    # Σ k kᵀ is rounded by 2⁻²⁰ of itself, and by 2⁻¹⁸ again when it is centred and stored in two parts. By Cauchy-Schwarz
    # that changes chunk_m2 by less than 2⁻²⁰ chunk_error². A row is blurred where this may exceed 2⁻⁹ of m2.
    chunk_error = chunk_error.to(tl.float64) * scale
    return mean + gap * share, m2, chunk_error * chunk_error * CHUNK_ROUNDING > m2


@triton.jit(do_not_specialize=["queries", "total_rows", "split_keys"])
def finish(raw, fields, first_key, broken, marks, lse_ptr, queries, exp2_scale, ln2_high, ln2_low, total_rows, split_keys,
           BM: tl.constexpr, OUTPUT: tl.constexpr, KEY_SUMS: tl.constexpr, LIMIT: tl.constexpr,
           OVERLAP: tl.constexpr):  # fmt: skip
    """Finish BM rows of one head and split. LIMIT is the largest weight that keeps the sums in range."""
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    blocks, field_stride, split = tl.cdiv(queries, BM), total_rows.to(tl.int64), tl.program_id(1).to(tl.int64)
    head, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    rows = block * BM + tl.arange(0, BM)
    row_exists = rows < queries
    at = head * queries + rows
    raw += split * 16 * field_stride + 2 * at
    # Everything below is [rows].
    reference, max_w = _load_2(raw, field_stride, 0, row_exists)
    sum_w, sum_w2 = _load_2(raw, field_stride, 1, row_exists)
    sum_wt, first_qk = _load_2(raw, field_stride, 2, row_exists)
    sum_t, sum_t2 = _load_2(raw, field_stride, 3, row_exists)
    last_key, direct_keys = _load_2(raw, field_stride, 4, row_exists)
    last_key, direct_keys = last_key.to(tl.int32, bitcast=True), direct_keys.to(tl.int32, bitcast=True)
    has_keys = last_key >= 0
    # A kernel takes no float64 numbers, so ln2 comes in two float32 parts.
    ln2 = tl.full([BM], 0.0, tl.float64) + ln2_high + ln2_low
    scale, base = ln2 * exp2_scale, reference.to(tl.float64)
    mean, m2, blurred = direct_moments(sum_t, sum_t2, direct_keys, base, ln2, KEY_SUMS)
    if KEY_SUMS:
        chunk_mean, chunk_error = _load_2(raw, field_stride, 5, row_exists)
        chunk_m2, _ = _load_2(raw, field_stride, 6, row_exists)
        mean, m2, doubtful = add_chunk_moments(
            mean, m2, direct_keys, last_key + 1, chunk_mean, chunk_error, chunk_m2, scale
        )
        blurred |= doubtful
    # Nearly frozen: what is left beside the largest key has too few digits.
    blurred |= sum_w - max_w < _least_share(last_key) * max_w
    # The reference is one of the logits, so max_w is at least 1, except where the rounding of a very large logit shows.
    fine = (
        ((max_w <= LIMIT) & (max_w > 0.5) | (has_keys == 0))
        & (tl.abs(sum_wt) < float("inf"))
        & ((blurred & (last_key > 0)) == 0)
    )
    max_w = tl.where(has_keys, max_w, 1.0)
    max_t, inverse = tl.log2(max_w).to(tl.float64), 1.0 / max_w.to(tl.float64)
    rest = tl.where(last_key > 0, sum_w.to(tl.float64) * inverse - 1.0, 0.0)
    rest2 = tl.where(last_key > 0, sum_w2.to(tl.float64) * inverse * inverse - 1.0, 0.0)
    peak = tl.where(has_keys, (base + max_t) * ln2, NOTHING)
    tl.debug_barrier()  # every lane has read its raw sums before any lane stores fields over them
    store_fields(
        fields, first_key, broken, split, field_stride, at, row_exists,
        tl.where(has_keys, last_key + 1, 0).to(tl.float64), mean, m2, peak, rest, rest2,
        (sum_wt.to(tl.float64) * inverse - max_t * (1.0 + rest)) * ln2,
        tl.where(has_keys, first_qk.to(tl.float64) * scale, NOTHING),
        tl.where(has_keys, split * split_keys, NO_KEY), row_exists == 0,
    )  # fmt: skip
    tl.store(marks + split * field_stride + at, tl.where(fine, 0, 1).to(tl.int8), mask=row_exists)
    if OUTPUT:
        lse = peak + tl.log2(1.0 + rest.to(tl.float32)).to(tl.float64) * LN2
        tl.store(lse_ptr + at, tl.where(has_keys, lse.to(tl.float32), float("-inf")), mask=row_exists)
