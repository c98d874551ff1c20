"""Models nobody here wrote: what was found on them, as small models of the same kind."""

from math import log
from statistics import median
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isotherm
from isotherm.checkup.load import Loading, load
from isotherm.cli import run
from isotherm.errors import ArgumentError, InputError
from isotherm.report import summary
from tests.checkup.models import DIM, HEADS, Attention, Model, batch

D = DIM // HEADS


class Mixer(nn.Module):
    """Attention by hand, with one thing about it; its class name does not say attention."""

    def __init__(self, scores=lambda a: a, weights=lambda a: torch.softmax(a, -1), project=F.linear):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(DIM, DIM) for _ in range(4))
        self.scores, self.weights, self.project = scores, weights, project

    def forward(self, x):
        q, k, v = (
            self.project(x, p.weight, p.bias).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        a = self.scores(q @ k.mT * (DIM // HEADS) ** -0.5)
        return self.o_proj((self.weights(a) @ v).transpose(1, 2).flatten(2))


def look(*layers):
    torch.manual_seed(0)
    return isotherm.check(Model(*layers).eval(), batch(), what_if=(), compare=False)


def test_a_model_in_which_nothing_is_seen_is_not_healthy():
    report = isotherm.check(Model(nn.Linear(DIM, DIM)), batch(), what_if=(), compare=False)
    assert not report.layers
    assert not report.healthy
    assert [finding.code for finding in report.findings] == ["nothing-seen"]
    assert summary.verdict(report.record).en == "No attention was seen"


def test_a_model_without_attention_is_not_called_healthy_either():
    report = isotherm.check(nn.Linear(4, 4), torch.randn(2, 4), what_if=(), compare=False)
    assert [finding.code for finding in report.findings] == ["nothing-seen"]


def test_a_batch_of_padding_alone_is_not_healthy():
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9)
    padding = {name: torch.zeros(2, 5, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    report = isotherm.check(BertModel(config).eval(), padding)
    assert [finding.code for finding in report.findings] == ["nothing-measured"]
    assert not report.healthy


@pytest.mark.parametrize("shape", [(0, 5, DIM), (2, 0, DIM)])
def test_a_batch_without_positions_is_refused(shape):
    with pytest.raises(ArgumentError, match="batch: expected at least one sequence with at least one position"):
        isotherm.check(Model(Attention()).eval(), torch.zeros(shape))


def plain_model():
    return Model(nn.Linear(DIM, DIM)).eval(), batch()


def test_nothing_seen_exits_1(capsys):
    assert run(["check", "tests.checkup.test_wild:plain_model", "--what-if", ""]) == 1
    assert "No attention was seen in this model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("scores", "factor"),
    [(lambda a: a + a, 2.0), (lambda a: a.add(a, alpha=3), 4.0)],
    ids=["twice", "alpha"],
)
def test_scores_added_to_themselves_are_a_factor(scores, factor):
    (layer,) = look(Mixer(scores)).layers
    assert layer.scale.effective == pytest.approx(factor * (DIM // HEADS) ** -0.5, rel=1e-3)


def test_a_nonlinear_term_made_of_the_scores_is_no_bias():
    """These logits are no number times q·k: no scale is reported, and the audit says why."""
    (layer,) = look(Mixer(lambda a: a + a.tanh())).layers
    assert layer.scale.effective is None
    assert "not a number times q·k" in layer.scale.note.en


def test_projections_by_keyword_are_audited():
    keyword = look(Mixer(project=lambda x, weight, bias: F.linear(input=x, weight=weight, bias=bias)))
    assert keyword.layers[0].scale.effective == pytest.approx((DIM // HEADS) ** -0.5, rel=1e-3)


def test_a_scale_that_is_not_known_is_counted_in_the_verdict():
    report = look(Mixer(), Mixer(project=lambda x, weight, bias: torch.sin(F.linear(x, weight, bias))))
    assert [layer.scale.effective is None for layer in report.layers] == [False, True]
    assert summary.verdict(report.record).en.endswith("; scale not known in 1 of 2 layers")


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B", "gpt2", "a.b"])
def test_a_hub_name_may_have_a_dot(name, monkeypatch):
    asked = []
    monkeypatch.setattr("isotherm.checkup.load._hub", lambda wanted, *_: asked.append(str(wanted)))
    load(name, Loading())
    assert asked == [name]


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "model.gguf", "./gpt2", "/nowhere", "a/b/c", "~x", "notes.txt"]
)
def test_what_can_only_be_a_path_is_not_looked_up(name):
    with pytest.raises(InputError, match="no such folder"):
        load(name, Loading())


class Scaled(Mixer):
    """The same with a scale of its own, and a configuration."""

    def __init__(self, scale, config):
        super().__init__()
        self.scale, self.config = scale, config
        self.scores = lambda a: a * (scale * (DIM // HEADS) ** 0.5)


@pytest.mark.parametrize(
    ("config", "severities"),
    [
        (object(), ["warning"]),
        (SimpleNamespace(model_type="mine"), ["warning"]),
        (SimpleNamespace(attention_scores_scalar=100), []),
        (SimpleNamespace(attention_scores_scalar=16), ["error"]),
        (SimpleNamespace(attention_multiplier=0.1), []),
        (SimpleNamespace(attention_multiplier=0.2), ["error"]),
    ],
    ids=["any object", "unknown type", "litgpt", "litgpt, wrong", "granite", "granite, wrong"],
)
def test_only_a_declaration_makes_an_error(config, severities):
    found = [finding for finding in look(Scaled(0.1, config)).findings if finding.code == "scale-mismatch"]
    assert [finding.severity for finding in found] == severities


class Fused(nn.Module):
    """q, k and v from one projection, at a scale of one's choice."""

    def __init__(self, scale):
        super().__init__()
        self.c_attn, self.scale = nn.Linear(DIM, 3 * DIM), scale

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2).flatten(2)


def test_advice_on_a_fused_projection_spares_keys_and_values():
    torch.manual_seed(0)
    model = Model(Fused(20.0)).eval()
    before = isotherm.check(model, batch(), what_if=(), compare=False).layers[0].advice
    assert before.how.en.startswith(
        "multiply rows 0–63 of layers.0.c_attn.weight and entries 0–63 of layers.0.c_attn.bias by"
    )
    with torch.no_grad():
        model.layers[0].c_attn.weight[:DIM] *= before.factor
        model.layers[0].c_attn.bias[:DIM] *= before.factor
    spreads = [head.logit_std for head in isotherm.check(model, batch(), what_if=()).layers[0].head_stats]
    assert median(spreads) == pytest.approx(before.target, rel=1e-3)


def test_advice_under_a_norm_names_its_gain():
    torch.manual_seed(0)
    layer = Attention(norm=True, scale=100.0)
    found = look(layer).findings
    assert {finding.code for finding in found} >= {"logits-large", "frozen-at-init"}
    assert all("layers.0.q_norm.weight" in finding.advice.en for finding in found if finding.head is not None)
    gamma = 100 / next(finding.evidence["max_logit"] for finding in found if finding.code == "logits-large")
    with torch.no_grad():
        layer.q_norm.weight.mul_(gamma)
    assert "logits-large" not in {finding.code for finding in look(layer).findings}


@pytest.mark.parametrize(
    "config", [None, object(), SimpleNamespace(model_type="mine")], ids=["none", "any", "unknown type"]
)
@pytest.mark.parametrize(
    ("scale", "rule"),
    [(1 / D, "1/d"), ((3 * D) ** -0.5, "1/√(3d)"), (DIM**-0.5, "1/√width"), ((D / 2) ** -0.5, "1/√(d/2)")],
    ids=["muP", "invariant point attention", "MaxViT", "Zamba2"],
)
def test_a_scale_as_shipped_is_a_note_that_names_the_rule(scale, rule, config):
    report = look(*(Scaled(scale, config) for _ in range(3)))
    (found,) = [finding for finding in report.findings if finding.code.startswith("scale")]
    assert (found.code, found.severity) == ("scale-unusual", "note")
    assert rule in found.message.en
    assert report.healthy


@pytest.mark.parametrize("config", [object(), SimpleNamespace(attention_multiplier=0.2)], ids=["any", "a key"])
def test_ones_own_scale_can_be_declared(config):
    torch.manual_seed(0)
    model = Model(Scaled(0.1, config), Scaled(0.1, config)).eval()
    assert isotherm.check(model, batch(), what_if=(), declared="0.1").findings == ()
    wrong = isotherm.check(model, batch(), what_if=(), declared={"layers.1": "0.2", "layers.0": "0.1"}).findings
    assert [(finding.code, finding.severity, finding.layer) for finding in wrong] == [("scale-mismatch", "error", 1)]


@pytest.mark.parametrize(
    ("factor", "severities"),
    [
        (1.0, ["error"]),
        ((0.1 * log(4) + 1) ** 2, []),
        (D**-0.5 * (0.1 * log(4) + 1) ** 2, ["note"]),
        (0.3, ["warning"]),
    ],
    ids=["the key is ignored", "the key is followed", "1/d, and the key is followed", "neither"],
)
def test_a_key_that_adds_a_factor_declares_nothing_else(factor, severities):
    config = SimpleNamespace(rope_scaling={"rope_type": "yarn", "factor": 4.0})
    found = look(Scaled(D**-0.5 * factor, config)).findings
    assert [finding.severity for finding in found if finding.code.startswith("scale")] == severities


def test_a_scale_of_zero_is_reported():
    found = look(Attention(scale=0.0, fused=True)).findings
    assert ("scale-mismatch", "warning") in {(finding.code, finding.severity) for finding in found}
