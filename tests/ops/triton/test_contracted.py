"""On a GPU and under the interpreter alike a product and a sum are rounded once."""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def _both(x_ptr, y_ptr, z_ptr, out_ptr, OVER: tl.constexpr):
    i = tl.arange(0, 16)
    x, y, z = tl.load(x_ptr + i), tl.load(y_ptr + i), tl.load(z_ptr + i)
    if OVER == "less":
        made = x * y - z
    elif OVER == "from":
        made = z - x * y
    elif OVER == "plus":
        made = z + x * y
    else:  # as `general_kernel.logits` has it, where that must not be
        made = tl.fma(x, y, 0.0) - z
    tl.store(out_ptr + i, made)


@pytest.mark.parametrize(("over", "left"), [("less", 1), ("from", -1), ("plus", 1), ("apart", 0)])
def test_what_rounding_a_product_leaves_over(over, left, device):
    """(1 + 2⁻¹²)² is 1 + 2⁻¹¹ + 2⁻²⁴, and the last of these is half a unit in the last place."""
    x = torch.full((16,), 1 + 2.0**-12, device=device)
    z = torch.full_like(x, 1 + 2.0**-11) * (-1 if over == "plus" else 1)
    out = torch.empty_like(x)
    _both[(1,)](x, x, z, out, OVER=over)
    assert out.tolist() == [left * 2.0**-24] * 16
