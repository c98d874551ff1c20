"""Positions and samples of rows are made once, and never where somebody else would own them."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from isotherm import attention
from isotherm.ops import kept

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(kept, "_kept", {})


def test_they_are_made_once():
    assert kept.positions(3, 4, CPU).tolist() == [3, 4, 5, 6]
    assert kept.positions(3, 4, CPU) is kept.positions(3, 4, CPU)
    assert kept.positions(0, 4, CPU) is not kept.positions(3, 4, CPU)
    assert kept.even_sample(4, 103, CPU) is kept.even_sample(4, 103, CPU)


@pytest.mark.parametrize(("count", "total"), [(1, 9), (4, 103), (102, 103)])
def test_a_sample_has_one_row_of_each_stretch(count, total):
    rows = kept.even_sample(count, total, CPU)
    edges = [i * total // count for i in range(count + 1)]
    assert all(low <= row < high for low, row, high in zip(edges[:-1], rows.tolist(), edges[1:], strict=True))


def test_neither_more_nor_longer_ones_than_agreed(monkeypatch):
    monkeypatch.setattr(kept, "MOST", 2)
    monkeypatch.setattr(kept, "LONGEST", 8)
    kept.positions(0, 9, CPU)
    assert not kept._kept
    for first in range(4):
        assert kept.positions(first, 2, CPU).tolist() == [first, first + 1]
    assert len(kept._kept) == 2


def test_what_inference_made_serves_training():
    q = torch.ones(1, 1, 5, 4, requires_grad=True)
    with torch.inference_mode():
        attention(q, q, q, causal=True, impl="blockwise")
    assert not kept.positions(0, 5, CPU).is_inference()
    attention(q, q, q, causal=True, impl="blockwise").output.sum().backward()


@pytest.mark.parametrize("impl", ["reference", "blockwise", "sdpa"])
def test_who_gets_a_sample_may_write_into_it(impl):
    """A packed batch, for example, adds its offset to the rows."""
    q = torch.ones(1, 1, 9, 4)
    wanted = kept.even_sample(3, 9, CPU).tolist()
    for _ in range(2):
        attention(q, q, q, rows=3, impl=impl).stats.rows.add_(5)
    assert attention(q, q, q, rows=3, impl=impl).stats.rows.tolist() == wanted


def test_a_fake_tensor_stays_within_its_mode():
    with FakeTensorMode():
        assert isinstance(kept.positions(0, 6, CPU), FakeTensor)
    assert not isinstance(kept.positions(0, 6, CPU), FakeTensor)
