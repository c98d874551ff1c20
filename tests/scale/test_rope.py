"""The factors of a stretched rotary embedding, by hand."""

import pytest
import torch

from isotherm.errors import ArgumentError
from isotherm.scale import DeepSeekMscale, InverseSqrt, LongRoPE, Rule, Site, YaRN, value


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(YaRN(1), 1.0, id="yarn-not-stretched"),
        pytest.param(YaRN(0.5), 1.0, id="yarn-shrunk"),
        pytest.param(YaRN(4), 1.1386294361119891**2, id="yarn-(0.1·ln4+1)²"),
        pytest.param(YaRN(32), 1.3465735902799727**2, id="gpt-oss-(0.1·ln32+1)²"),
        pytest.param(YaRN(4, attention_factor=1.5), 2.25, id="yarn-attention-factor-1.5²"),
        pytest.param(YaRN(40, mscale=1.0, mscale_all_dim=1.0), 1.0, id="yarn-equal-mscales-cancel"),
        pytest.param(
            YaRN(40, mscale=1.0, mscale_all_dim=0.5),
            (1.3688879454113936 / 1.1844439727056968) ** 2,
            id="yarn-ratio-of-mscales",
        ),
        pytest.param(YaRN(40, mscale=0.7), 1.3688879454113936**2, id="yarn-one-mscale-alone-is-not-used"),
        pytest.param(LongRoPE(32), 17 / 12, id="phi-3-1+ln(2^5)/ln(2^12)"),
        pytest.param(LongRoPE(1), 1.0, id="longrope-not-stretched"),
        pytest.param(LongRoPE(0.5), 1.0, id="longrope-shrunk"),
        pytest.param(LongRoPE(8, 512), 12 / 9, id="longrope-1+ln(2^3)/ln(2^9)"),
        pytest.param(LongRoPE(8, attention_factor=1.2), 1.44, id="longrope-attention-factor-1.2²"),
        pytest.param(DeepSeekMscale(40), 1.3688879454113936**2, id="deepseek-v3-(0.1·ln40+1)²"),
        pytest.param(DeepSeekMscale(40, 0.707), 1.2608037774058553**2, id="deepseek-v2-lite-(0.0707·ln40+1)²"),
        pytest.param(DeepSeekMscale(40, 0), 1.0, id="deepseek-mscale-0"),
        pytest.param(DeepSeekMscale(1), 1.0, id="deepseek-not-stretched"),
    ],
)
def test_number(rule: Rule, expected: float) -> None:
    assert value(rule, 64, 11) == pytest.approx(expected, rel=1e-12)


def test_latent_attention_needs_m_squared_though_yarn_alone_gives_one() -> None:
    """DeepSeek-V3: 0.07216878364870322 = 192^-½, times 1.3688879454113936²."""
    rope = YaRN(40, mscale=1.0, mscale_all_dim=1.0)
    assert value(rope * InverseSqrt(), 192, 11) == pytest.approx(0.07216878364870322)
    assert value(rope * DeepSeekMscale(40) * InverseSqrt(), 192, 11) == pytest.approx(0.1352337788608801)


@pytest.mark.parametrize("rule", [YaRN(2, 3.0, rotary_dims=3), LongRoPE(2, 64, 3.0, rotary_dims=3)], ids=str)
def test_only_the_rotary_dimensions_are_multiplied(rule: Rule) -> None:
    multiplier = rule.resolve(Site.single(5, 11)).multiplier
    assert isinstance(multiplier, torch.Tensor)
    assert multiplier.tolist() == [9, 9, 9, 1, 1]
    assert value(rule, 5, 11) is None
    assert value(rule, 3, 11) == 9


@pytest.mark.parametrize("build", [YaRN, LongRoPE])
def test_more_rotary_dimensions_than_there_are(build: type[Rule]) -> None:
    with pytest.raises(ArgumentError, match="rotary_dims: expected at most the head dimension, 5, got 7"):
        build(4.0, rotary_dims=7).resolve(Site.single(5, 11))  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match="rotary_dims: expected a whole number, 1 or more"):
        build(4.0, rotary_dims=0)  # type: ignore[call-arg]


@pytest.mark.parametrize("build", [YaRN, LongRoPE, DeepSeekMscale])
@pytest.mark.parametrize("bad", [0, -2.0, float("nan")], ids=repr)
def test_factor_is_positive(build: type[Rule], bad: float) -> None:
    with pytest.raises(ArgumentError, match=r"^factor"):
        build(bad)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        pytest.param(lambda: YaRN(2, attention_factor=0), "attention_factor", id="yarn-attention_factor"),
        pytest.param(lambda: YaRN(2, mscale=-1), "mscale", id="yarn-mscale"),
        pytest.param(lambda: LongRoPE(2, 1), "original_length", id="longrope-original_length"),
        pytest.param(lambda: LongRoPE(2, attention_factor=-1), "attention_factor", id="longrope-attention_factor"),
        pytest.param(lambda: DeepSeekMscale(2, -0.1), "mscale_all_dim", id="mscale_all_dim"),
    ],
)
def test_bad_numbers_are_named(build: type[Rule], argument: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        build()
    assert caught.value.argument == argument
