"""What a configuration declares about rotary embeddings, which transformers writes in several ways; and what you declare."""

from math import log, sqrt
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import isotherm
from isotherm.checkup.declarations import Declarations, from_words, read_declared
from isotherm.checkup.declare import CONVENTION, YOU, LayerPlace, declared
from isotherm.cli import run
from isotherm.errors import ArgumentError
from isotherm.scale import Fixed, InverseSqrt, LogN, MuP, NoScale, QKNorm, Relative
from tests.checkup.models import DIM, HEADS, Attention, Model, batch, trained

LONG = {"rope_type": "longrope"}
YARN = {"rope_type": "yarn", "factor": 4.0}


def number(layer=0, **config):
    """The declared multiplier at d = 64, divided by 1/√d."""
    found = declared(LayerPlace(nn.Identity(), SimpleNamespace(model_type="phi3", **config), layer, 64))
    return found.value * 8


def longrope(stretch, length):
    return sqrt(1 + log(stretch) / log(length)) ** 2  # on q and on k


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rope_scaling": LONG, "max_position_embeddings": 8192}, 1.0),
        ({"rope_scaling": LONG, "original_max_position_embeddings": 2048}, 1.0),
        (
            {"rope_scaling": LONG, "max_position_embeddings": 8192, "original_max_position_embeddings": 2048},
            longrope(4, 2048),
        ),
        ({"rope_scaling": LONG | {"factor": 8.0}, "max_position_embeddings": 4096}, longrope(8, 4096)),
        (
            {"rope_parameters": LONG | {"original_max_position_embeddings": 1024}, "max_position_embeddings": 2048},
            longrope(2, 1024),
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, (0.1 * log(4) + 1) ** 2),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 1.0),
        ({}, 1.0),
    ],
)
def test_the_factor_of_a_stretched_rotary_embedding(config, expected):
    assert number(**config) == pytest.approx(expected)


DEEPSEEK = {"mscale_all_dim": 0.707, "factor": 40.0, "type": "yarn", "mscale": 0.707}


@pytest.mark.parametrize(
    ("model_type", "config", "expected", "source"),
    [
        ("t5", {}, 1.0, "architecture (t5)"),
        ("zamba2", {}, 32**-0.5, "architecture (zamba2)"),
        ("kimi_k2", {}, 1 / 8, "architecture (kimi_k2)"),
        (
            "deepseek_v3",
            {"rope_scaling": DEEPSEEK},
            (0.1 * 0.707 * log(40) + 1) ** 2 / 8,
            "mscale_all_dim = 0.707, factor = 40.0",
        ),
        ("deepseek_v3", {"rope_scaling": DEEPSEEK | {"factor": 1.0}}, 1 / 8, "architecture (deepseek_v3)"),
        ("longcat_flash", {"hidden_size": 96, "q_lora_rank": 24}, 2 / 8, "q_lora_rank = 24"),
        ("longcat_flash", {"hidden_size": 96}, 1 / 8, "architecture (longcat_flash)"),
        ("mpt", {"attn_config": SimpleNamespace(softmax_scale=0.3)}, 0.3, "softmax_scale = 0.3"),
        ("mpt", {"attn_config": SimpleNamespace(softmax_scale=None)}, 1 / 8, "architecture (mpt)"),
        ("deberta", {"pos_att_type": ["c2p", "p2c"]}, 1 / sqrt(192), "pos_att_type gives 3 terms"),
        ("deberta-v2", {"pos_att_type": ["p2c"]}, 1 / sqrt(128), "pos_att_type gives 2 terms"),
        ("gpt2", {"scale_attn_weights": False}, 1.0, None),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, 1 / 8 / 3, None),
        ("bert", {}, 1 / 8, "convention"),
        ("gemma2", {"query_pre_attn_scalar": 256}, 1 / 16, "query_pre_attn_scalar = 256"),
        ("granite", {"attention_multiplier": 0.015625}, 1 / 64, "attention_multiplier = 0.015625"),
        ("other", {"attention_scores_scalar": 16.0}, 1 / 4, "attention_scores_scalar = 16.0"),
    ],
)
def test_what_an_architecture_declares(model_type, config, expected, source):
    found = declared(LayerPlace(nn.Identity(), SimpleNamespace(model_type=model_type, **config), 2, 64))
    assert found.value == pytest.approx(expected)
    assert source is None or found.source.partition(", yarn")[0] == source


def test_cosine_attention_declares_no_number():
    found = declared(LayerPlace(nn.Identity(), SimpleNamespace(model_type="swinv2"), 0, 64))
    assert (found.rule, found.value, found.source) == ("cosine", None, "architecture (swinv2)")


def test_each_kind_of_layer_has_its_own_parameters():
    of_kinds = {"sliding": {"rope_type": "default"}, "full": YARN}
    kinds = ["sliding", "full"]
    assert [number(at, rope_parameters=of_kinds, layer_types=kinds) for at in (0, 1)] == [
        1.0,
        number(rope_scaling=YARN),
    ]
    assert number(1, rope_parameters=of_kinds) == 1.0  # without a list of kinds the first is as good as any


D = DIM // HEADS


def check(*layers, **options):
    torch.manual_seed(0)
    return isotherm.check(trained(Model(*layers)), batch(), what_if=(), compare=False, **options)


def scales(report):
    """Findings about scales: their code, severity and layer."""
    return [(f.code, f.severity, f.layer) for f in report.findings if f.code.startswith("scale")]


@pytest.mark.parametrize(
    "given",
    ["1/d", MuP(), {"*": "1/d"}, {"layers.*": MuP()}, {"0": "1/d", "1": "1/d"}, {"*": "none", "layers.[01]": "1/d"}],
    ids=["text", "rule", "all", "pattern", "indices", "the last match decides"],
)
def test_your_declaration_silences_notes_and_warnings_when_met(given):
    layers = Attention(scale=1 / D), Attention(scale=1 / D)
    if given == {"*": "none", "layers.[01]": "1/d"}:
        layers = *layers, Attention(scale=1.0)
    report = check(*layers, declared=given)
    assert scales(report) == []
    assert {(layer.scale.source, layer.scale.agrees) for layer in report.layers} == {(YOU, True)}


def test_a_departure_from_your_declaration_is_an_error():
    report = check(Attention(), Attention(scale=1 / D), declared="1/d")
    assert scales(report) == [("scale-mismatch", "error", 0)]
    assert report.findings[0].evidence["source"] == YOU


def test_layers_you_say_nothing_about_are_judged_as_before():
    report = check(Attention(scale=1 / D), Attention(scale=0.1), declared={"0": "1/d"})
    assert scales(report) == [("scale-mismatch", "warning", 1)]
    assert [layer.scale.source for layer in report.layers] == [YOU, CONVENTION]


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        (NoScale(), 1.0),
        (Relative(2.0), 0.4),
        (QKNorm(), 0.2),
        (LogN(64) * InverseSqrt(), 0.125),
        (Fixed(0.3) * LogN(64), 0.3),
    ],
    ids=["sets the scale", "a factor", "a norm", "depends on the query", "a number, and the query"],
)
def test_your_rule_overrides_the_configuration_or_is_applied_on_top(rule, value):
    place = LayerPlace(nn.Identity(), SimpleNamespace(attention_multiplier=0.2), 0, 64)
    assert declared(place).source == "attention_multiplier = 0.2"
    yours = declared(place, rule)
    assert (yours.value, yours.source) == (pytest.approx(value), YOU)


def test_your_declaration_is_compared_under_a_norm_too():
    norm = Attention(norm=True, scale=0.5)
    assert check(norm).layers[0].scale.agrees is None
    assert check(norm, declared="0.5").layers[0].scale.agrees
    assert scales(check(norm, declared="0.25")) == [("scale-mismatch", "error", 0)]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"layer.0": "1/d"}, "'layer.0'"),
        ({"7": "1/d"}, "'7'"),
        ({"layers.0": "1/d", "*": "none"}, "'layers.0'"),
        ("1/e", "'1/e'"),
        ({"*": "logn:5"}, "'logn'"),
        ("sigmoid", "'sigmoid'"),
        (0.5, "float"),
        ({"*": None}, "NoneType"),
    ],
    ids=[
        "no such layer",
        "no such index",
        "overruled",
        "misspelt",
        "misspelt in a mapping",
        "no softmax",
        "number",
        "None",
    ],
)
def test_what_is_declared_wrongly_is_refused(given, named):
    with pytest.raises(ArgumentError, match=r"^declared: ") as refused:
        check(Attention(), declared=given)
    assert named in str(refused.value)


def test_a_rule_for_every_layer_is_fine_where_no_layer_was_seen():
    report = isotherm.check(nn.Linear(4, 4), torch.randn(2, 4), what_if=(), declared="1/d")
    assert [finding.code for finding in report.findings] == ["nothing-seen"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), None),
        (("1/d",), {"*": "1/d"}),
        (("yarn:4,1 * 1/sqrt(d)", "layers.0.* = none"), {"*": "yarn:4,1 * 1/sqrt(d)", "layers.0.*": "none"}),
    ],
    ids=["nothing", "rule", "rule and pattern"],
)
def test_declarations_as_typed(words, expected):
    assert from_words(words) == expected
    assert isinstance(read_declared(expected), Declarations)


@pytest.mark.parametrize(
    "words", [("=none",), ("1/d", "none"), ("a=none", "a=1/d")], ids=["no pattern", "twice", "again"]
)
def test_declarations_that_cannot_be_read(words):
    with pytest.raises(ArgumentError, match="PATTERN=RULE"):
        from_words(words)


def mup():
    torch.manual_seed(0)
    return trained(Model(Attention(scale=1 / D), Attention(scale=1 / D))), batch()


@pytest.mark.parametrize(
    ("words", "code"),
    [([], 0), (["--declared", "1/d"], 0), (["--declared", "1/sqrt(d)"], 1), (["--declared", "layers.1=none"], 1)],
    ids=["a note", "met", "broken", "broken in one layer"],
)
def test_declared_on_the_command_line(words, code):
    assert run(["check", "tests.checkup.test_declare:mup", "--what-if", "", *words]) == code


@pytest.mark.parametrize(
    ("word", "said"),
    [("1/e", "--declared: expected a rule of the atlas"), ("x.*=1/d", "got 'x.*'"), ("=", "PATTERN=RULE")],
    ids=["misspelt rule", "no such layer", "no rule"],
)
def test_what_is_declared_wrongly_on_the_command_line_exits_2(word, said, capsys):
    assert run(["check", "tests.checkup.test_declare:mup", "--declared", word]) == 2
    assert said in capsys.readouterr().err


def test_a_misspelt_declaration_is_refused_before_the_model_is_loaded(capsys):
    assert run(["check", "no.such.module:model", "--declared", "1/e"]) == 2
    assert "--declared" in capsys.readouterr().err
