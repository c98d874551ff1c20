"""Where a model is loaded, in which precision, and whether it fits."""

import sys

import pytest
import torch

import isotherm
from isotherm.checkup.load import Loading, load
from isotherm.errors import InputError
from tests.checkup.folders import bert_folder

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bert_folder(tmp_path_factory.mktemp("models") / "small-bert")


def test_a_device_is_found(folder, monkeypatch):
    monkeypatch.setattr("isotherm.checkup.loading.device.CANDIDATES", ("cuda:99", "meta", "cpu"))
    assert load(str(folder), Loading(device="auto")).model.device.type == "cpu"


def test_a_device_without_float64_is_not_taken(monkeypatch):
    """As Apple's: the statistics are float64."""
    from isotherm.checkup.loading import device

    monkeypatch.setattr(device, "_works", lambda name, dtype: name == "cpu" or dtype == torch.float32)
    assert device.choose_device("auto") == "cpu"
    with pytest.raises(ValueError, match=r"--device: expected a device with float64, .*, got 'mps'"):
        device.choose_device("mps")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("from_config", [False, True], ids=["weights", "from config"])
def test_a_precision(folder, dtype, from_config):
    loaded = load(str(folder), Loading(dtype=dtype, from_config=from_config))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {getattr(torch, dtype)}


def test_a_precision_counts_in_the_size(folder, monkeypatch):
    """The model has 31,600 numbers: 63 kB in half precision, 126 kB in single."""
    from isotherm.checkup.loading import pretrained

    monkeypatch.setattr(pretrained, "memory", lambda *_, **__: (100_000, "here"))
    load(str(folder), Loading(dtype="bfloat16"))
    with pytest.raises(InputError, match="GiB; here has"):
        load(str(folder), Loading(dtype="float32"))


def test_a_model_too_large_for_its_gpu_is_told_of_the_device_map(folder, monkeypatch):
    from isotherm.checkup.loading import pretrained

    monkeypatch.setattr(pretrained, "memory", lambda _, spread: (10**9 if spread else 10**3, "cuda"))
    with pytest.raises(InputError, match=r"GiB; cuda has .* GiB; --device-map auto spreads it over all devices"):
        load(str(folder), Loading())


def test_a_device_map_needs_accelerate(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(InputError, match=r"^--device-map: accelerate is needed for this; .*: pip install accelerate$"):
        load(str(folder), Loading(device="auto", device_map="auto"))


def test_a_device_map(folder):
    accelerate = pytest.importorskip("accelerate")
    loaded = load(str(folder), Loading(device="auto", device_map="auto"))
    accelerate.cpu_offload(loaded.model, execution_device=torch.device("cpu"))  # as where a GPU is too small
    assert {parameter.device.type for parameter in loaded.model.parameters()} == {"meta"}
    assert len(isotherm.check(loaded.model, "the temperature of attention").layers) == 2


@pytest.mark.parametrize(
    ("loading", "message"),
    [
        (Loading(device="cpu", device_map="auto"), "--device-map: expected no --device beside it"),
        (Loading(device="auto", device_map="auto", from_config=True), "--device-map: expected no --from-config"),
        (Loading(device="auto", device_map="balanced"), "--device-map: expected 'auto', got 'balanced'"),
    ],
    ids=["device", "from config", "balanced"],
)
def test_what_a_device_map_excludes(folder, loading, message):
    with pytest.raises(ValueError, match=message):
        load(str(folder), loading)
