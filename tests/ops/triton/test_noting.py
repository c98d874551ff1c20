"""The kernels of `monitor/noting_kernel.py`, which note attention on a GPU, give what the reference gives."""

import pytest
import torch

from tests.ops.triton import conftest  # noqa: F401  chooses the interpreter before Triton is imported

pytest.importorskip("triton")

from isotherm.monitor import noting
from isotherm.monitor.noting_kernel import note_rows, note_squares

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = {  # batch, heads, key heads, queries, keys, width, causal, masked, rows
    "causal, grouped": (2, 4, 2, 70, 70, 24, True, False, 0),
    "whole blocks": (1, 2, 2, 140, 140, 16, False, False, 0),
    "sampled": (2, 3, 3, 70, 90, 16, False, False, 9),
    "sampled, causal": (3, 2, 2, 37, 37, 8, True, False, 12),
    "masked": (3, 2, 1, 33, 33, 64, True, True, 8),
    "one row": (1, 2, 2, 5, 5, 8, True, False, 1),
}


def state(heads, device="cpu"):
    empty = torch.zeros(9 * heads, dtype=torch.float64, device=device)
    empty[-heads:] = -torch.inf
    return empty


def flag(value, device="cpu"):
    return torch.full((1,), value, dtype=torch.int32, device=device)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bad", [None, torch.nan, torch.inf])
@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_of_the_reference(case, bad):
    b, heads, key_heads, queries, keys, width, causal, masked, rows = CASES[case]
    generator = torch.Generator().manual_seed(0)
    q = 3 * torch.randn(b, queries, heads, width, generator=generator).transpose(1, 2)
    k = torch.randn(b, key_heads, keys, width, generator=generator)
    if bad is not None:
        q[0, 1, -1, 0] = bad
    mask = torch.rand(b, 1, queries, keys, generator=generator) > 0.3 if masked else None
    found, wanted = state(heads, DEVICE), state(heads)
    noting.note(q, k, mask, flag(1), wanted, 0, 0.3, causal, rows)
    given = (one if one is None else one.to(DEVICE) for one in (q, k, mask))
    noting.launch(note_rows, *given, flag(1, DEVICE), found, offset=0, scale=0.3, causal=causal, rows=rows)
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-5, atol=1e-5)
    assert bool(wanted.view(9, heads)[7].any()) == (bad is not None)


def test_nothing_is_noted_unless_the_flag_says_so():
    q = torch.randn(1, 2, 20, 8, device=DEVICE)
    found, squares = state(2, DEVICE), torch.zeros(2, dtype=torch.float64, device=DEVICE)
    noting.launch(note_rows, q, q, None, flag(0, DEVICE), found, offset=0, scale=1.0, causal=True, rows=0)
    noting.launch_squares(note_squares, q, q, flag(0, DEVICE), squares, 0)
    assert torch.equal(found.cpu(), state(2))
    assert not squares.any()


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_squares_are_those_of_both_gradients(heads):
    q, k = (torch.randn(2, 150, count, 24, device=DEVICE).transpose(1, 2) for count in heads)
    pool = torch.zeros(6, dtype=torch.float64, device=DEVICE)
    noting.launch_squares(note_squares, q, k, flag(1, DEVICE), pool, 2)
    wanted = torch.tensor([0, 0, q.double().square().sum(), k.double().square().sum(), 0, 0], dtype=torch.float64)
    torch.testing.assert_close(pool.cpu(), wanted, rtol=1e-5, atol=0)


def test_a_square_of_nothing_is_told_from_none():
    """The pools begin with -0.0, which a gradient of zeros turns into 0.0."""
    nothing, pool = torch.zeros(1, 2, 5, 8, device=DEVICE), torch.full((4,), -0.0, dtype=torch.float64, device=DEVICE)
    noting.launch_squares(note_squares, nothing, nothing, flag(1, DEVICE), pool, 0)
    assert pool.signbit().tolist() == [False, False, True, True]
