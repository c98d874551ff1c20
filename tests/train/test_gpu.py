"""The same training on a CUDA device: mixed precision, compilation, and resuming (make test-gpu)."""

import pytest
import torch

from isotherm.train.loop import train
from tests.train.corpora import learned, tiny, write_tsv

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def tsv(tmp_path_factory):
    return write_tsv(tmp_path_factory.mktemp("corpus") / "pairs.tsv")


def losses(path):
    return [line["loss"] for line in learned(path)]


@pytest.fixture(scope="module")
def on_cpu(tsv, tmp_path_factory):
    path = tmp_path_factory.mktemp("cpu") / "run"
    train(tiny(tsv, model__dropout=0.0, run__samples=0), path, quiet=True)
    return losses(path)


PRECISIONS = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.05}


@pytest.mark.parametrize(("precision", "budget"), PRECISIONS.items(), ids=PRECISIONS)
def test_a_gpu_learns_what_a_cpu_does(tsv, on_cpu, tmp_path, precision, budget):
    config = tiny(tsv, model__dropout=0.0, run__samples=0, run__device="cuda", run__precision=precision)
    train(config, tmp_path / "run", quiet=True)
    found = losses(tmp_path / "run")
    # With its scale at 65536 float16 may skip its first steps; what it learned by the end counts.
    pairs = zip(found, on_cpu, strict=True) if precision != "float16" else [(found[-1], on_cpu[-1])]
    for mine, theirs in pairs:
        assert mine == pytest.approx(theirs, rel=budget)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_stopped_and_resumed_a_gpu_goes_on_where_it_was(tsv, tmp_path, precision):
    changes = {"run__samples": 0, "run__device": "cuda", "run__precision": precision}
    train(tiny(tsv, **changes), tmp_path / "through", quiet=True)
    train(tiny(tsv, run__steps=14, **changes), tmp_path / "run", quiet=True)
    train(tiny(tsv, **changes), tmp_path / "run", resume=True, quiet=True)
    wanted = {(line["kind"], line["step"]): line["loss"] for line in learned(tmp_path / "through")}
    found = {(line["kind"], line["step"]): line["loss"] for line in learned(tmp_path / "run")}
    later = [key for key in wanted if key[1] > 15]
    assert len(later) >= 4
    for key in later:
        assert found[key] == pytest.approx(wanted[key], rel=1e-4), key


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_it_learns_the_same(tsv, on_cpu, tmp_path):
    config = tiny(tsv, model__dropout=0.0, run__samples=0, run__device="cuda", run__compile=True)
    train(config, tmp_path / "run", quiet=True)
    assert losses(tmp_path / "run") == pytest.approx(on_cpu, rel=1e-3)
