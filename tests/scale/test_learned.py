"""Learned scales: their start, their shapes, and that they learn."""

import pytest
import torch

from isotherm.errors import ArgumentError
from isotherm.scale import (
    Cosine,
    InverseSqrt,
    LogN,
    PerDim,
    PerHead,
    QKNorm,
    Relative,
    Rule,
    ScalableSoftmax,
    Sigmoid,
    Sinks,
    Site,
    SoftCap,
    value,
)

BATCH, HEADS, QUERIES, DIM = 2, 3, 5, 7


def site() -> Site:
    return Site(DIM, HEADS, torch.arange(QUERIES), torch.arange(1, QUERIES + 1).view(1, 1, -1))


@pytest.mark.parametrize("rule", [PerHead(), PerDim()], ids=str)
def test_left_out_it_is_one_over_sqrt_d(rule: Rule) -> None:
    assert value(rule, 64, 11) == pytest.approx(0.125, rel=1e-15)


def test_per_dim_at_zero_is_one_over_sqrt_d() -> None:
    assert value(PerDim(torch.zeros(64, dtype=torch.float64)), 64, 11) == pytest.approx(0.125, rel=1e-12)


def test_per_dim_by_hand() -> None:
    """softplus(1) = ln(1 + e) = 1.3132616875; ÷ ln 2 = 1.8946361; ÷ √4 = 0.94731806."""
    rule = PerDim(torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    multiplier = rule.resolve(Site.single(4, 11)).multiplier
    assert isinstance(multiplier, torch.Tensor)
    assert multiplier.tolist() == pytest.approx([0.5, 0.94731806, 0.5, 0.5], rel=1e-7)
    assert value(rule, 4, 11) is None, "four different numbers are not one"


def test_per_head_scales_each_head_by_its_own_number() -> None:
    q = torch.randn(BATCH, HEADS, QUERIES, DIM)
    scaled, _ = PerHead(torch.tensor([2.0, 3.0, 5.0])).resolve(site()).apply(q, q)
    for head, factor in enumerate([2.0, 3.0, 5.0]):
        torch.testing.assert_close(scaled[:, head], q[:, head] * factor)


def test_per_dim_scales_each_dimension_by_its_own_number() -> None:
    q = torch.ones(BATCH, HEADS, QUERIES, DIM, dtype=torch.float64)
    weight = torch.linspace(-1, 1, DIM, dtype=torch.float64)
    scaled, _ = PerDim(weight).resolve(site()).apply(q, q)
    expected = torch.log1p(weight.exp()) / (0.6931471805599453 * DIM**0.5)
    torch.testing.assert_close(scaled[1, 2, 3], expected)


@pytest.mark.parametrize(
    ("build", "size"),
    [
        pytest.param(PerHead, HEADS, id="per-head"),
        pytest.param(PerDim, DIM, id="per-dim"),
        pytest.param(ScalableSoftmax, HEADS, id="ssmax"),
        pytest.param(Cosine, HEADS, id="cosine"),
    ],
)
def test_gradient_reaches_every_entry(build: type[Rule], size: int) -> None:
    parameter = torch.nn.Parameter(torch.full((size,), 0.5))
    q = torch.ones(BATCH, HEADS, QUERIES, DIM)
    scaled, _ = build(parameter).resolve(site()).apply(q, q)  # type: ignore[call-arg]
    scaled.sum().backward()
    assert parameter.grad is not None
    assert (parameter.grad != 0).all()


def test_gradient_reaches_the_sinks() -> None:
    parameter = torch.nn.Parameter(torch.zeros(HEADS))
    sink = Sinks(parameter).resolve(site()).sink
    assert sink is not None
    sink.sum().backward()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        pytest.param(PerHead, "scale", id="per-head"),
        pytest.param(PerDim, "weight", id="per-dim"),
        pytest.param(ScalableSoftmax, "s", id="ssmax"),
        pytest.param(Cosine, "logit_scale", id="cosine"),
        pytest.param(Sinks, "alpha", id="sinks"),
    ],
)
def test_wrong_tensors_are_named(build: type[Rule], argument: str) -> None:
    for bad in (torch.ones(3, 5), torch.ones(3, dtype=torch.int64)):
        with pytest.raises(ArgumentError, match=rf"^{argument}: expected a floating-point tensor of shape \[n\]"):
            build(bad)  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match=rf"^{argument}: .* got torch.float32 \[11\]"):
        build(torch.ones(11)).resolve(site())  # type: ignore[call-arg]


@pytest.mark.parametrize("build", [PerHead, PerDim])
def test_a_number_is_not_a_learned_tensor(build: type[Rule]) -> None:
    with pytest.raises(ArgumentError, match="floating-point tensor"):
        build(0.125)  # type: ignore[call-arg]


STARTS = {
    InverseSqrt(): {},
    PerHead(): {"scale": [DIM**-0.5] * HEADS},
    PerDim(): {"weight": [0.0] * DIM},
    Sinks(0.3): {"alpha": [0.3] * HEADS},
    ScalableSoftmax(0.5): {"s": [0.5] * HEADS},
    QKNorm(): {"q_gain": [1.0] * DIM, "k_gain": [1.0] * DIM},
    QKNorm(over="width"): {"q_gain": [1.0] * (HEADS * DIM), "k_gain": [1.0] * (HEADS * DIM)},
    PerHead() * Sinks(0.3): {"scale": [DIM**-0.5] * HEADS, "alpha": [0.3] * HEADS},
}


@pytest.mark.parametrize(("rule", "expected"), STARTS.items(), ids=str)
def test_what_a_model_trains_and_where_it_starts(rule: Rule, expected: dict[str, list[float]]) -> None:
    learned = rule.learns(HEADS, DIM)
    assert {name: tensor.tolist() for name, tensor in learned.items()} == {
        name: pytest.approx(numbers) for name, numbers in expected.items()
    }


def test_a_tensor_that_a_rule_holds_is_where_it_starts_and_is_copied() -> None:
    held = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    for rule, name in ((PerHead(held), "scale"), (Sinks(held), "alpha"), (ScalableSoftmax(held), "s")):
        start = rule.learns(HEADS, DIM)[name]
        assert torch.equal(start, held)
        assert not start.requires_grad
        start.zero_()
    assert held.tolist() == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (InverseSqrt(), 0.125),
        (InverseSqrt() * Relative(2.0), 0.25),
        (PerHead(), None),
        (LogN(16), None),
        (SoftCap(5.0), None),
        (QKNorm(), None),
        (Sigmoid(), None),
    ],
    ids=str,
)
def test_a_rule_that_is_one_fixed_number(rule: Rule, expected: float | None) -> None:
    assert rule.number(64, 3) == expected


def test_what_a_rule_trains_is_asked_with_the_heads_first() -> None:
    """A rule of one's own may train only where there are several heads."""

    class Own(InverseSqrt):
        def learns(self, heads: int, head_dim: int) -> dict[str, torch.Tensor]:
            return {"gain": torch.ones(head_dim)} if heads > 1 else {}

    assert (Own().number(64, 1), Own().number(64, 3), Own().number(1, 3)) == (0.125, None, None)
