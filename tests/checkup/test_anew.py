"""What a library's class does when built anew is what its architecture does; a model that differs from it is wrong."""

import copy
import importlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import isotherm
from isotherm.checkup import anew
from tests.probe.architectures import GROUPED, inputs, widen

transformers = pytest.importorskip("transformers")
DIM = 8


def made(name="Helium", **options):
    """A small model of an architecture whose scale nothing here knows."""
    config = getattr(transformers, f"{name}Config")(**GROUPED | options)
    torch.manual_seed(0)
    return widen(getattr(transformers, f"{name}ForCausalLM")(config)), inputs("text")


def check(model, batch, **options):
    report = isotherm.check(model, batch, what_if=(), compare=False, **options)
    return [(f.code, f.severity, f.layer) for f in report.findings], report.layers


def attentions(model):
    return [module for module in model.modules() if hasattr(module, "scaling")]


@pytest.fixture
def other_scale(monkeypatch):
    """The installed classes scale by 1/d, and no configuration tells."""
    functions = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    original = functions["sdpa"]

    def mup(attention, query, *args, scaling=None, **kwargs):
        return original(attention, query, *args, scaling=scaling * DIM**-0.5, **kwargs)

    monkeypatch.setitem(type(functions)._global_mapping, "sdpa", mup)


def test_a_healthy_model_is_not_built_anew(monkeypatch):
    model, batch = made()
    monkeypatch.setattr(anew, "_scales", lambda *_: pytest.fail("built"))
    assert check(model, batch)[0] == []


@pytest.mark.usefixtures("other_scale")
def test_what_the_installed_class_does_is_no_finding():
    model, batch = made()
    found, layers = check(model, batch)
    assert found == []
    for layer in layers:
        assert (layer.scale.source, layer.scale.agrees) == ("installed class", True)
        assert layer.scale.declared == pytest.approx(1 / DIM, rel=1e-3)
        assert "when built anew" in layer.scale.note.en


@pytest.mark.usefixtures("other_scale")
def test_an_architecture_that_is_known_needs_no_copy_to_be_wrong():
    model, batch = made("Llama")
    assert check(model, batch)[0] == [("scale-mismatch", "error", 0), ("scale-mismatch", "error", 1)]


@pytest.mark.usefixtures("other_scale")
def test_a_key_of_the_configuration_comes_before_the_class():
    model, batch = made("Granite", attention_multiplier=0.75)
    assert {severity for _, severity, _ in check(model, batch)[0]} == {"error"}


@pytest.mark.usefixtures("other_scale")
def test_your_word_comes_before_the_class():
    model, batch = made()
    assert check(model, batch, declared="1/d")[0] == []
    assert [severity for _, severity, _ in check(model, batch, declared="1/sqrt(d)")[0]] == ["error", "error"]


@pytest.mark.parametrize("factor", [DIM**-0.5, 1.5], ids=["a known rule", "no rule"])
def test_a_model_that_differs_from_its_class_is_an_error(factor):
    model, batch = made()
    attentions(model)[1].scaling *= factor
    found, layers = check(model, batch)
    assert found == [("scale-mismatch", "error", 1)]
    assert layers[1].scale.source == "installed class"


@pytest.mark.parametrize("where", ["__main__", "transformers_modules.someone.model", "tests.checkup.test_anew"])
def test_code_outside_of_libraries_is_never_built(where, monkeypatch):
    """Its departure is no error either: nothing was declared."""
    model, batch = made()
    own = type("Own", (type(model),), {"__module__": where})
    model.__class__ = own
    for attention in attentions(model):
        attention.scaling *= 1.5
    monkeypatch.setattr(anew, "_looked_at", lambda *_: pytest.fail("built"))
    assert [severity for _, severity, _ in check(model, batch)[0]] == ["warning", "warning"]


def test_a_model_too_large_to_build_is_not_judged_by_its_class(monkeypatch):
    monkeypatch.setattr(anew, "LARGEST", 1)
    model, batch = made()
    for attention in attentions(model):
        attention.scaling *= DIM**-0.5
    assert [(code, severity) for code, severity, _ in check(model, batch)[0]] == [("scale-unusual", "note")]


def test_a_large_model_is_cut_before_it_is_built(monkeypatch):
    """Of the layers that were cut away, those that do as their siblings do are fine; of others nothing is known."""
    model, batch = made(num_hidden_layers=4, vocab_size=5000)
    attentions(model)[1].scaling *= 1.5
    attentions(model)[3].scaling *= 1.5
    built = []
    original = anew._looked_at
    monkeypatch.setattr(anew, "_looked_at", lambda *given: built.append(given[2]) or original(*given))
    monkeypatch.setattr(anew, "LARGEST", 150_000)
    found, _ = check(model, batch)
    assert (built[-1].num_hidden_layers, built[-1].vocab_size) == (2, 1000)
    assert (model.config.num_hidden_layers, model.config.vocab_size) == (4, 5000)
    assert found == [("scale-mismatch", "error", 1), ("scale-mismatch", "warning", 3)]


def test_a_learned_temperature_is_taken_over():
    new, old = (nn.ParameterDict({"t": torch.full((3, 1, 1), x), "w": torch.full((3, 3), x)}) for x in (1.0, 2.0))
    with torch.no_grad():
        anew._take_small(new, old)
    assert (float(new["t"].detach().mean()), float(new["w"].detach().mean())) == (2.0, 1.0)


@pytest.mark.usefixtures("other_scale")
def test_building_leaves_no_trace():
    model, batch = made()
    config, state = copy.deepcopy(model.config), torch.get_rng_state()
    weights = copy.deepcopy(model.state_dict())
    check(model, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.config.to_dict() == config.to_dict()
    assert model.config._attn_implementation == config._attn_implementation
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


def test_a_class_that_cannot_be_built_says_nothing():
    model = nn.TransformerEncoderLayer(16, 2)
    model.config = SimpleNamespace(vocab_size=3)
    assert anew._scales(model, torch.randn(1, 5, 16)) == {}


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (torch.arange(600).view(2, 300), (1, 64)),
        ([torch.randn(3, 70, 8)], (1, 70, 8)),
        ({"input_ids": torch.arange(600).view(2, 300), "labels": None}, (1, 64)),
        ([torch.arange(300).view(3, 100), torch.ones(2)], (3, 64)),
    ],
    ids=["ids", "vectors", "keywords", "not one batch"],
)
def test_the_new_model_reads_little(given, shape):
    made = anew._on_cpu(given, 50)
    first = made if isinstance(made, torch.Tensor) else next(iter(made.values() if isinstance(made, dict) else made))
    assert first.shape == shape
    assert first.is_floating_point() or int(first.max()) < 50


def nested(**values):
    found = SimpleNamespace(**values)
    found.to_dict = lambda: values
    return found


def config_of(**more):
    return SimpleNamespace(
        num_hidden_layers=6, vocab_size=5000, hidden_size=48, intermediate_size=192, layer_types=list("abcdef"), **more
    )


def test_a_copy_keeps_the_numbers_that_a_scale_may_depend_on_and_gets_smaller():
    original = config_of(text_config=nested(n_layer=5, ffn_dim=7, vocab_size=900), names=["x"])
    before = copy.deepcopy(vars(original)["layer_types"])
    sizes = [
        (c.num_hidden_layers, c.vocab_size, c.intermediate_size, len(c.layer_types), c.text_config.n_layer, cut)
        for c, cut in anew._smaller(original)
    ]
    assert sizes == [
        (6, 5000, 192, 6, 5, None),
        (2, 1000, 192, 2, 2, 1000),
        (6, 1000, 192, 6, 5, 1000),
        (2, 1000, 64, 2, 2, 1000),
    ]
    for smaller, _ in anew._smaller(original):
        assert (smaller.hidden_size, smaller.names) == (48, ["x"])
        assert (smaller.text_config.ffn_dim, smaller.text_config.vocab_size) == (7, 900)
    assert original.layer_types == before
    assert original.num_hidden_layers == 6


@pytest.mark.parametrize(
    ("asked", "used"), [("flash_attention_2", "eager"), ("sdpa", "sdpa"), ("eager", "eager"), (None, None)]
)
def test_a_copy_needs_no_gpu_no_download_and_no_quantisation(asked, used):
    original = config_of(_attn_implementation=asked, quantization_config={"bits": 4}, use_pretrained_backbone=True)
    copied = anew._copied(original)
    assert (copied._attn_implementation, copied.use_pretrained_backbone) == (used, False)
    assert not hasattr(copied, "quantization_config")
    assert original.use_pretrained_backbone
    assert original.quantization_config


def test_a_copy_reads_one_short_sequence():
    ids, mask, vectors = torch.arange(300).view(2, 150), torch.ones(2, 150).bool(), torch.rand(2, 150, 3).half()
    got = anew._on_cpu({"ids": ids, "mask": mask, "vectors": vectors, "flag": True}, 10)
    assert torch.equal(got["ids"], ids[:1, :64] % 10)
    assert got["mask"].dtype == torch.bool
    assert (tuple(got["mask"].shape), tuple(got["vectors"].shape)) == ((1, 64), (1, 150, 3))
    assert (got["vectors"].dtype, got["flag"]) == (torch.float32, True)
    assert torch.equal(anew._on_cpu(ids, None), ids[:1, :64])
    several = anew._on_cpu((ids, torch.arange(3)), None)
    assert [tuple(one.shape) for one in several] == [(2, 64), (3,)], "the first axis is no batch if lengths differ"
