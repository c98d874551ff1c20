# mypy: ignore-errors
"""How a kernel leaves a row: its output, and its fields in the order of `fields.NAMES`; and the numbers they share."""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1e300)
"""The logits of a row without keys."""
NO_KEY = tl.constexpr(9223372036854775807)


@triton.jit
def keep_fields(fields, first_key, broken, part, n, at, inside, count, mean, m2, peak, rest, rest2, cross, first_logit,
                key, bad):  # fmt: skip
    """Of the rows `at` among `n`; `part` of several splits or scales."""
    fields, first_key, broken = fields + part * 8 * n + at, first_key + part * n + at, broken + part * n + at
    tl.store(fields, count, mask=inside)
    tl.store(fields + n, mean, mask=inside)
    tl.store(fields + 2 * n, m2, mask=inside)
    tl.store(fields + 3 * n, peak, mask=inside)
    tl.store(fields + 4 * n, rest, mask=inside)
    tl.store(fields + 5 * n, rest2, mask=inside)
    tl.store(fields + 6 * n, cross, mask=inside)
    tl.store(fields + 7 * n, first_logit, mask=inside)
    tl.store(first_key, key, mask=inside)
    tl.store(broken, bad, mask=inside)


@triton.jit
def divisor(total, largest, DTYPE: tl.constexpr):
    """What an output is divided by: the sum of the weights, the largest of them rounded as for the product with the values.

    Of a frozen row it is all there is, and the output then is that key's value to the last bit.
    """
    return tl.where(total > 0, total + (largest.to(DTYPE).to(tl.float32) - largest), 1.0)
