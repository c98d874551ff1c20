"""Models by their names on the hub: from a local cache, offline, and from a hub on this machine."""

import shutil

import pytest
import torch

import isotherm
from isotherm.checkup.load import Loading, load
from isotherm.checkup.loading.hub import HubName, fetch, hub_name, weight_files
from isotherm.checkup.loading.loaded import nobody
from isotherm.cli import run
from isotherm.errors import InputError
from tests.checkup.folders import bert_folder, change_config
from tests.checkup.hub_cache import commit_of, hub, lay_out

transformers = pytest.importorskip("transformers")
NAME = "some-lab/Bert-3.2-tiny"
QUICK = ["--what-if", "", "--one-implementation", "--tokens", "16"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two versions of one model, with different weights."""
    first = bert_folder(tmp_path_factory.mktemp("hub") / "first")
    second = first.parent / "second"
    shutil.copytree(first, second)
    torch.manual_seed(7)
    transformers.BertModel(transformers.AutoConfig.from_pretrained(first)).save_pretrained(second)
    return first, second


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache for the hub's client."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def offline(cache, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return cache


@pytest.fixture
def commits(offline, folders):
    first, second = folders
    return lay_out(offline, NAME, main=second, old=first)


def weights(model):
    return model.state_dict()["encoder.layer.1.attention.self.query.weight"]


def stored(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")["encoder.layer.1.attention.self.query.weight"]


NAMES = {
    "gpt2": ("gpt2", None),
    "Qwen/Qwen3-0.6B": ("Qwen/Qwen3-0.6B", None),
    "Qwen/Qwen3-0.6B@main": ("Qwen/Qwen3-0.6B", "main"),
    "meta-llama/Llama-3.2-1B@abc123": ("meta-llama/Llama-3.2-1B", "abc123"),
    "a/b@refs/pr/1": ("a/b", "refs/pr/1"),
    "a/b@v1.0": ("a/b", "v1.0"),
}
PATHS = [
    "./a",
    "/a",
    "~/a",
    "a/b/c",
    "a@",
    "@main",
    "a@-x",
    "a b",
    "a/b@x@y",
    "weights.safetensors",
    "m.gguf@main",
    "../a",
]


@pytest.mark.parametrize("text", NAMES)
def test_a_name_and_its_revision(text):
    assert hub_name(text) == HubName(*NAMES[text])
    assert str(hub_name(text)) == text


@pytest.mark.parametrize("text", PATHS)
def test_what_is_no_name(text):
    assert hub_name(text) is None


@pytest.mark.parametrize(("revision", "which"), [("", 1), ("@main", 1), ("@old", 0), ("@commit", 0), ("@short", 0)])
def test_revisions_of_a_cached_model(commits, folders, revision, which):
    typed = {"@commit": f"@{commits['old']}", "@short": f"@{commits['old'][:7]}"}.get(revision, revision)
    loaded = load(NAME + typed, Loading())
    assert torch.equal(weights(loaded.model), stored(folders[which]))
    assert loaded.name == NAME + typed
    assert loaded.origin == f"{NAME}@{list(commits.values())[0 if which else 1]}"
    assert loaded.weights.missing == ()


@pytest.mark.usefixtures("commits")
def test_a_revision_that_the_cache_lacks():
    with pytest.raises(
        InputError, match=r"tiny@v2: the local cache does not have revision v2, and it could not be fetched"
    ):
        load(f"{NAME}@v2", Loading())


@pytest.mark.usefixtures("commits")
def test_a_folder_that_exists_is_no_name(tmp_path, folders, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folders[0], tmp_path / NAME)
    assert load(NAME, Loading()).origin == NAME
    assert torch.equal(weights(load(NAME, Loading()).model), stored(folders[0]))


@pytest.mark.usefixtures("commits")
def test_the_command_takes_a_name_and_says_nothing_else(capfd):
    assert run(["check", f"{NAME}@old", *QUICK]) == 0
    out, err = capfd.readouterr()
    assert out.startswith(f"{NAME}@old\n")
    assert err == ""


def test_python_takes_a_name(commits):
    report = isotherm.check(f"{NAME}@old", what_if=(), compare=False)
    assert report.record.model.name == f"{NAME}@old"
    assert report.record.model.origin == f"{NAME}@{commits['old']}"
    assert report.record.model.tokens > 100  # the model's own tokenizer, and our passage


def test_a_model_loaded_by_name_finds_its_tokenizer_in_the_cache(commits):
    model = transformers.AutoModel.from_pretrained(NAME)
    assert model.config._name_or_path == NAME
    assert isotherm.check(model, "the temperature of attention", what_if=(), compare=False).record.model.tokens == 6


def test_two_revisions_are_compared(commits, capsys):
    assert run(["check", f"{NAME}@old", "--compare", f"{NAME}@main", *QUICK]) == 0
    assert f"{NAME}@old → {NAME}@main" in capsys.readouterr().out


SHARDS = '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
LISTED = {
    "one file": (["model.safetensors", "pytorch_model.bin", "onnx/model.onnx"], ["model.safetensors"]),
    "pickles only": (["pytorch_model.bin", "tf_model.h5"], ["pytorch_model.bin"]),
    "shards": (
        [
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "x.pth",
        ],
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
    ),
    "shards of both kinds": (
        [
            "pytorch_model.bin.index.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "pytorch_model-00001-of-00001.bin",
        ],
        ["model-00001-of-00002.safetensors"],
    ),
    "adapter": (["adapter_model.safetensors", "model.safetensors"], ["adapter_model.safetensors"]),
    "variants": (["model.fp16.safetensors", "consolidated.safetensors"], []),
}


@pytest.mark.parametrize(("there", "wanted"), LISTED.values(), ids=LISTED.keys())
def test_only_the_weights_that_are_loaded_are_fetched(tmp_path, there, wanted):
    (tmp_path / "model.safetensors.index.json").write_text(SHARDS)
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}')
    assert weight_files(dict.fromkeys(there, 1), tmp_path, "") == wanted


@pytest.fixture
def online(cache, monkeypatch):
    """Serves models until the test ends; a function that starts it."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def serve(models, errors=None):
            address, asked = stack.enter_context(hub(models, errors))
            monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
            template = address + "/{repo_id}/resolve/{revision}/{filename}"
            monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
            return asked

        yield serve


def test_a_model_is_downloaded_once_and_then_found_offline(online, folders, tmp_path, monkeypatch):
    model = shutil.copytree(folders[0], tmp_path / "served")
    (model / "onnx").mkdir()
    for name in ("pytorch_model.bin", "onnx/model.onnx", "mine.py"):
        (model / name).write_bytes(b"not for us")
    asked, told = online({NAME: model}), []
    loaded = load(NAME, Loading(), lambda what, done: told.append((what.en, done)))
    assert torch.equal(weights(loaded.model), stored(model))
    assert loaded.origin == f"{NAME}@{commit_of(model)}"
    assert not [path for path in asked if path.endswith((".bin", ".onnx", ".py"))]
    assert any(what == "downloading model.safetensors (0 MB)" for what, _ in told)
    assert ("loading weights", 1.0) in told
    assert all(0 <= done <= 1 for _, done in told)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert torch.equal(weights(load(NAME, Loading()).model), stored(model))


def test_an_untrained_model_needs_no_weights(online, folders):
    asked = online({NAME: folders[0]})
    load(NAME, Loading(from_config=True))
    assert not [path for path in asked if path.endswith(".safetensors")]


def test_a_sentence_model_is_fetched_with_the_folder_of_its_transformer(online, folders, tmp_path):
    model = tmp_path / "sentence"
    shutil.copytree(folders[0], model / "0_Transformer")
    (model / "modules.json").write_text(
        '[{"idx": 0, "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]'
    )
    online({NAME: model})
    assert torch.equal(weights(load(NAME, Loading()).model), stored(folders[0]))


def test_a_name_that_holds_only_gguf(online, tmp_path):
    (tmp_path / "q4.gguf").write_bytes(b"GGUF")
    asked = online({"some/GGUF": tmp_path})
    with pytest.raises(
        InputError, match=r"some/GGUF: GGUF holds weights for llama.cpp; check the model that it was converted"
    ):
        load("some/GGUF", Loading())
    assert not [path for path in asked if path.endswith(".gguf")]


def test_a_pipeline_on_the_hub(online, tmp_path):
    (tmp_path / "model_index.json").write_text('{"unet": ["diffusers", "UNet2DConditionModel"], "vae": [null, null]}')
    online({"some/pipeline": tmp_path})
    with pytest.raises(
        InputError, match=r"hf download some/pipeline --local-dir DIR, .* \(unet\): isotherm check DIR/unet"
    ):
        load("some/pipeline", Loading())


ERRORS = {
    "gated": ((403, "GatedRepo"), "gated: ask for access on its page, then log in with: hf auth login"),
    "no revision": ((404, "RevisionNotFound"), "the hub has no revision v9"),
    "no such model": ((404, "RepoNotFound"), "no such folder, and the hub has no such model, or it is private"),
    "broken": ((400, "Odd"), "no such folder, and no model of that name could be fetched"),
}


@pytest.mark.parametrize(("error", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_what_the_hub_refuses_is_one_sentence(online, error, message):
    online({}, {"some/model": error})
    with pytest.raises(InputError, match=message):
        fetch(HubName("some/model", "v9"), nobody, weights=True, code=False)


def adapter_folder(path, base, **config):
    """A real LoRA adapter for the small BERT, with weights that are not zero."""
    peft = pytest.importorskip("peft")
    model = transformers.BertModel.from_pretrained(base)
    lora = peft.LoraConfig(target_modules=["query"], r=2, task_type="FEATURE_EXTRACTION", init_lora_weights=False)
    torch.manual_seed(3)
    peft.get_peft_model(model, lora).save_pretrained(path)
    change_adapter(path, **config)
    return path


def change_adapter(path, **config):
    import json

    file = path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))


def merged(base, adapter):
    """The query weights with the adapter's product added."""
    from safetensors.torch import load_file

    tensors = {
        name: tensor for name, tensor in load_file(adapter / "adapter_model.safetensors").items() if "layer.1." in name
    }
    a, b = (next(tensor for name, tensor in tensors.items() if f"lora_{side}" in name) for side in "AB")
    return stored(base) + 4 * b @ a  # lora_alpha 8 over r 2


def test_an_adapter_goes_on_the_revision_of_its_base(commits, offline, folders, tmp_path):
    adapter = adapter_folder(tmp_path / "adapter", folders[0], base_model_name_or_path=NAME, revision="old")
    lay_out(offline, "me/my-lora", main=adapter)
    loaded = load("me/my-lora", Loading())
    assert torch.allclose(weights(loaded.model), merged(folders[0], adapter), atol=1e-6)
    assert not torch.allclose(weights(loaded.model), stored(folders[0]), atol=1e-3)
    assert (loaded.name, type(loaded.model).__name__, loaded.weights.unexpected) == ("me/my-lora", "BertModel", ())
    change_adapter(adapter, revision="main")
    assert torch.allclose(weights(load(str(adapter), Loading()).model), merged(folders[1], adapter), atol=1e-6)


@pytest.mark.parametrize("beside", [True, False], ids=["beside the adapter", "from here"])
def test_the_base_of_an_adapter_may_be_a_folder(folders, tmp_path, monkeypatch, beside):
    adapter = adapter_folder(tmp_path / "adapter", folders[0], base_model_name_or_path="../base" if beside else "base")
    shutil.copytree(folders[0], tmp_path / "base")
    if not beside:
        monkeypatch.chdir(tmp_path)
    loaded = load(str(adapter), Loading())
    assert torch.allclose(weights(loaded.model), merged(folders[0], adapter), atol=1e-6)
    file = load(str(adapter / "adapter_model.safetensors"), Loading())
    assert torch.equal(weights(file.model), weights(loaded.model))


def test_tensors_of_an_adapter_that_its_base_has_no_place_for(folders, tmp_path, capsys):
    from safetensors.torch import load_file, save_file

    adapter = adapter_folder(tmp_path / "adapter", folders[0], base_model_name_or_path=str(folders[0]))
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file({name.replace("layer.1.", "layer.9."): tensor for name, tensor in tensors.items()}, path)
    assert load(str(adapter), Loading()).weights.unexpected == tuple(
        f"encoder.layer.9.attention.self.query.lora_{side}.weight" for side in "AB"
    )
    assert run(["check", str(adapter), *QUICK]) == 1
    assert "weights-unexpected" in capsys.readouterr().out


def test_an_adapter_for_another_base(folders, tmp_path):
    adapter = adapter_folder(tmp_path / "adapter", folders[0], base_model_name_or_path="../wide")
    shutil.copytree(folders[0], tmp_path / "wide")
    change_config(tmp_path / "wide", hidden_size=64, intermediate_size=64)
    with pytest.raises(InputError, match=r"adapter: the adapter does not go on its base wide \(.*size mismatch"):
        load(str(adapter), Loading())


def bare_adapter(path, **config):
    """An adapter's configuration, made without peft."""
    path.mkdir()
    (path / "adapter_config.json").write_text("{}")
    change_adapter(path, peft_type="LORA", **config)
    return path


def test_an_adapter_without_peft_is_one_sentence(folders, tmp_path, monkeypatch):
    adapter = bare_adapter(tmp_path / "adapter", base_model_name_or_path=str(folders[0]))
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(InputError, match=r"^adapter: peft is needed for this; install it with: pip install peft$"):
        load(str(adapter), Loading())


BASES = {
    "none": ({}, "base_model_name_or_path names no base model"),
    "not a name": ({"base_model_name_or_path": 3}, "base_model_name_or_path names no base model"),
    "no such folder": ({"base_model_name_or_path": "/no/where"}, "adapter: its base model /no/where is not there"),
    "a function": ({"base_model_name_or_path": "os:getcwd"}, "adapter: its base model os:getcwd is not there"),
    "itself": ({"base_model_name_or_path": "../adapter"}, "adapter: its base model ../adapter is not there"),
}


@pytest.mark.parametrize(("config", "message"), BASES.values(), ids=BASES.keys())
def test_an_adapter_whose_base_is_not_there(tmp_path, config, message):
    with pytest.raises(InputError, match=message):
        load(str(bare_adapter(tmp_path / "adapter", **config)), Loading())
