# mypy: ignore-errors
"""From a fast kernel's float32 sums to the fields, in float64, and the verdict which rows are to be done again.

A kernel of its own, so that the fast ones spend their time on tiles. The sums of a row lie where its fields will: value i in
half i % 2 of field i // 2, so that nobody overwrites what another still reads.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from isotherm.ops.triton.fields_kernel import LN2, NO_KEY, NOTHING, keep_fields

FROZEN = tl.constexpr(2.0**-9)
MANY = tl.constexpr(4096)
FEW = tl.constexpr(64)
DOUBT = tl.constexpr(2.0**-11)


@triton.jit
def _pair(raw, n, i: tl.constexpr, inside):
    """The values that lie where field i will."""
    return tl.split(tl.load(raw[:, None] + i * 2 * n + tl.arange(0, 2)[None, :], mask=inside[:, None], other=0.0))


@triton.jit
def _least(count):
    """What a difference must keep of its terms to be trusted: the more numbers were added up, the more was rounded off."""
    return FROZEN * tl.maximum(count.to(tl.float32) / MANY, 1.0)


@triton.jit
def moments(sums, squares, direct, base, unit, CHUNKS: tl.constexpr):
    """Mean and Σ(s − mean)² of the `direct` keys of a row, in nats, and whether they have digits enough."""
    # Not to be trusted where logits are far from the reference for their spread (a few keys beside whole chunks of them
    # weigh too little for that to matter).
    far = (squares - sums * sums / direct < _least(direct) * squares) & (direct > FEW if CHUNKS else direct > 1)
    mean = sums.to(tl.float64) / tl.maximum(direct, 1).to(tl.float64)
    spread = tl.maximum(squares.to(tl.float64) - mean * sums.to(tl.float64), 0.0) * (unit * unit)
    return tl.where(direct > 0, (mean + base) * unit, 0.0), spread, far


@triton.jit
def merged(mean, spread, direct, seen, along, reach, square, scale):
    """The same of all the keys a row sees: `direct` of them above, and the others in whole chunks (`gram_kernel`).

    Of those: q·k̄, reach = Σ|qᵢ|√(Σkᵢ² + 4 Σ(kᵢ − k̄ᵢ)²), and Σ(q·k − q·k̄)².
    """
    others = direct.to(tl.float64)
    share = 1.0 - others / tl.maximum(seen, 1).to(tl.float64)
    between = tl.where(share > 0, along.to(tl.float64) * scale - mean, 0.0)
    spread += tl.maximum(square, 0.0).to(tl.float64) * scale * scale + between * between * share * others
    # Σ k kᵀ is rounded by 2⁻²⁰ of itself, and once more, when it is centred and cut into parts, by 2⁻¹⁸. By Cauchy and
    # Schwarz that moves the square by less than 2⁻²⁰ reach²: by 2⁻⁹ of the spread, were all of it in one direction.
    reach = reach.to(tl.float64) * scale
    return mean + between * share, spread, reach * reach * DOUBT > spread


@triton.jit(do_not_specialize=["queries", "total_rows", "split_keys"])
def finish(raw, fields, first_key, broken, marks, lse_ptr, queries, factor, unit_high, unit_low, total_rows, split_keys,
           BM: tl.constexpr, OUTPUT: tl.constexpr, CHUNKS: tl.constexpr, LIMIT: tl.constexpr,
           EARLY: tl.constexpr):  # fmt: skip
    """BM rows of a head and split. `unit` turns log₂ units into nats."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    blocks, n, split = tl.cdiv(queries, BM), total_rows.to(tl.int64), tl.program_id(1).to(tl.int64)
    head, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    rows = block * BM + tl.arange(0, BM)
    inside = rows < queries
    at = head * queries + rows
    raw += split * 16 * n + 2 * at
    reference, big = _pair(raw, n, 0, inside)
    total, total2 = _pair(raw, n, 1, inside)
    cross, sink = _pair(raw, n, 2, inside)
    sums, squares = _pair(raw, n, 3, inside)
    # `limit` is the index of the last key the row sees; `direct` of the keys up to it are in sums and squares.
    limit, direct = _pair(raw, n, 4, inside)
    limit, direct = limit.to(tl.int32, bitcast=True), direct.to(tl.int32, bitcast=True)
    some = limit >= 0
    # float64 numbers cannot be passed to a kernel; two float32 parts can.
    unit = tl.full([BM], 0.0, tl.float64) + unit_high + unit_low
    scale, base = unit * factor, reference.to(tl.float64)
    mean, spread, blurred = moments(sums, squares, direct, base, unit, CHUNKS)
    if CHUNKS:
        along, reach = _pair(raw, n, 5, inside)
        square, _ = _pair(raw, n, 6, inside)
        mean, spread, doubtful = merged(mean, spread, direct, limit + 1, along, reach, square, scale)
        blurred |= doubtful
    # Nearly frozen: what is left beside the largest key has too few digits.
    blurred |= total - big < _least(limit) * big
    # The reference is one of the logits, so the largest weight is 1 at least: but where rounding so large a logit is seen.
    fine = (
        ((big <= LIMIT) & (big > 0.5) | (some == 0)) & (tl.abs(cross) < float("inf")) & ((blurred & (limit > 0)) == 0)
    )
    big = tl.where(some, big, 1.0)
    top, one = tl.log2(big).to(tl.float64), 1.0 / big.to(tl.float64)
    rest = tl.where(limit > 0, total.to(tl.float64) * one - 1.0, 0.0)
    rest2 = tl.where(limit > 0, total2.to(tl.float64) * one * one - 1.0, 0.0)
    peak = tl.where(some, (base + top) * unit, NOTHING)
    tl.debug_barrier()  # every lane has read before any writes
    keep_fields(
        fields, first_key, broken, split, n, at, inside,
        tl.where(some, limit + 1, 0).to(tl.float64), mean, spread, peak, rest, rest2,
        (cross.to(tl.float64) * one - top * (1.0 + rest)) * unit, tl.where(some, sink.to(tl.float64) * scale, NOTHING),
        tl.where(some, split * split_keys, NO_KEY), inside == 0,
    )  # fmt: skip
    tl.store(marks + split * n + at, tl.where(fine, 0, 1).to(tl.int8), mask=inside)
    if OUTPUT:
        lse = peak + tl.log2(1.0 + rest.to(tl.float32)).to(tl.float64) * LN2
        tl.store(lse_ptr + at, tl.where(some, lse.to(tl.float32), float("-inf")), mask=inside)
