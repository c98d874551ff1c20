"""Numbers worked out by hand: each right-hand side is the arithmetic, with no call into the library."""

import pytest

from isotherm.errors import ArgumentError
from isotherm.scale import ByLayer, Fixed, InverseSqrt, MuP, NoScale, QueryPreAttnScalar, Relative, Rule, value


@pytest.mark.parametrize(
    ("rule", "head_dim", "expected"),
    [
        pytest.param(InverseSqrt(), 64, 0.125, id="1/sqrt(64)"),
        pytest.param(InverseSqrt(), 7, 0.3779644730092272, id="1/sqrt(7)"),
        pytest.param(MuP(), 64, 0.015625, id="1/64"),
        pytest.param(MuP(power=0.5), 64, 0.125, id="power-half-is-1/sqrt(d)"),
        pytest.param(MuP(base_head_dim=16), 64, 0.0625, id="sqrt(16)/64"),
        pytest.param(MuP(base_head_dim=64), 64, 0.125, id="at-the-base-width-it-is-1/sqrt(d)"),
        pytest.param(MuP(base_head_dim=4, power=0.5), 16, 0.5, id="sqrt(4)/16^0.5"),
        pytest.param(NoScale(), 64, 1.0, id="none"),
        pytest.param(Fixed(0.0078125), 64, 0.0078125, id="granite"),
        pytest.param(Relative(0.5), 64, 0.5, id="relative"),
        pytest.param(QueryPreAttnScalar(), 128, 0.0625, id="gemma-2-9b-1/sqrt(256)"),
        pytest.param(QueryPreAttnScalar(224), 256, 0.06681531047810609, id="gemma-2-1/sqrt(224)"),
        pytest.param(QueryPreAttnScalar(144), 128, 1 / 12, id="gemma-2-27b-1/sqrt(144)"),
        pytest.param(QueryPreAttnScalar(168), 128, 0.07715167498104596, id="gemma-3-27b-1/sqrt(168)"),
        pytest.param(ByLayer(0), 64, 1.0, id="first-layer"),
        pytest.param(ByLayer(), 64, 1.0, id="first-layer-if-left-out"),
        pytest.param(ByLayer(3) * InverseSqrt(), 64, 0.03125, id="fourth-layer-0.125/4"),
    ],
)
def test_number(rule: Rule, head_dim: int, expected: float) -> None:
    assert value(rule, head_dim, 11) == pytest.approx(expected, rel=1e-15)


def test_a_constant_does_not_depend_on_the_number_of_keys() -> None:
    rules = [InverseSqrt(), MuP(), NoScale(), Fixed(0.3), QueryPreAttnScalar(), ByLayer(2)]
    assert [value(rule, 5, 3) for rule in rules] == [value(rule, 5, 100_003) for rule in rules]


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), "8", None], ids=repr)
@pytest.mark.parametrize(
    ("build", "argument"),
    [
        pytest.param(Fixed, "scale", id="Fixed"),
        pytest.param(Relative, "factor", id="Relative"),
        pytest.param(QueryPreAttnScalar, "query_pre_attn_scalar", id="QueryPreAttnScalar"),
        pytest.param(lambda bad: MuP(power=bad), "power", id="MuP.power"),
    ],
)
def test_only_positive_numbers(build: type[Rule], argument: str, bad: object) -> None:
    with pytest.raises(ArgumentError, match="a finite number above 0") as caught:
        build(bad)
    assert caught.value.argument == argument


@pytest.mark.parametrize("bad", [0, -4.0, float("nan")], ids=repr)
def test_mup_base_is_positive(bad: float) -> None:
    with pytest.raises(ArgumentError, match="base_head_dim"):
        MuP(base_head_dim=bad)


@pytest.mark.parametrize("bad", [-1, 1.5, "3"], ids=repr)
def test_a_layer_is_a_whole_number(bad: int) -> None:
    with pytest.raises(ArgumentError, match="layer: expected a whole number, 0 or more"):
        ByLayer(bad)
