"""Rules that grow with the context: by hand, and where they count keys rather than positions."""

from math import log

import pytest
import torch

from isotherm.errors import ArgumentError
from isotherm.scale import (
    InverseSqrt,
    Llama4Temperature,
    LogN,
    Ministral3Temperature,
    Rule,
    ScalableSoftmax,
    Site,
    value,
)


@pytest.mark.parametrize(
    ("rule", "keys", "expected"),
    [
        pytest.param(LogN(512), 1, 1.0, id="log-n-one-key"),
        pytest.param(LogN(512), 512, 1.0, id="log-n-at-the-training-length"),
        pytest.param(LogN(512), 4096, 12 / 9, id="log-n-ln(2^12)/ln(2^9)"),
        pytest.param(LogN(1024) * InverseSqrt(), 1 << 20, 2 * 0.125, id="log-n-times-1/sqrt(64)"),
        pytest.param(ScalableSoftmax(), 1024, 0.43 * 10 * 0.6931471805599453, id="ssmax-0.43·10·ln2"),
        pytest.param(ScalableSoftmax(2.0), 1, 0.0, id="ssmax-one-key"),
        pytest.param(Llama4Temperature(), 8191, 1.0, id="llama-4-position-8190"),
        pytest.param(Llama4Temperature(), 8192, 1 + 0.1 * 0.6931471805599453, id="llama-4-position-8191-steps"),
        pytest.param(Llama4Temperature(), 3 * 8192, 1 + 0.2 * 0.6931471805599453, id="llama-4-1+0.1·ln4"),
        pytest.param(Llama4Temperature(7, 0.5), 7, 1 + 0.5 * 0.6931471805599453, id="llama-4-own-numbers"),
        pytest.param(Ministral3Temperature(), 16384, 1.0, id="ministral-3-position-16383"),
        pytest.param(
            Ministral3Temperature(), 16385, 1 + 0.1 * 0.6931471805599453, id="ministral-3-position-16384-steps"
        ),
        pytest.param(
            Ministral3Temperature(7, 0.5), 22, 1 + 0.5 * 1.3862943611198906, id="ministral-3-1+0.5·ln(1+⌊21/7⌋)"
        ),
    ],
)
def test_number(rule: Rule, keys: int, expected: float) -> None:
    assert value(rule, 64, keys) == pytest.approx(expected, rel=1e-12)


def test_log_n_is_continuous_where_it_sets_in() -> None:
    below, at, above = (value(LogN(100), 5, keys) for keys in (99, 100, 101))
    assert below == at == 1
    assert above is not None
    assert 1 < above < 1.003


@pytest.mark.parametrize("rule", [LogN(2), ScalableSoftmax(1.0)], ids=str)
def test_keys_are_counted_not_positions(rule: Rule) -> None:
    """Two packed documents of 3 and 4 tokens: the second one's first query sees one key, though it stands at 3."""
    visible = torch.tensor([1, 2, 3, 1, 2, 3, 4]).view(1, 1, 7)
    multiplier = rule.resolve(Site(5, 3, torch.arange(7), visible)).multiplier
    assert isinstance(multiplier, torch.Tensor)
    assert multiplier.shape == (1, 1, 7, 1)
    assert multiplier.flatten()[:3].tolist() == multiplier.flatten()[3:6].tolist()
    assert multiplier.flatten()[6] > multiplier.flatten()[5]


def test_visible_keys_may_differ_by_sequence_and_head() -> None:
    visible = torch.tensor([[[2, 4, 8]], [[4, 16, 32]]])
    multiplier = LogN(2).resolve(Site(5, 7, torch.arange(3), visible)).multiplier
    assert isinstance(multiplier, torch.Tensor)
    torch.testing.assert_close(multiplier.squeeze(-1), torch.tensor([[[1, 2, 3]], [[2, 4, 5]]], dtype=torch.float64))


def test_scalable_softmax_per_head() -> None:
    s = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    visible = torch.arange(1, 6).view(1, 1, 5)
    multiplier = ScalableSoftmax(s).resolve(Site(7, 3, torch.arange(5), visible)).multiplier
    assert isinstance(multiplier, torch.Tensor)
    assert multiplier.shape == (1, 3, 5, 1)
    assert multiplier[0, 2, 4, 0].item() == pytest.approx(3 * log(5))


@pytest.mark.parametrize("rule", [LogN(), ScalableSoftmax()], ids=str)
def test_a_query_that_sees_nothing_gets_a_finite_number(rule: Rule) -> None:
    multiplier = rule.resolve(Site(5, 1, torch.arange(2), torch.tensor([[[0, 3]]]))).multiplier
    assert isinstance(multiplier, torch.Tensor)
    assert multiplier.isfinite().all()


def test_temperature_goes_by_position() -> None:
    positions = torch.tensor([0, 6, 7, 13, 14])
    seen = torch.ones(1, 1, 5, dtype=torch.int64)
    llama = Llama4Temperature(7, 1.0).resolve(Site(3, 1, positions, seen)).multiplier
    ministral = Ministral3Temperature(7, 1.0).resolve(Site(3, 1, positions, seen)).multiplier
    assert isinstance(llama, torch.Tensor)
    assert isinstance(ministral, torch.Tensor)
    assert llama.flatten().tolist() == pytest.approx([1, 1 + log(2), 1 + log(2), 1 + log(3), 1 + log(3)])
    assert ministral.flatten().tolist() == pytest.approx([1, 1, 1 + log(2), 1 + log(2), 1 + log(3)])


@pytest.mark.parametrize("bad", [0, 1, -7, float("nan")], ids=repr)
def test_train_length_must_have_a_logarithm(bad: float) -> None:
    with pytest.raises(ArgumentError, match="train_length"):
        LogN(bad)


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        pytest.param(lambda: ScalableSoftmax(float("nan")), "s", id="ssmax"),
        pytest.param(lambda: Llama4Temperature(0), "floor_scale", id="floor_scale"),
        pytest.param(lambda: Llama4Temperature(attn_scale=float("nan")), "attn_scale", id="attn_scale"),
        pytest.param(lambda: Ministral3Temperature(-1), "original_length", id="original_length"),
        pytest.param(lambda: Ministral3Temperature(beta=float("inf")), "beta", id="beta"),
    ],
)
def test_bad_numbers_are_named(build: type[Rule], argument: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        build()
    assert caught.value.argument == argument
