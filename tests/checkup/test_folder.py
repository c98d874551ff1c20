"""Hostile model folders and texts: one sentence that names the file, before anything is built."""

import json
import os
import shutil
import time

import pytest
import torch

from isotherm.checkup import batch as batches
from isotherm.checkup import generated
from isotherm.checkup.batch import make_batch, read_text
from isotherm.checkup.folder import check_sizes
from isotherm.checkup.generated import picture, sound
from isotherm.checkup.load import Loading, load
from isotherm.cli import run
from isotherm.errors import ArgumentError, InputError
from tests.checkup.folders import bert_folder, change_config

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bert_folder(tmp_path_factory.mktemp("models") / "small-bert")


@pytest.fixture
def copy(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "bert")
    return tmp_path / "bert"


def refused(copy, **loading):
    """The sentence, which must come at once."""
    started = time.perf_counter()
    with pytest.raises(InputError) as error:
        load(str(copy), Loading(**loading))
    assert time.perf_counter() - started < 20
    assert "\n" not in str(error.value)
    return str(error.value)


TOO_LARGE = {
    "layers": {"num_hidden_layers": 10**9},
    "layers without end": {"num_hidden_layers": 10**30},
    "layers of a part": {"text_config": {"num_hidden_layers": 10**9}},
    "labels": {"num_labels": 10**9},
    "experts": {"num_experts": 10**9},
    "layers times experts": {"num_hidden_layers": 1999, "num_local_experts": 9999},
    "layers within layers": {"model_type": "albert", "inner_group_num": 10**9},
    "layers of a resampler": {"perceiver_resampler_num_layers": 10**9},
    "a loop of its forward": {"H_cycles": 10**9},
    "a number without end": {"intermediate_size": 10**30},
    "a wide layer": {"intermediate_size": 10**6},
    "a wide head": {"model_type": "t5", "d_kv": 10**6},
    "a wide layer of a part": {"text_config": {"n_embd": 10**6}},
    "a list of numbers": {"depths": [2, 10**9]},
}


@pytest.mark.parametrize("from_config", [False, True], ids=["weights", "from config"])
@pytest.mark.parametrize("keys", TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_a_number_that_no_model_has_is_refused(copy, keys, from_config):
    change_config(copy, **keys)
    said = refused(copy, from_config=from_config)
    assert "config.json" in said
    inner = keys.get("text_config", keys)
    assert list(inner)[-1] in said


@pytest.mark.parametrize("from_config", [False, True], ids=["weights", "from config"])
@pytest.mark.parametrize(
    "keys",
    [{"vocab_size": 2**40}, {"max_position_embeddings": 2**40}],
    ids=str,
)
def test_a_model_larger_than_the_memory_is_refused_before_it_is_built(copy, keys, from_config):
    change_config(copy, **keys)
    assert "GiB" in refused(copy, from_config=from_config)


def test_a_model_far_larger_than_its_weights_is_refused_before_it_is_built(copy):
    change_config(copy, vocab_size=10**7)
    said = refused(copy)
    assert "asks for 3.2e+08 parameters, and the weights in this folder have only" in said


def test_an_untrained_model_has_a_bound(copy, monkeypatch):
    load(str(copy), Loading(from_config=True))
    monkeypatch.setattr("isotherm.checkup.loading.pretrained.MOST_UNTRAINED", 10_000)
    assert "parameters; --from-config builds 1e+04 at most" in refused(copy, from_config=True)


def test_a_small_model_may_lack_most_of_its_weights(copy):
    change_config(copy, vocab_size=10**6)  # 32 million parameters, which take less than a second
    assert load(str(copy), Loading()).weights.mismatched


def test_numbers_that_published_models_have_are_accepted():
    check_sizes({"hidden_size": 20_480, "intermediate_size": 81_920, "vocab_size": 901_629}, "config.json")
    check_sizes(
        {
            "num_labels": 21_843,
            "label2id": {"layer": 21_842},
            "max_position_embeddings": 10_485_760,
            "rope_theta": 10**12,
        },
        "config.json",
    )
    check_sizes({"num_hidden_layers": 32, "num_experts": 16_384, "layer_types": ["full"] * 32}, "config.json")
    check_sizes(
        {"time_step_limit": [0.0, float("inf")], "eos_token_id": [151_645, -1], "n_positions": 2**20}, "config.json"
    )


def nested(depth):
    return '{"a": ' * depth + "1" + "}" * depth


CONFIGS = {
    "nested": (nested(100_000).encode(), "nested too deeply"),
    "nested lists": (b'{"architectures": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "nested a little": (nested(300).encode(), "nested too deeply"),
    "a list": (b"[1]", "not an object"),
    "null": (b"null", "not an object"),
    "a number": (b"5", "not an object"),
    "huge": (b'{"a": "' + b"x" * 2**25 + b'"}', "larger than"),
    "empty": (b"", "not JSON"),
    "not UTF-8": (b"\xff\xfe{}", "not JSON"),
    "a number of 5000 digits": (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
    "NaN": (b'{"model_type": "bert", "hidden_size": NaN}', "hidden_size"),
}


@pytest.mark.parametrize(("content", "why"), CONFIGS.values(), ids=CONFIGS.keys())
def test_a_configuration_that_is_none(copy, content, why):
    (copy / "config.json").write_bytes(content)
    said = refused(copy)
    assert why in said
    assert "config.json" in said


@pytest.mark.parametrize("architectures", ["BertModel", ["BertTokenizer"], ["pipeline"], ["nn"], ["Trainer"], None])
def test_architectures_that_name_no_model_are_passed_over(copy, architectures):
    change_config(copy, architectures=architectures)
    assert type(load(str(copy), Loading()).model).__name__ == "BertModel"


@pytest.mark.parametrize("architectures", [5, [5], [None]])
def test_architectures_of_another_type_are_refused(copy, architectures):
    change_config(copy, architectures=architectures)
    refused(copy)


OUTSIDE = ["../bert/model.safetensors", "/etc/passwd", "a/../../x.safetensors", "..", "", 5, None, "nul\0.safetensors"]


@pytest.mark.parametrize("shard", OUTSIDE, ids=str)
@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
def test_an_index_that_points_outside_its_folder_is_refused(copy, shard, index):
    (copy / "model.safetensors").rename(copy / "model-00001-of-00001.safetensors")
    where = {"embeddings.LayerNorm.bias": "model-00001-of-00001.safetensors", "pooler.dense.bias": shard}
    (copy / index).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    said = refused(copy)
    assert index in said
    assert "outside" in said or "not the name of a file" in said


def test_an_index_whose_file_is_missing_names_it(copy):
    (copy / "model.safetensors").rename(copy / "model-00001-of-00002.safetensors")
    where = {"pooler.dense.bias": "model-00002-of-00002.safetensors"}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    assert "model-00002-of-00002.safetensors" in refused(copy)


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"weight_map": 5}', '{"weight_map": {"a": ["b"]}}', "{", nested(9999)]
)
def test_an_index_that_is_none(copy, content):
    (copy / "model.safetensors").rename(copy / "model-00001-of-00002.safetensors")
    (copy / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in refused(copy)


def header(text, length=None, data=b""):
    text = text.encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


HEADERS = {
    "no length": b"\x01",
    "a length without end": header("{}", 2**63),
    "a length of 2^40": header("{}", 2**40),
    "not JSON": header("{{"),
    "a list": header("[]"),
    "nested": header("[" * 10_000 + "]" * 10_000),
    "offsets beyond the end": header('{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'),
    "offsets reversed": header('{"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}}', data=b"\0" * 16),
    "shape overflow": header(
        '{"a": {"dtype": "F32", "shape": [4294967296, 4294967296, 4294967296], "data_offsets": [0, 16]}}',
        data=b"\0" * 16,
    ),
    "unknown type": header('{"a": {"dtype": "F99", "shape": [4], "data_offsets": [0, 16]}}', data=b"\0" * 16),
    "negative shape": header('{"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}}', data=b"\0" * 16),
    "not UTF-8": (2).to_bytes(8, "little") + b"\xff\xfe",
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS.keys())
def test_a_header_that_is_none(copy, content):
    (copy / "model.safetensors").write_bytes(content)
    assert "model.safetensors: corrupt or truncated" in refused(copy)


def test_a_file_that_cannot_be_read_is_named(copy, monkeypatch):
    from pathlib import Path

    opened = Path.open

    def closed(path, *args, **kwargs):
        if path.name == "config.json":
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", closed)
    assert "config.json: cannot be read (Permission denied)" in refused(copy)


@pytest.mark.parametrize("kind", ["loop", "folder", "pipe"])
def test_a_configuration_that_is_no_file(copy, kind):
    (copy / "config.json").unlink()
    if kind == "loop":
        (copy / "config.json").symlink_to("config.json")
    elif kind == "folder":
        (copy / "config.json").mkdir()
    else:
        os.mkfifo(copy / "config.json")
    assert "no config.json in this folder" in refused(copy)


def test_a_folder_that_is_a_loop(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "no such folder" in refused(tmp_path / "loop")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "tokenizer.json"])
def test_pipes_and_devices_are_not_read(copy, name, kind):
    (copy / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(copy / name)
    else:
        (copy / name).symlink_to("/dev/zero")
    assert f"{name}: not a regular file" in refused(copy)


def test_a_folder_that_cannot_be_listed(copy, monkeypatch):
    from pathlib import Path

    def closed(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)
    assert "bert: cannot be read (Permission denied)" in refused(copy)


@pytest.mark.parametrize("device", ["gpu9", "cuda:99", "meta", "cpu:x", "", "xla"])
def test_a_device_is_refused_before_the_model_is_loaded(device, monkeypatch):
    monkeypatch.setattr("isotherm.checkup.load._folder", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr("isotherm.checkup.load._default", lambda *_: pytest.fail("loaded"))
    with pytest.raises(ArgumentError, match="--device: expected"):
        load(None, Loading(device=device))


@pytest.mark.parametrize("words", [["--what-if", "logn"], ["--what-if", "sigmoid"], ["--device", "gpu9"]])
def test_the_command_refuses_before_the_model_is_loaded(capsys, words, monkeypatch):
    monkeypatch.setattr("isotherm.checkup.load._default", lambda *_: pytest.fail("loaded"))
    assert run(["check", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"isotherm: {words[0]}: expected ")
    assert repr(words[1]) in said


def test_a_long_text_is_neither_read_nor_tokenised_whole(folder, tmp_path, monkeypatch):
    path = tmp_path / "long.txt"
    with path.open("w", encoding="utf-8") as file:
        for _ in range(400):
            file.write("温 the temperature of attention " * 4096)
    assert path.stat().st_size > 50e6
    text = read_text(str(path), tokens=64)
    assert len(text) < 5e6
    loaded = load(str(folder), Loading())
    tokenizer = batches.tokenizer_of(loaded)
    lengths = []

    class Spy:
        def __call__(self, text, **options):
            lengths.append(len(text))
            return tokenizer(text, **options)

    monkeypatch.setattr(batches, "tokenizer_of", lambda _loaded: Spy())
    batch = make_batch(loaded, text, 64)
    assert batch["input_ids"].shape == (1, 64)
    assert sum(lengths) < 20_000
    whole = tokenizer(text[:100_000], truncation=True, max_length=64)["input_ids"]
    assert batch["input_ids"][0].tolist() == whole


def test_text_that_gives_few_tokens_is_read_further(folder):
    loaded = load(str(folder), Loading())
    batch = make_batch(loaded, " " * 30_000 + "the temperature of attention " * 9, 16)
    assert batch["input_ids"].shape == (1, 16)


def test_a_text_without_end(monkeypatch):
    import io
    import sys

    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            buffer[:] = b"a " * (len(buffer) // 2) + b"a" * (len(buffer) % 2)
            return len(buffer)

    class Standard:
        buffer = Endless()

    monkeypatch.setattr(sys, "stdin", Standard())
    assert 0 < len(read_text("-", tokens=64)) < 5e6


def test_a_character_cut_in_two_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "READ_AT_MOST", 100)
    (tmp_path / "text").write_text("温" * 1000, encoding="utf-8")
    assert read_text(str(tmp_path / "text"), tokens=1) == "温" * 33


def test_a_picture_or_sound_without_end_is_refused():
    with pytest.raises(InputError, match="image_size"):
        picture(transformers.ViTConfig(image_size=10**6))
    with pytest.raises(InputError, match="max_source_positions"):
        sound(transformers.WhisperConfig(max_source_positions=10**9), spectrum=True)


def test_the_largest_number_is_ten_to_the_fifteenth():
    check_sizes({"rope_theta": 10**15}, "config.json")
    with pytest.raises(InputError, match="more than 1000000000000000 is refused"):
        check_sizes({"rope_theta": 10**15 + 1}, "config.json")


def test_a_text_of_just_as_many_characters_as_are_read_at_first_is_read_whole():
    seen = []

    def tokenizer(text, **options):
        seen.append(text)
        return {"input_ids": torch.zeros(1, 1)}

    text = "温" * (batches.CHARACTERS_PER_TOKEN * 2)
    batches._encode(tokenizer, text, 2)
    assert seen == [text]
    batches._encode(tokenizer, text + "度", 2)
    assert seen == [text, text, text + "度"]


def test_an_input_may_be_as_large_as_the_limit_says():
    generated.bound("image_size", 1, generated.LARGEST_INPUT)
    with pytest.raises(InputError, match="image_size = 1 is too large"):
        generated.bound("image_size", 1, generated.LARGEST_INPUT + 1)
