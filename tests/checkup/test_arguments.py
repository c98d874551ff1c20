"""What people pass by mistake is refused in one sentence; few rows, one key and one layer are described as what they are."""

import json

import pytest
import torch
from torch import nn

import isotherm
from isotherm.checkup.heads import state
from isotherm.checkup.load import Loading, load
from isotherm.errors import ArgumentError, InputError
from tests.checkup.models import DIM, Attention, Model, batch


def model(layers=1):
    torch.manual_seed(0)
    return Model(*(Attention() for _ in range(layers))).eval()


WRONG = {
    "rows": {"rows": 0},
    "rows that are no number": {"rows": "a"},
    "half a row": {"rows": 2.5},
    "a context of one key": {"context": 1},
    "what_if as one text": {"what_if": "none"},
    "what_if of numbers": {"what_if": [3]},
    "a cap declared": {"declared": "softcap:50"},
    "a sink declared": {"declared": "sinks"},
    "a norm declared": {"declared": "qk-norm"},
    "a factor of the length declared": {"declared": "log-n:512"},
    "progress that is no function": {"progress": 3},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_wrong_options_are_named(wrong):
    with pytest.raises(ArgumentError, match=f"^{next(iter(wrong))}: expected "):
        isotherm.check(model(), batch(), **wrong)


def test_wrong_arguments_of_a_report_are_named(tmp_path):
    report = isotherm.check(model(), batch(), what_if=(), progress=None)
    for wrong in (lambda: report.to_html(None), lambda: report.to_json(3)):
        with pytest.raises(ArgumentError, match=r"^path: expected a path, got "):
            wrong()
    for wrong in (lambda: report.to_html(tmp_path / "a.html", "fr"), lambda: report.to_markdown("EN")):
        with pytest.raises(ArgumentError, match=r"^language: expected "):
            wrong()
    assert not list(tmp_path.iterdir())


def test_a_rule_with_a_cap_is_a_declaration_of_its_scale():
    (layer,) = isotherm.check(model(), batch(), declared="1/sqrt(d)*softcap:50").layers
    assert layer.scale.agrees


@pytest.mark.parametrize("nothing", [[[]], [[], []], ([],)])
def test_lists_of_nothing_are_no_batch(nothing):
    with pytest.raises(ArgumentError, match=r"^batch: expected "):
        isotherm.check(model(), nothing)


def test_nothing_is_said_about_tensors_without_values():
    with pytest.raises(ArgumentError, match=r"^model: .* meta device"):
        isotherm.check(model().to("meta"), batch())
    with pytest.raises(ArgumentError, match=r"^batch: .* meta device"):
        isotherm.check(model(), batch().to("meta"))


@pytest.mark.parametrize("name", ["x" * 300, ""], ids=["too long", "empty"])
def test_names_that_can_be_no_file(name):
    with pytest.raises(InputError, match=r"cannot be read|no such folder"):
        load(name, Loading())


def test_a_base_in_nobodys_home(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "~nobody-here/base"}))
    with pytest.raises(InputError, match="its base model ~nobody-here/base is not there"):
        load(str(tmp_path), Loading())


def test_a_local_pipeline_is_not_fetched(tmp_path):
    parts = {"_class_name": "Pipeline", "unet": ["diffusers", "UNet2DConditionModel"]}
    (tmp_path / "model_index.json").write_text(json.dumps(parts))
    with pytest.raises(InputError, match=f"isotherm check {tmp_path}/unet"):
        load(str(tmp_path), Loading())


def causal(tokens):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(DIM, 1, DIM, batch_first=True).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(tokens)
    return isotherm.check(layer, {"src": torch.randn(1, tokens, DIM), "src_mask": mask}, rows=1)


def test_one_row_is_the_last_and_claims_no_interval():
    report = causal(12)
    (head,) = report.layers[0].head_stats
    assert (head.rows, head.rows_total, head.entropy_interval) == (1, 12, None)
    assert head.entropy.p50 > 1  # the first row of a causal layer sees one key only
    assert "sampled: 1 of 12 rows a head ·" in " ".join(str(report).split())


def test_one_key_is_not_saturated():
    assert state(rows=1, invalid=0, gate=0.0, fraction=None, excess=0.0) == "balanced"
    assert state(rows=1, invalid=0, gate=0.0, fraction=0.0, excess=0.0) == "saturated"


def test_one_of_each_is_singular():
    report = isotherm.check(nn.TransformerEncoderLayer(8, 1, batch_first=True).eval(), torch.randn(1, 4, 8))
    assert "1 layer × 1 head ·" in str(report)
    assert "1 layer × 1 head, " in report.to_markdown()
    assert repr(report) == "<Report TransformerEncoderLayer: 1 head, 0 findings>"


def test_without_a_spread_no_factor_keeps_the_entropy():
    flat = model()
    with torch.no_grad():
        for parameter in flat.layers[0].q_proj.parameters():
            parameter.zero_()
    assert isotherm.check(flat, batch(), context=4096, compare=False).record.context is None
