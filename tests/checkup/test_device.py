"""Where a model is loaded, in which precision, and whether it fits."""

import sys
from types import SimpleNamespace

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


@pytest.mark.parametrize(
    ("of_gpus", "device", "expected"), [(1000, "cuda:1", "cuda:1"), (2**60, "cuda", "this machine")]
)
def test_memory_is_that_of_the_gpu_unless_the_machine_has_less(of_gpus, device, expected, monkeypatch):
    """Weights pass through the machine's memory on their way to a GPU."""
    from isotherm.checkup.loading.device import memory

    machine, here = memory("cpu", spread=False)
    assert here.en == "this machine"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    sizes = {0: of_gpus, 1: of_gpus, 2: 5}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=sizes[index]))
    there, where = memory(device, spread=False)
    assert (there, where.en) == (min(machine, of_gpus), expected)
    assert memory(device, spread=True)[0] == machine + 2 * of_gpus + 5


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


QUICK = {"what_if": (), "compare": False, "detail": False}


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16], ids=["text", "torch"])
def test_python_takes_a_device_and_a_precision(folder, dtype):
    report = isotherm.check(str(folder), [1, 2, 3], device=torch.device("cpu"), dtype=dtype, **QUICK)
    assert (report.record.model.device, report.record.model.dtype) == ("cpu", "bfloat16")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "cuda:99"}, r"^device: expected a device that PyTorch finds here"),
        ({"dtype": "float8"}, r"^dtype: expected auto \| float32 \| bfloat16 \| float16"),
        ({"dtype": torch.int8}, r"^dtype: expected auto"),
    ],
)
def test_python_refuses_what_is_not_there(folder, given, message):
    for model in (str(folder), torch.nn.Linear(2, 2)):
        with pytest.raises(ValueError, match=message):
            isotherm.check(model, [1, 2, 3], **given, **QUICK)


def test_a_module_is_not_moved(monkeypatch):
    layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
    x = torch.randn(1, 5, 16)
    assert isotherm.check(layer, x, device="cpu", dtype="float32", **QUICK).layers
    with pytest.raises(
        ValueError, match=r"dtype: expected that of the module .*torch.float32.*model.to\(torch.bfloat16\)"
    ):
        isotherm.check(layer, x, dtype="bfloat16", **QUICK)
    monkeypatch.setattr("isotherm.checkup.placement.check_device", lambda *_: None)
    with pytest.raises(ValueError, match=r"device: expected that of the module \(cpu\).*model.to\('cuda:0'\)"):
        isotherm.check(layer, x, device="cuda:0", **QUICK)
