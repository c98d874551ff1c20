"""What a scale that nobody declared is called: another rule in use, or a common mistake."""

from dataclasses import replace
from math import e, log2, sqrt

import pytest
import torch

import isotherm
from isotherm.checkup.about_scales import _unusual
from isotherm.checkup.known_rules import KNOWN_RULES, likely
from isotherm.record import ScaleAudit
from isotherm.scale import parse, value
from tests.checkup.models import DIM, HEADS, Attention, Model, batch, trained

D = DIM // HEADS


def scales(*layers, **options):
    torch.manual_seed(0)
    report = isotherm.check(trained(Model(*layers)), batch(), what_if=(), compare=False, **options)
    return [f for f in report.findings if f.code.startswith("scale")], report.layers


@pytest.mark.parametrize(
    ("scale", "rule"),
    [
        (1 / D, "1/d"),
        (1.0, "1 (no scale)"),
        ((D / 2) ** -0.5, "1/√(d/2)"),
        ((2 * D) ** -0.5, "1/√(2d)"),
        ((3 * D) ** -0.5, "1/√(3d)"),
        (DIM**-0.5, "1/√width"),
        (1 / DIM, "1/width"),
        (2 * D**-0.5, "2/√d"),
        (0.5 * D**-0.5, "1/(2√d)"),
        (D**-0.25, "d^-¼"),
        (log2(e) * D**-0.5, "log₂e/√d"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
@pytest.mark.parametrize("fused", [True, False], ids=["kernel", "by hand"])
def test_a_model_that_follows_another_rule_gets_one_note_that_names_it(scale, rule, fused):
    (found,), layers = scales(Attention(scale=scale, fused=fused), Attention(scale=scale, fused=fused))
    assert (found.code, found.severity, found.layer) == ("scale-unusual", "note", 0)
    assert rule in found.evidence["rule"].split(" = ")
    assert rule in found.message.en
    assert rule in found.message.zh
    assert found.evidence["layers"] == 2
    assert all(layer.scale.agrees is None and rule in layer.scale.note.en for layer in layers)


def test_the_note_says_what_to_declare_and_that_silences_it():
    (found,), _ = scales(Attention(scale=(3 * D) ** -0.5))
    assert "declared='query-pre-attn-scalar:48'" in found.advice.en
    assert scales(Attention(scale=(3 * D) ** -0.5), declared="query-pre-attn-scalar:48")[0] == []


def test_where_layers_need_several_declarations_the_note_says_so():
    """As in MaxViT, whose stages have different widths."""
    _, (narrow, wide) = scales(Attention(scale=DIM**-0.5), Attention(scale=DIM**-0.5))
    wide = replace(wide, heads=16)
    rule = next(rule for rule in KNOWN_RULES if rule.formula == "1/√width")
    advice = _unusual([narrow, wide], (rule,)).advice.en
    assert "(query-pre-attn-scalar:64, query-pre-attn-scalar:256)" in advice
    assert "declared={'layers.0': 'query-pre-attn-scalar:64', …}" in advice


@pytest.mark.parametrize("rule", KNOWN_RULES, ids=lambda rule: rule.formula)
@pytest.mark.parametrize(("d", "heads"), [(64, 12), (80, 5), (16, 1)])
def test_what_the_advice_tells_to_declare_gives_the_number(rule, d, heads):
    assert value(parse(rule.declare(d, heads)).at_layer(2), d, 64, heads) == pytest.approx(rule.number(d, heads, 2))


def test_a_rule_by_layer_is_recognised():
    (found,), _ = scales(*(Attention(scale=D**-0.5 / (at + 1)) for at in range(3)))
    assert found.evidence["rule"] == "1/((layer + 1)√d)"


def test_a_number_that_is_no_rule_is_a_warning():
    found, layers = scales(Attention(scale=0.1), Attention(scale=0.1))
    assert [(f.code, f.severity, f.layer) for f in found] == [("scale-mismatch", "warning", at) for at in (0, 1)]
    assert [layer.scale.agrees for layer in layers] == [False, False]


def test_a_layer_that_alone_departs_follows_no_rule():
    found, layers = scales(Attention(), Attention(scale=1 / D), Attention())
    assert [(f.code, f.severity, f.layer) for f in found] == [("scale-mismatch", "warning", 1)]
    assert [layer.scale.agrees for layer in layers] == [True, False, True]


@pytest.mark.parametrize(
    ("effective", "passed", "said"),
    [
        (1.0, 1.0, "scale missing"),
        (1 / 64, 1 / 64, "1/d for 1/sqrt(d)"),
        (1 / 64, 1 / 8, "scale applied twice"),
        (8.0, 8.0, "inverted scale"),
        (64**-0.25, 1.0, "d^-1/4 on one side only"),
        (1 / sqrt(12 * 64), None, "1/sqrt(width) for 1/sqrt(d)"),
        (2 / 8, 2 / 8, "twice the scale"),
        (0.5 / 8, 1 / 8, "half the scale"),
        (log2(e) / 8, None, "log2(e) too many"),
        (0.07, 0.07, "none of the usual mistakes"),
        (None, None, "none of the usual mistakes"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_the_likely_mistake(effective, passed, said):
    assert likely(ScaleAudit(passed, effective, 0.125, "1/sqrt(d)", "you", agrees=False), 64, 12) == said
