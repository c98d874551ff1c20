"""Stock architectures raise no alarm; the bugs that shipped, planted in them, do."""

import sys

import pytest
import torch

import isotherm
from tests.probe.architectures import TRANSFORMERS, build

transformers = pytest.importorskip("transformers")
SCALE_CODES = {"scale-mismatch", "implementations-disagree"}
QUICK = {"what_if": (), "compare": False}


def made(name, **options):
    """The model under PyTorch's kernel where it supports that."""
    try:
        return build(name, attention="sdpa", **options)
    except ValueError:
        return build(name, attention="eager", **options)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_stock_architecture_raises_no_alarm(name):
    model, batch = made(name)
    report = isotherm.check(model, batch, what_if=())
    assert [finding.code for finding in report.findings if finding.code in SCALE_CODES] == []
    assert len(report.layers) == TRANSFORMERS[name].calls
    audited = [layer.scale.agrees for layer in report.layers]
    assert all(audited) or name in (
        "xlnet",
        "swin-v2",
    )  # relative positions in the product; cosine with a learned scale


def test_there_are_enough_architectures():
    assert len(TRANSFORMERS) >= 25


def mismatches(report):
    return [finding.layer for finding in report.findings if finding.code == "scale-mismatch"]


@pytest.mark.parametrize("name", ["llama", "bert", "gpt2", "opt", "qwen3", "granite", "whisper", "gpt-neox"])
@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0, 0.93], ids=["missing", "halved", "doubled", "7 % off"])
def test_a_wrong_scale_in_one_layer_is_reported_at_that_layer(name, factor, monkeypatch):
    """The attention function of one layer is handed another scaling than the architecture asks for."""
    model, batch = made(name)
    target = 1
    module = sys.modules[type(model).__module__]
    functions = module.ALL_ATTENTION_FUNCTIONS
    original = functions["sdpa"]
    order = {}

    def wrong(attention, query, *args, scaling=None, **kwargs):
        right = query.shape[-1] ** -0.5 if scaling is None else scaling
        wanted = (right * factor if factor else 1.0) if order.setdefault(id(attention), len(order)) == target else right
        return original(attention, query, *args, scaling=wanted, **kwargs)

    monkeypatch.setitem(type(functions)._global_mapping, "sdpa", wrong)
    if name in ("opt", "whisper") and not factor:  # they scale q before the call: there it is what is missing
        monkeypatch.undo()
        attention = [m for m in model.modules() if hasattr(m, "scaling") and hasattr(m, "q_proj")][target]
        monkeypatch.setattr(attention, "scaling", 1.0)
    assert mismatches(isotherm.check(model, batch, **QUICK)) == [target]


def test_gemma_2_with_the_wrong_scalar():
    """transformers #31891: 256 for 224."""
    model, batch = made("gemma2")
    for layer in model.modules():
        if hasattr(layer, "scaling"):
            layer.scaling *= (
                model.config.query_pre_attn_scalar / (model.config.query_pre_attn_scalar * 256 / 224)
            ) ** 0.5
    found = [f for f in isotherm.check(model, batch, **QUICK).findings if f.code == "scale-mismatch"]
    assert [f.layer for f in found] == [0, 1]
    assert found[0].severity == "error"
    assert "query_pre_attn_scalar" in found[0].evidence["source"]


@pytest.mark.parametrize("flag", ["gpt2-by-layer", "gpt2-unscaled"])
def test_a_flag_that_one_implementation_ignores(flag, monkeypatch):
    """transformers #44380: GPT-2's two scale flags under sdpa."""
    model, batch = build(flag, attention="eager")
    functions = sys.modules[type(model).__module__].ALL_ATTENTION_FUNCTIONS
    original = functions["sdpa"]

    def ignores(attention, query, *args, scaling=None, **kwargs):
        return original(attention, query, *args, scaling=query.shape[-1] ** -0.5, **kwargs)

    monkeypatch.setitem(type(functions)._global_mapping, "sdpa", ignores)
    report = isotherm.check(model, batch, what_if=())
    first = 1 if flag == "gpt2-by-layer" else 0
    assert [(f.code, f.layer) for f in report.findings] == [("implementations-disagree", first)]
    assert model.config._attn_implementation == "eager"


def test_opt_scaled_twice_under_one_implementation(monkeypatch):
    """transformers #38277: q was scaled before the call, and scaled again inside it."""
    model, batch = build("opt", attention="eager")
    functions = sys.modules[type(model).__module__].ALL_ATTENTION_FUNCTIONS
    original = functions["sdpa"]

    def twice(attention, query, *args, scaling=None, **kwargs):
        return original(attention, query, *args, scaling=None, **kwargs)

    monkeypatch.setitem(type(functions)._global_mapping, "sdpa", twice)
    assert [f.code for f in isotherm.check(model, batch, what_if=()).findings] == ["implementations-disagree"]
    monkeypatch.undo()
    monkeypatch.setitem(type(functions)._global_mapping, "sdpa", twice)
    model, batch = build("opt", attention="sdpa")
    assert mismatches(isotherm.check(model, batch, **QUICK)) == [0, 1]


def test_a_yarn_factor_that_was_dropped():
    """exllamav3 #259: YaRN's attention factor collapsed to 1."""
    model, batch = made("llama-yarn")
    for module in model.modules():
        if hasattr(module, "attention_scaling"):
            module.attention_scaling = 1.0
    found = [f for f in isotherm.check(model, batch, **QUICK).findings if f.code == "scale-mismatch"]
    assert [f.layer for f in found] == [0, 1]
    assert "yarn" in found[0].evidence["source"]


def test_deepseek_without_its_mscale():
    """Megatron #1429: mscale_all_dim not applied to the softmax scale."""
    model, batch = made("deepseek-v3")
    for module in model.modules():
        if hasattr(module, "scaling"):
            module.scaling = module.qk_head_dim**-0.5
    assert mismatches(isotherm.check(model, batch, **QUICK)) == [0, 1]


def test_a_qk_norm_gain_that_differs_between_paths(monkeypatch):
    """x-transformers #190: the fused path used another scale after QK-norm."""
    model, batch = build("qwen3", attention="eager")
    functions = sys.modules[type(model).__module__].ALL_ATTENTION_FUNCTIONS
    original = functions["sdpa"]

    def other_gain(attention, query, *args, **kwargs):
        return original(attention, query * 1.5, *args, **kwargs)

    monkeypatch.setitem(type(functions)._global_mapping, "sdpa", other_gain)
    report = isotherm.check(model, batch, what_if=())
    assert [(f.code, f.layer) for f in report.findings] == [("implementations-disagree", 0)]


@pytest.mark.parametrize("padded", [False, True], ids=["causality", "padding"])
def test_a_custom_attention_that_is_given_no_mask(padded, monkeypatch):
    """transformers #46132: a function without a mask function of its own silently gets none."""
    model, batch = build("llama", attention="eager")
    if padded:
        batch = {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}
        batch["attention_mask"][:, :4] = 0
    functions = sys.modules[type(model).__module__].ALL_ATTENTION_FUNCTIONS
    original = functions["sdpa"]

    def custom(*args, **kwargs):
        return original(*args, **({} if padded else {"is_causal": False}) | kwargs)

    monkeypatch.setitem(type(functions)._global_mapping, "custom", custom)
    model.set_attn_implementation("custom")
    found = [f for f in isotherm.check(model, batch, what_if=()).findings if f.severity == "error"]
    assert {(f.code, f.layer) for f in found} == {("implementations-disagree", 0)}
