"""What the checkpoint did not give the model is said, and how grave it is depends on whether attention depends on it."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from isotherm.checkup.batch import make_batch
from isotherm.checkup.examine import examine
from isotherm.checkup.load import Loading, load
from isotherm.checkup.subject import ModelSource
from isotherm.checkup.weights import _Grading, not_finite_weights
from isotherm.cli import run
from tests.checkup.folders import bert_folder, change_config

transformers = pytest.importorskip("transformers")
QUERY = "encoder.layer.1.attention.self.query"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bert_folder(tmp_path_factory.mktemp("models") / "small-bert")


@pytest.fixture
def copy(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "bert")
    return tmp_path / "bert"


def change_weights(path, change, form="safetensors"):
    """Write the folder's tensors again after `change`, as one safetensors file, several, or a pickle."""
    tensors = change(load_file(path / "model.safetensors"))
    (path / "model.safetensors").unlink()
    if form == "bin":
        torch.save(tensors, path / "pytorch_model.bin")
    elif form == "shards":
        names = sorted(tensors)
        shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for shard, inside in shards.items():
            save_file({name: tensors[name] for name in inside}, path / shard, metadata={"format": "pt"})
        where = {name: shard for shard, inside in shards.items() for name in inside}
        (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    else:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def without(word):
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if word not in name}


def found(path, **loading):
    """Findings about weights: code, severity, layer."""
    return [(f.code, f.severity, f.layer) for f in findings(path, **loading) if f.code.startswith("weights-")]


def findings(path, **loading):
    loaded = load(str(path), Loading(**loading))
    batch = make_batch(loaded, "the temperature of attention " * 9, 16)
    source = ModelSource(loaded.name, loaded.origin, loaded.weights)
    settings = {"what_if": (), "compare": False, "rows": None, "context": None, "detail": False}
    record, _ = examine(loaded.model, batch, source, **settings, progress=lambda _what, _done: None)
    return record.findings


@pytest.mark.parametrize("form", ["safetensors", "shards", "bin"])
def test_a_whole_checkpoint_is_no_finding(copy, form):
    change_weights(copy, lambda tensors: tensors, form)
    assert found(copy) == []


@pytest.mark.parametrize("form", ["safetensors", "shards", "bin"])
def test_missing_queries_are_an_error_that_names_them(copy, form):
    change_weights(copy, without("query"), form)
    finding = findings(copy)[0]
    assert (finding.code, finding.severity, finding.layer) == ("weights-missing", "error", None)
    assert finding.evidence["count"] == 4
    assert "encoder.layer.0.attention.self.query.bias" in finding.message.en
    assert "encoder.layer.0.attention.self.query.bias" in finding.message.zh


def test_one_layers_query_is_reported_at_that_layer(copy):
    change_weights(copy, without(f"{QUERY}.weight"))
    assert found(copy) == [("weights-missing", "error", 1)]


def test_a_wrong_prefix_is_missing_and_unexpected(copy):
    change_weights(copy, lambda tensors: {f"student.{name}": tensor for name, tensor in tensors.items()})
    assert found(copy) == [
        ("weights-missing", "error", None),
        ("weights-missing", "note", None),
        ("weights-unexpected", "note", None),
    ]
    finding = findings(copy)[0]
    assert finding.evidence["count"] == 37
    assert "and 34 more" in finding.message.en


@pytest.mark.parametrize(
    "word", ["word_embeddings", "layer.0.intermediate.dense.bias", "layer.1.attention.output", "layer.1.output.dense"]
)
def test_whatever_is_in_or_before_a_block_that_attends_is_an_error(copy, word):
    change_weights(copy, without(word))
    assert [(code, severity) for code, severity, _ in found(copy)] == [("weights-missing", "error")]


def test_a_head_that_the_checkpoint_never_had_is_a_note(copy):
    change_weights(copy, without("pooler"))
    assert found(copy) == [("weights-missing", "note", None)]
    assert run(["check", str(copy), "--what-if", "", "--tokens", "16"]) == 0


def test_half_a_head_is_a_warning(copy):
    change_weights(copy, without("pooler.dense.bias"))
    assert found(copy) == [("weights-missing", "warning", None)]


def test_another_shape_is_an_error_with_both_shapes(copy):
    change_weights(copy, lambda tensors: tensors | {f"{QUERY}.weight": torch.zeros(7, 32)})
    finding = findings(copy)[0]
    assert (finding.code, finding.severity, finding.layer) == ("weights-mismatched", "error", 1)
    assert f"{QUERY}.weight (7×32 for 32×32)" in finding.message.en


@pytest.mark.parametrize(
    ("name", "severity", "layer"),
    [
        (
            "encoder.layer.1.attention.self.q_norm.weight",
            "warning",
            1,
        ),  # a part of attention that this model leaves out
        (
            "encoder.layer.2.attention.self.query.weight",
            "warning",
            None,
        ),  # a layer more than the configuration asks for
        ("cls.predictions.transform.weight", "note", None),  # the head of another task
    ],
)
def test_tensors_without_a_place_in_the_model(copy, name, severity, layer):
    change_weights(copy, lambda tensors: tensors | {name: torch.zeros(32)})
    assert found(copy) == [("weights-unexpected", severity, layer)]


def small_llama(path, **keys):
    sizes = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=14, num_key_value_heads=2, **sizes, **keys)
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


def test_tied_weights_are_no_finding(folder, tmp_path):
    path = small_llama(tmp_path / "llama", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(path / "model.safetensors")
    shutil.copy(folder / "vocab.txt", path)
    shutil.copy(folder / "tokenizer.json", path)
    shutil.copy(folder / "tokenizer_config.json", path)
    assert found(path) == []


@pytest.mark.parametrize("word", ["lm_head", "model.norm"])
def test_an_output_that_is_no_head_of_its_own_is_a_warning(folder, tmp_path, word):
    path = small_llama(tmp_path / "llama", tie_word_embeddings=False)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, path)
    change_weights(path, without(word))
    assert found(path) == [("weights-missing", "warning", None)]


def test_a_model_built_untrained_misses_nothing(copy):
    (copy / "model.safetensors").unlink()
    assert found(copy, from_config=True) == []


def test_the_command_exits_1(copy, capsys):
    change_weights(copy, without("query"))
    assert run(["check", str(copy), "--what-if", "", "--tokens", "16", "--one-implementation"]) == 1
    assert "weights-missing" in capsys.readouterr().out


def test_another_hidden_size_is_an_error_and_not_a_traceback(copy, capsys):
    change_config(copy, hidden_size=64)
    assert run(["check", str(copy), "--what-if", "", "--tokens", "16", "--one-implementation"]) == 1
    assert "weights-mismatched" in capsys.readouterr().out


def test_a_block_with_two_attentions_names_the_one_that_a_tensor_is_in():
    block = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("self_attn", "cross_attn", "mlp")})
    model = nn.ModuleDict({"layers": nn.ModuleList([block])})
    layers = [SimpleNamespace(index=at, name=f"layers.0.{name}") for at, name in enumerate(("self_attn", "cross_attn"))]
    both, one = (_Grading(model, tuple(some), set()) for some in (layers, layers[1:]))
    assert both.layer(["layers.0.cross_attn.weight", "layers.0.cross_attn.bias"]) == 1
    assert both.layer(["layers.0.self_attn.weight"]) == 0
    assert both.layer(["layers.0.mlp.weight"]) is None
    assert one.layer(["layers.0.mlp.weight"]) == 1
    assert both.lost("a_tensor_that_the_model_does_not_have") == "note"


def test_weights_that_are_not_finite():
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    assert not_finite_weights(model) == ()
    model.register_buffer("table", torch.tensor([0.0, torch.nan]))
    with torch.no_grad():
        model.bias[1] = torch.inf
    assert not_finite_weights(model) == ("bias", "table")
