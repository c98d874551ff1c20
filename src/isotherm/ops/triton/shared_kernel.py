# mypy: ignore-errors
"""Device functions and constants that several kernels share. README.md in this folder explains the letters."""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1e300)
"""The logits of a row without keys."""
NO_KEY = tl.constexpr(9223372036854775807)
LANES = tl.constexpr(8)
"""A quad of GPU lanes holds 8 adjacent columns of a tile. Sums are kept as [rows, 8] until the last block of keys."""
HALF_LANES = tl.constexpr(4)
"""The same where there are many sums: each lane adds its two columns into one sum."""
HIDDEN = tl.constexpr(-512.0)
"""The exponent t of a hidden key: 2^t is 0, and products with t stay finite."""


@triton.jit
def split_halves(x, BM: tl.constexpr, BN: tl.constexpr):
    """Split x [BM, BN] into its first and second half of columns. No value changes its register."""
    return tl.split(x.reshape(BM, 2, BN // 2).permute(0, 2, 1))  # twice [BM, BN / 2]


@triton.jit
def split_columns(x, BM: tl.constexpr, BN: tl.constexpr):
    """Split x into halves; at 8 columns, into even and odd ones, because a lane holds one of each."""
    if BN > LANES:
        return split_halves(x, BM, BN)
    else:  # noqa: RET505 (as below)
        return tl.split(x.reshape(BM, BN // 2, 2))


@triton.jit
def first_16_columns(s, BM: tl.constexpr, BN: tl.constexpr):
    """Return the first 16 columns of s [BM, BN]."""
    if BN == 16:
        return s
    else:  # noqa: RET505 (without `else` the compiler follows both branches)
        s, _ = split_halves(s, BM, BN)
        return first_16_columns(s, BM, BN // 2)


@triton.jit
def low_high(x, y):
    """Return the smaller and the larger value, elementwise; both are NaN where either is."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL), tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def is_row_max(x):
    """Return bool [rows, lanes], True once in each row: where the row has its largest value."""
    return tl.arange(0, x.shape[1])[None, :] == tl.argmax(x, 1)[:, None]


@triton.jit
def batch_and_heads(head, hq, groups):
    """Return batch, query head and key head of the `head`-th of all B · Hq query heads."""
    b = head // hq
    h = head - b * hq
    return b, h, h // groups


@triton.jit
def store_fields(fields, first_key, broken, part, field_stride, at, row_exists, count, mean, m2, peak, rest, rest2, cross,
                 first_logit, key, is_broken):  # fmt: skip
    """Store the fields of the rows `at`, in the order of `fields.NAMES`. `part` is the index of a split or a scale.

    Consecutive fields of a row are `field_stride` elements apart: the number of rows in all.
    """
    fields = fields + part * 8 * field_stride + at
    first_key, broken = first_key + part * field_stride + at, broken + part * field_stride + at
    tl.store(fields, count, mask=row_exists)
    tl.store(fields + field_stride, mean, mask=row_exists)
    tl.store(fields + 2 * field_stride, m2, mask=row_exists)
    tl.store(fields + 3 * field_stride, peak, mask=row_exists)
    tl.store(fields + 4 * field_stride, rest, mask=row_exists)
    tl.store(fields + 5 * field_stride, rest2, mask=row_exists)
    tl.store(fields + 6 * field_stride, cross, mask=row_exists)
    tl.store(fields + 7 * field_stride, first_logit, mask=row_exists)
    tl.store(first_key, key, mask=row_exists)
    tl.store(broken, is_broken, mask=row_exists)
