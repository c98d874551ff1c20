"""The memory check of `bounds.py`, under which every other test here runs, finds an access out of bounds."""

import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's memory is watched, not a GPU's")


@triton.jit
def copy(source, into, ahead, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(into + at, tl.load(source + at + ahead, mask=at < N - 1, other=0.0))


@pytest.mark.parametrize("room", [8, 7])
@pytest.mark.parametrize("ahead", [0, 1, 2, -1])
def test_a_kernel_stays_in_the_tensors_it_was_given(ahead, room):
    """The access is inside the same storage, but outside the view that the kernel was given."""
    source, into = torch.arange(12.0)[2:10], torch.zeros(12)[2 : 2 + room]
    if ahead in (0, 1) and room == 8:
        copy[(1,)](source, into, ahead, N=8)
        assert into.tolist() == [*source[ahead : ahead + 7].tolist(), 0.0]
    else:
        with pytest.raises(Exception, match=r"1 of . elements are in none of the tensors given"):
            copy[(1,)](source, into, ahead, N=8)
