"""A replay under a rule gives what `attention(scale=rule)` gives, for every rule of the atlas."""

from dataclasses import astuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isotherm
from isotherm.checkup.measure import look
from isotherm.checkup.what_if import WhatIfTables
from isotherm.checkup.what_if import replay as replayed
from isotherm.errors import ArgumentError
from isotherm.scale import ATLAS, InverseSqrt, parse
from tests.checkup.models import DIM, HEADS, Attention, Model, batch, trained

D = DIM // HEADS
IN_FORCE = {
    "by the kernel": {},
    "by hand": {"fused": False},
    "in q and k": {"scale": 1.0, "early": D**-0.25},
    "in q, k and the kernel": {"scale": D**-0.25, "early": D**-0.125},
}
RULES = {name: entry.example for name, entry in ATLAS.items() if entry.example and entry.example.has_softmax}
RULES["qk-norm * 1/sqrt(d)"] = parse("qk-norm * 1/sqrt(d)")
RULES["x0.5"] = parse("x0.5")


def summarise(index, stats):
    """What is said of a layer with these statistics."""
    tables = WhatIfTables()
    tables.add(index, [stats])
    return tables.read(1)[0][0]


def replay(capture, rules, index):
    """What is said of a captured layer under each rule."""
    return [summarise(index, stats) for stats in replayed(capture, rules, index)]


@pytest.fixture(scope="module", params=IN_FORCE.values(), ids=IN_FORCE.keys())
def captured(request):
    """One captured layer whose scale in force is 1/√d, and its q and k as its projections gave them."""
    torch.manual_seed(0)
    model = trained(Model(Attention(**request.param)))
    with torch.no_grad():
        model.layers[0].q_proj.weight.mul_(5)
        x = model.norms[0](batch())
        q, k = (
            projection(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for projection in (model.layers[0].q_proj, model.layers[0].k_proj)
        )
    return look(model, batch())[0][0], q, k


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_what_if_is_attention_under_the_rule(captured, rule):
    capture, q, k = captured
    whole = rule if rule.sets_scale else rule * InverseSqrt()
    expected = summarise(3, isotherm.attention(q, k, k, scale=whole.at_layer(3), stats=True, impl="reference").stats)
    found = replay(capture, [rule], 3)[0]
    for mine, other in zip(astuple(found), astuple(expected), strict=True):
        assert mine == pytest.approx(other, rel=2e-5, abs=1e-6)


class Unit(Attention):
    """Unit vectors times 7 and 3, at a scale of 0.5: the scale in force is 10.5."""

    def __init__(self):
        super().__init__(scale=0.5)
        self.q_norm, self.k_norm = (Times(factor) for factor in (7.0, 3.0))


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.factor


@pytest.mark.parametrize(
    ("text", "whole"),
    [("none", "none"), ("1/d", "1/d"), ("cosine", "cosine"), ("x0.5", "5.25"), ("qk-norm", "qk-norm*10.5")],
)
def test_a_rule_that_sets_the_scale_replaces_what_follows_a_norm(text, whole):
    torch.manual_seed(0)
    model = trained(Model(Unit()))
    capture = look(model, batch())[0][0]
    q, k = capture.problem.q / 7, capture.problem.k / 3
    expected = summarise(0, isotherm.attention(q, k, k, scale=parse(whole), stats=True, impl="reference").stats)
    for mine, other in zip(astuple(replay(capture, [parse(text)], 0)[0]), astuple(expected), strict=True):
        assert mine == pytest.approx(other, rel=2e-5, abs=1e-6)


def test_cosine_replaces_the_models_own_scale():
    torch.manual_seed(0)
    reports = [
        isotherm.check(trained(Model(layer)), batch(), what_if=["cosine"], compare=False)
        for layer in (torch.manual_seed(1) and Attention(scale=scale) for scale in (0.25, 40.0))
    ]
    small, large = (report.what_if[1].layers[0].max_logit for report in reports)
    assert small == pytest.approx(large, rel=1e-5)
    assert small <= 10


def test_several_rules_at_once_are_each_of_them(captured):
    capture, _, _ = captured
    together = replay(capture, list(RULES.values()), 3)
    for rule, found in zip(RULES.values(), together, strict=True):
        for mine, other in zip(astuple(found), astuple(replay(capture, [rule], 3)[0]), strict=True):
            assert mine == pytest.approx(other, rel=2e-5, abs=1e-6)


class Squashed(Attention):
    """Logits that are no number times q·k."""

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (4, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        scores = q @ k.mT
        return self.o_proj((torch.softmax(scores + scores.tanh(), -1) @ v).transpose(1, 2).flatten(2))


def test_logits_without_a_scale_have_nothing_to_replay():
    torch.manual_seed(0)
    report = isotherm.check(Model(Attention(), Squashed()), batch(), what_if=["none", "x2"], compare=False)
    assert [len(what.layers) for what in report.what_if] == [2, 2, 2]
    for what in report.what_if[1:]:
        first, second = what.layers
        assert first.entropy_fraction is not None
        assert astuple(second)[:5] == (1, None, None, None, None)
    assert report.layers[1].curve is None
    assert report.layers[0].curve is not None


def test_a_rule_without_softmax_is_refused_before_the_model_runs():
    model = Model(Attention())
    model.forward = None
    with pytest.raises(ArgumentError, match="what_if: expected rules with a softmax, got 'sigmoid"):
        isotherm.check(model, batch(), what_if=["sigmoid*1/sqrt(d)"])


def test_rules_may_be_objects():
    torch.manual_seed(0)
    report = isotherm.check(Model(Attention()), batch(), what_if=[InverseSqrt(), "x0.5"], compare=False)
    assert [what.rule for what in report.what_if] == ["as is", "1/sqrt(d)", "x0.5"]
