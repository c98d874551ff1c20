"""The interface: composition, conflicts, and the one number of `value`."""

from math import isclose, prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.errors import ArgumentError
from isotherm.scale import (
    ByLayer,
    Cosine,
    Fixed,
    InverseSqrt,
    LogN,
    MuP,
    NoScale,
    PerHead,
    Product,
    QKNorm,
    Relative,
    Resolved,
    Rule,
    Sigmoid,
    Sinks,
    Site,
    SoftCap,
    SoftmaxPlusOne,
    YaRN,
    value,
)

MULTIPLIERS: tuple[Rule, ...] = (
    InverseSqrt(),
    MuP(),
    NoScale(),
    Fixed(0.3),
    ByLayer(4),
    LogN(7),
    YaRN(8),
    Relative(1.5),
)
three_rules = st.tuples(*[st.sampled_from(MULTIPLIERS)] * 3)


@settings(deadline=None)
@given(rules=three_rules, keys=st.integers(1, 10_000))
def test_multipliers_multiply_in_any_order_and_grouping(rules: tuple[Rule, Rule, Rule], keys: int) -> None:
    a, b, c = rules
    expected = prod(value(rule, 11, keys) or 0 for rule in rules)
    for product in ((a * b) * c, a * (b * c), c * b * a, b * (c * a)):
        number = value(product, 11, keys)
        assert number is not None
        assert isclose(number, expected, rel_tol=1e-12)


def test_products_are_flat() -> None:
    a, b, c = InverseSqrt(), NoScale(), LogN()
    assert (a * b) * c == a * (b * c) == Product((a, b, c))


def test_multipliers_of_every_shape_broadcast_together() -> None:
    site = Site(7, 3, torch.arange(5), torch.arange(1, 6).view(1, 1, 5).expand(2, 1, 5))
    rule = PerHead(torch.ones(3)) * LogN(2) * YaRN(4, rotary_dims=5) * InverseSqrt()
    q = torch.ones(2, 3, 5, 7)
    scaled, k = rule.resolve(site).apply(q, q)
    assert scaled.shape == q.shape
    assert k is q
    m = 1.1386294361119891**2
    assert scaled[1, 2, 4, [0, 6]].tolist() == pytest.approx(
        [m * 2.321928094887362 / 7**0.5, 2.321928094887362 / 7**0.5]
    )


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        pytest.param(SoftCap(30) * SoftCap(50), "soft cap", id="two-caps"),
        pytest.param(QKNorm() * Cosine(), "normalisation", id="two-norms"),
        pytest.param(Sinks() * InverseSqrt() * SoftmaxPlusOne(), "sink", id="two-sinks"),
        pytest.param(Sigmoid() * Sigmoid(), "sigmoid", id="two-sigmoids"),
        pytest.param(Sigmoid() * Sinks(), "no denominator", id="sigmoid-with-a-sink"),
    ],
)
def test_conflicts_are_refused(rule: Rule, what: str) -> None:
    with pytest.raises(ArgumentError, match=what) as caught:
        rule.resolve(Site.single(5, 7))
    assert caught.value.argument == "scale"


def test_all_kinds_that_do_not_conflict_go_together() -> None:
    resolved = (QKNorm() * SoftCap(30) * Sinks(2.0) * Fixed(0.3)).resolve(Site.single(5, 7))
    assert resolved.normalise is not None
    assert resolved.sink is not None
    assert (resolved.softcap, resolved.multiplier) == (30.0, 0.3)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(NoScale(), 1.0, id="none-is-a-number"),
        pytest.param(QKNorm(), None, id="norm-alone"),
        pytest.param(QKNorm() * NoScale(), 1.0, id="norm-and-none"),
        pytest.param(Sinks() * SoftCap(5), None, id="nothing-multiplies"),
        pytest.param(Cosine(), 10.0, id="cosine"),
    ],
)
def test_value_knows_what_is_a_multiplier(rule: Rule, expected: float | None) -> None:
    assert value(rule, 64, 11) == (expected if expected is None else pytest.approx(expected))


def test_value_of_several_heads() -> None:
    assert value(PerHead(torch.tensor([0.5, 0.5, 0.5])), 5, 7, heads=3) == 0.5
    assert value(PerHead(torch.tensor([0.5, 0.25, 0.5])), 5, 7, heads=3) is None


@pytest.mark.parametrize(
    ("head_dim", "keys", "heads", "argument"),
    [(0, 7, 1, "head_dim"), (5, 0, 1, "keys"), (5, 7, 0, "heads"), (5, 2.5, 1, "keys")],
)
def test_site_arguments(head_dim: int, keys: int, heads: int, argument: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        value(InverseSqrt(), head_dim, keys, heads)
    assert caught.value.argument == argument


def test_single_site_is_the_last_query() -> None:
    site = Site.single(5, 7, heads=3)
    assert (site.positions.tolist(), site.visible.tolist(), site.heads) == ([6], [[[7]]], 3)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.float64, 255.765), (torch.float32, 255.765), (torch.bfloat16, 256.0)],
    ids=["float64", "float32", "bfloat16"],
)
def test_apply_keeps_the_dtype_of_q_and_rounds_once(dtype: torch.dtype, expected: float) -> None:
    """255·1.003 = 255.765. In bfloat16 1.003 alone is 1, and the product would be 255; its nearest number is 256."""
    q = torch.full((1, 1, 1, 1), 255.0, dtype=dtype)
    scaled, _ = Resolved(multiplier=torch.tensor(1.003, dtype=torch.float64)).apply(q, q)
    assert scaled.dtype == dtype
    assert scaled.item() == pytest.approx(expected, rel=1e-12 if dtype == torch.float64 else 1e-7)


def test_learned_rules_can_be_compared_and_hashed() -> None:
    rule = PerHead(torch.ones(3))
    assert rule == rule  # noqa: PLR0124
    assert rule != PerHead(torch.ones(3))
    assert len({rule, InverseSqrt(), InverseSqrt()}) == 2
