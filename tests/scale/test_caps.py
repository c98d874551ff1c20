"""Soft cap, sinks, sigmoid: what a rule hands to the kernel, and the trap of a cap of 0."""

from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.errors import ArgumentError
from isotherm.scale import InverseSqrt, Sigmoid, Sinks, Site, SoftCap, SoftmaxPlusOne, value


def test_soft_cap_beside_a_multiplier() -> None:
    resolved = (SoftCap(50) * InverseSqrt()).resolve(Site.single(64, 11))
    assert (resolved.softcap, resolved.multiplier) == (50.0, 0.125)
    assert value(SoftCap(50), 64, 11) is None
    assert value(SoftCap(50) * InverseSqrt(), 64, 11) == 0.125


def test_soft_cap_zero_is_refused_with_the_reason() -> None:
    with pytest.raises(ArgumentError) as caught:
        SoftCap(0.0)
    assert caught.value.argument == "softcap"
    assert "«off» in some code" in caught.value.text.en
    assert "«every logit 0» in other" in caught.value.text.en
    assert "归零" in caught.value.text.zh


@pytest.mark.parametrize("bad", [-30.0, float("nan"), float("inf"), "50"], ids=repr)
def test_soft_cap_is_positive(bad: float) -> None:
    with pytest.raises(ArgumentError, match=r"^softcap: expected a finite number above 0"):
        SoftCap(bad)


@settings(deadline=None)
@given(logits=st.lists(st.floats(-50, 50), min_size=1, max_size=7), alpha=st.floats(-30, 30))
def test_sink_correction_is_a_softmax_with_one_more_column(logits: list[float], alpha: float) -> None:
    """softmax([s, α]) without its last column ≡ softmax(s)·exp(lse − logaddexp(lse, α))."""
    s = torch.tensor(logits, dtype=torch.float64)
    sink = Sinks(alpha).resolve(Site.single(5, len(logits))).sink
    assert sink is not None
    with_column = torch.cat([s, sink.double()]).softmax(0)[:-1]
    lse = s.logsumexp(0)
    torch.testing.assert_close(s.softmax(0) * (lse - torch.logaddexp(lse, sink.double())).exp(), with_column)


def test_softmax_plus_one_is_a_sink_of_zero() -> None:
    """Logits (0, ln 2): 1/(1 + 1 + 2) and 2/4; the missing quarter is the + 1."""
    sink = SoftmaxPlusOne().resolve(Site.single(5, 2, heads=3)).sink
    assert sink is not None
    assert sink.tolist() == [0, 0, 0]
    s = torch.tensor([0.0, log(2)], dtype=torch.float64)
    lse = s.logsumexp(0)
    weights = s.softmax(0) * (lse - torch.logaddexp(lse, sink[0].double())).exp()
    assert weights.tolist() == pytest.approx([0.25, 0.5])


def test_sinks_one_number_for_all_heads_or_one_each() -> None:
    same = Sinks(-2.5).resolve(Site.single(5, 2, heads=3)).sink
    each = Sinks(torch.tensor([1.0, 2.0, 3.0])).resolve(Site.single(5, 2, heads=3)).sink
    assert same is not None
    assert each is not None
    assert (same.tolist(), each.tolist()) == ([-2.5] * 3, [1, 2, 3])


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16], ids=str)
def test_a_sink_that_is_a_number_keeps_its_digits(default: torch.dtype) -> None:
    torch.set_default_dtype(default)
    try:
        sink = Sinks(0.3).resolve(Site.single(5, 2, heads=2)).sink
    finally:
        torch.set_default_dtype(torch.float32)
    assert sink is not None
    assert sink.tolist() == [0.3, 0.3]


def test_a_sink_left_out_is_that_of_softmax_plus_one() -> None:
    left_out, one = (rule.resolve(Site.single(5, 2, heads=3)).sink for rule in (Sinks(), SoftmaxPlusOne()))
    assert left_out is not None
    assert one is not None
    assert left_out.tolist() == one.tolist() == [0, 0, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=repr)
def test_a_sink_is_finite(bad: float) -> None:
    with pytest.raises(ArgumentError, match=r"^alpha"):
        Sinks(bad)


def test_sigmoid_bias_counts_visible_keys() -> None:
    visible = torch.tensor([1, 2, 5]).view(1, 1, 3)
    bias = Sigmoid().resolve(Site(7, 3, torch.arange(3), visible)).sigmoid_bias
    assert bias is not None
    assert bias.shape == (1, 1, 3, 1)
    assert bias.flatten().tolist() == pytest.approx([0, -0.6931471805599453, -1.6094379124341003])


def test_sigmoid_of_many_equal_keys_sums_to_about_one() -> None:
    """n·σ(−ln n) = n/(1 + n) = 997/998."""
    bias = Sigmoid().resolve(Site.single(5, 997)).sigmoid_bias
    assert bias is not None
    assert 997 * bias.sigmoid().item() == pytest.approx(997 / 998)


@pytest.mark.parametrize("rule", [SoftmaxPlusOne(), Sinks(), Sigmoid()], ids=str)
def test_no_multiplier(rule: Sigmoid) -> None:
    assert value(rule, 64, 11) is None
