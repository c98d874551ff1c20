import pytest

from isotherm.errors import ArgumentError
from isotherm.models import Shape, build
from isotherm.scale import MuP

from .small import SHAPE


def test_what_is_left_out_follows_from_the_width():
    assert (Shape(7).inside, Shape(7).per_head) == (2048, 64)
    assert (SHAPE.inside, SHAPE.per_head) == (17, 5)


@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        ({"width": 10, "heads": 4}, "width"),
        ({"width": 0}, "width"),
        ({"layers": -1}, "layers"),
        ({"head_dim": 2.0}, "head_dim"),
        ({"dropout": 1.0}, "dropout"),
        ({"norm": "both"}, "norm"),
    ],
)
def test_what_cannot_be_is_named(wrong, argument):
    with pytest.raises(ArgumentError, match=f"^{argument}: expected"):
        Shape(7, **wrong)


@pytest.mark.parametrize(
    ("kind", "rule", "made"),
    [
        ("transformer", None, "Transformer"),
        ("decoder", "1/d", "Decoder"),
        ("bert", MuP(), "Bert"),
        ("recurrent", "additive", "RecurrentTranslator"),
        ("recurrent", None, "RecurrentTranslator"),
    ],
)
def test_a_model_by_its_name(kind, rule, made):
    model = build(kind, SHAPE, rule)
    assert type(model).__name__ == made
    if rule is not None and kind != "recurrent":
        assert {module.number for module in model.modules() if hasattr(module, "number")} == {1 / 5}


def test_a_recurrent_models_rule_is_its_score():
    assert [type(build("recurrent", SHAPE, kind).score).__name__ for kind in ("additive", "multiplicative", "dot")] == [
        "Additive",
        "Multiplicative",
        "Dot",
    ]
    assert str(build("recurrent", SHAPE, None).score.rule) == "1/sqrt(d)"
    assert str(build("recurrent", SHAPE, "multiplicative").score.rule) == "none"


@pytest.mark.parametrize(
    ("kind", "rule", "argument"), [("rnn", None, "kind"), ("recurrent", "1/d", "rule"), ("decoder", "1/dd", "scale")]
)
def test_what_is_not_known_is_refused(kind, rule, argument):
    with pytest.raises(ArgumentError, match=f"^{argument}: expected"):
        build(kind, SHAPE, rule)
