# mypy: ignore-errors
"""The kernel that merges the fields of one row over disjoint sets of keys."""

import triton
import triton.language as tl

from isotherm.ops.triton.shared_kernel import NO_KEY, NOTHING, store_fields


@triton.jit(do_not_specialize=["splits", "total_rows"])
def merge_splits(parts, part_keys, fields, first_key, broken, splits, total_rows, PARTS: tl.constexpr,
                 BLOCK: tl.constexpr):  # fmt: skip
    """Merge all splits of BLOCK rows at once, in float64, as `RowStats.merge` does. `program_id(1)` is the scale.

    PARTS is `splits` rounded up to a power of two.
    """
    field_stride, scale = total_rows.to(tl.int64), tl.program_id(1).to(tl.int64)
    parts, part_keys = parts + scale * splits * 8 * field_stride, part_keys + scale * splits * field_stride
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row_exists, part = at < field_stride, tl.arange(0, PARTS)[:, None]
    there = (part < splits) & row_exists[None, :]
    here = parts + part.to(tl.int64) * (8 * field_stride) + at[None, :]
    # Each [splits, rows].
    counts = tl.load(here, mask=there, other=0.0)
    means = tl.load(here + field_stride, mask=there, other=0.0)
    m2 = tl.load(here + 2 * field_stride, mask=there, other=0.0)
    peaks = tl.load(here + 3 * field_stride, mask=there, other=NOTHING)
    rests = tl.load(here + 4 * field_stride, mask=there, other=0.0)
    rests2 = tl.load(here + 5 * field_stride, mask=there, other=0.0)
    crosses = tl.load(here + 6 * field_stride, mask=there, other=0.0)
    logits = tl.load(here + 7 * field_stride, mask=there, other=NOTHING)
    keys = tl.load(part_keys + part.to(tl.int64) * field_stride + at[None, :], mask=there, other=NO_KEY)
    count = tl.sum(counts, 0)  # [rows]
    mean = tl.sum(means * counts, 0) / tl.maximum(count, 1.0)  # [rows]
    mean_gap = means - mean[None, :]  # [splits, rows]
    peak, first = tl.max(peaks, 0), tl.min(keys, 0)  # [rows]
    below_peak = tl.where(peaks == NOTHING, 0.0, peaks - peak[None, :])  # [splits, rows]
    weight = tl.where(peaks == NOTHING, 0.0, tl.exp(below_peak))  # [splits, rows]
    # The row's largest key is the largest of one split. The largest keys of the other splits join the rest.
    peak_split = tl.min(tl.where(peaks == peak[None, :], part, PARTS), 0)  # [rows]
    other = tl.where(part == peak_split[None, :], 0.0, weight)  # [splits, rows]
    cross = tl.sum(weight * (crosses + below_peak * (1.0 + rests)), 0)  # [rows]
    store_fields(
        fields, first_key, broken, scale, field_stride, at, row_exists, count, mean,
        tl.sum(m2 + counts * mean_gap * mean_gap, 0), peak,
        tl.sum(weight * rests + other, 0), tl.sum(weight * weight * rests2 + other * other, 0), cross,
        tl.max(tl.where(keys == first[None, :], logits, NOTHING), 0), first, (tl.abs(cross) < float("inf")) == 0,
    )  # fmt: skip
