"""A call like an earlier one follows its plan: nothing is checked again, and every number is what it would be without."""

import pytest
import torch

from isotherm import scale
from isotherm.errors import ArgumentError
from isotherm.ops import api, attention, kept


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    """Other tests have kept as many tensors as are kept at a time."""
    monkeypatch.setattr(kept, "_kept", {})


OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "top-left": {"causal": "top-left"},
    "a number": {"scale": 0.3},
    "statistics": {"causal": True, "stats": True},
    "rows": {"causal": True, "rows": 3},
    "reference": {"impl": "reference", "stats": True},
}


def draw(seed, queries=7, *, backward=False):
    torch.manual_seed(seed)
    return [torch.randn(2, 2, n, 8, requires_grad=backward) for n in (queries, 9, 9)]


def numbers(found):
    stats = [] if found.stats is None else [found.stats.entropy, found.stats.max_logit, found.stats.n]
    return [found.output, *stats, *([] if found.lse is None else [found.lse])]


def planned(monkeypatch):
    """The calls that were checked."""
    checked, real = [], api.check_tensors
    monkeypatch.setattr(api, "check_tensors", lambda *given: (checked.append(1), real(*given)))
    return checked


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", OPTIONS)
def test_the_same_numbers_without_checks(kind, backward, monkeypatch):
    checked = planned(monkeypatch)
    attention(*draw(0, backward=backward), **OPTIONS[kind])
    got = attention(*draw(1, backward=backward), **OPTIONS[kind])
    assert len(checked) == 1
    api._plans.clear()
    want = attention(*draw(1, backward=backward), **OPTIONS[kind])
    assert (got.impl, got.output.requires_grad) == (want.impl, backward)
    assert len(checked) == 2
    assert all(map(torch.equal, numbers(got), numbers(want)))
    assert (got.stats is None) == (want.stats is None)
    if got.stats is not None:
        assert got.stats.label == want.stats.label
        assert got.stats.total_rows == want.stats.total_rows


def test_another_kind_has_a_plan_of_its_own(monkeypatch):
    checked = planned(monkeypatch)
    q, k, v = draw(0)
    calls = [
        ((q, k, v), {}),
        ((q, k, v), {"causal": True}),
        ((q, k, v), {"causal": "top-left"}),
        ((q, k, v), {"scale": 1.0}),
        ((q, k, v), {"stats": True}),
        ((q, k, v), {"rows": 3}),
        ((q, k, v), {"impl": "blockwise"}),
        ((q, k[:, :, :8], v[:, :, :8]), {}),
        ((q, k, v[..., :4]), {}),
        ((q, k[:, :1], v[:, :1]), {}),
        ((q.double(), k.double(), v.double()), {}),
        ((q.clone().requires_grad_(), k, v), {}),
    ]
    for number, (tensors, options) in enumerate(calls, 1):
        for _ in range(2):
            attention(*tensors, **options)
        assert len(checked) == number
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(q, k, v).output.dtype is torch.bfloat16
    assert attention(q, k, v).output.dtype is torch.float32


@pytest.mark.parametrize(
    "wrong", [{"causal": 1}, {"scale": True}, {"rows": True}, {"rows": torch.tensor([99])}, {"scale": float("nan")}]
)
def test_what_equals_a_right_option_is_refused_all_the_same(wrong):
    """1 equals True, and True equals 1.0."""
    q, k, v = draw(0)
    for right in ({"causal": True}, {"scale": 1.0}, {"rows": 1}):
        attention(q, k, v, **right)
    for _ in range(2):
        with pytest.raises(ArgumentError):
            attention(q, k, v, **wrong)


@pytest.mark.parametrize(
    "option", [{"mask": torch.ones(7, 9, dtype=torch.bool)}, {"scale": scale.LogN(8)}, {"window": 2}]
)
def test_what_numbers_may_change_is_checked_every_time(option, monkeypatch):
    checked = planned(monkeypatch)
    for _ in range(2):
        attention(*draw(0), **option)
    assert len(checked) == 2


def test_only_tensors_that_are_kept_anyway(monkeypatch):
    """A plan made while a CUDA graph is captured must not hold memory of the graph."""
    monkeypatch.setattr(kept, "LONGEST", 5)
    attention(*draw(0))
    assert not api._plans


def test_so_many_and_no_more(monkeypatch):
    monkeypatch.setattr(api, "MOST_PLANS", 3)
    for queries in range(1, 6):
        attention(*draw(0, queries))
    assert len(api._plans) == 3
