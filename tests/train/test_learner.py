"""The learner: how a batch is divided changes nothing, everything it learned is saved, and every model learns."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from isotherm.errors import ArgumentError, IsothermError
from isotherm.train import loop
from isotherm.train.config import to_plain
from isotherm.train.learner import Learner, make_model, restore_model
from isotherm.train.loop import train
from isotherm.train.processes import Processes, pick
from tests.train.corpora import learned, tiny, write_tsv

ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def tsv(tmp_path_factory):
    return write_tsv(tmp_path_factory.mktemp("corpus") / "pairs.tsv")


def losses(path):
    return [line["loss"] for line in learned(path)]


@pytest.fixture(scope="module")
def plain(tsv, tmp_path_factory):
    """A run in one piece, without dropout: dropout differs between processes."""
    path = tmp_path_factory.mktemp("plain") / "run"
    train(tiny(tsv, model__dropout=0.0), path, quiet=True)
    return path


@pytest.mark.parametrize("pieces", [2, 3, 50], ids=["two", "three", "more than rows"])
def test_a_batch_in_pieces_learns_the_same(tsv, plain, tmp_path, pieces):
    train(tiny(tsv, model__dropout=0.0, run__accumulate=pieces), tmp_path / "run", quiet=True)
    assert losses(tmp_path / "run") == pytest.approx(losses(plain), rel=2e-4)


@pytest.mark.slow
def test_two_processes_learn_the_same_as_one(tsv, plain, tmp_path):
    """`torchrun` with gloo for the first steps; what it saved then goes on in one process."""
    changes = {"model__dropout": 0.0, "run__accumulate": 2}
    config, path = tmp_path / "config.json", tmp_path / "run"
    config.write_text(json.dumps(to_plain(tiny(tsv, run__steps=14, **changes))))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = ["-m", "tests.train.job", str(config), str(path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*torchrun, *job], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert done.stderr.count("held-out loss") == 2  # after steps 10 and 14: one process speaks, not two
    checkpoint = max((path / "checkpoints").glob("*.json"))
    assert json.loads(checkpoint.read_text())["notes"]["processes"] == 2
    train(tiny(tsv, **changes), path, resume=True, quiet=True)
    lines = {(line["kind"], line["step"]): line["loss"] for line in learned(path)}
    wanted = {(line["kind"], line["step"]): line["loss"] for line in learned(plain)}
    shared = (lines.keys() & wanted.keys()) - {("train", 15)}  # that line is a mean over fewer steps, as 14 was an end
    assert {step for _, step in shared} == {3, 6, 9, 10, 12, 18, 20, 21, 23}
    for key in shared:
        assert lines[key] == pytest.approx(wanted[key], rel=2e-4), key


def step(learner, batch, lr=0.01):
    return learner.step([batch], batch.tokens, lr)[0].item()


@pytest.mark.parametrize(
    ("kind", "rule", "data"),
    [
        ("transformer", "1/sqrt(d)", "align"),
        ("transformer", "qk-norm*1/sqrt(d)", "align"),
        ("transformer", "softcap:5*1/sqrt(d)", "reverse"),
        ("recurrent", "additive", "copy"),
        ("decoder", "log-n:16*1/sqrt(d)", "recall"),
    ],
)
def test_every_model_learns_a_task_and_is_restored_to_the_bit(tsv, kind, rule, data):
    from isotherm.train.feeds import load_training_data

    changes = {"data__kind": data, "data__length": 3, "data__vocabulary": 11, "model__kind": kind, "model__rule": rule}
    config = tiny(tsv, model__dropout=0.0, **changes)
    fed = load_training_data(config)
    learner = Learner(config, fed.size, ALONE)
    course = [step(learner, fed.feed.batch(0)) for _ in range(30)]
    assert course[-1] < 0.5 * course[0]
    other = Learner(replace(config, run=replace(config.run, seed=5)), fed.size, ALONE)
    other.restore(learner.tensors())
    assert [step(other, fed.feed.batch(n)) for n in range(3)] == [step(learner, fed.feed.batch(n)) for n in range(3)]


def test_bert_learns_to_fill_gaps(tsv, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the warm cat drinks tea in the old house. " * 2000)
    config = tiny(text, data__kind="text", data__length=16, model__kind="bert", run__steps=40, run__evaluate_every=5)
    train(config, tmp_path / "run", quiet=True)
    course = [line["loss"] for line in learned(tmp_path / "run") if line["kind"] == "held_out"]
    assert course[-1] < 0.8 * course[0]


def test_lower_precision_learns_and_half_precision_needs_a_gpu(tsv, plain, tmp_path):
    train(tiny(tsv, model__dropout=0.0, run__precision="bfloat16"), tmp_path / "run", quiet=True)
    assert losses(tmp_path / "run")[-1] == pytest.approx(losses(plain)[-1], rel=0.05)
    assert losses(tmp_path / "run") != losses(plain)
    with pytest.raises(ArgumentError, match=r"run\.precision: expected float32 or bfloat16 without a CUDA device"):
        train(tiny(tsv, run__precision="float16"), tmp_path / "half", quiet=True)


def test_the_gradient_is_clipped(tsv):
    from isotherm.train.feeds import load_training_data

    config = tiny(tsv, optimizer__clip=1e-9)
    fed = load_training_data(config)
    learner = Learner(config, fed.size, ALONE)
    before = [weight.detach().clone() for weight in learner.model.parameters()]
    learner.step([fed.feed.batch(0)], fed.feed.batch(0).tokens, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))
    moments = [tensor.norm() for name, tensor in learner.tensors().items() if "exp_avg." in name]
    assert torch.stack(moments).norm() <= 1.1e-10


def test_a_loss_that_is_no_number_stops_the_run_and_says_so(tsv, tmp_path, monkeypatch):
    real = Learner.step

    def broken(self, pieces, tokens, lr):
        loss, norm = real(self, pieces, tokens, lr)
        return loss * float("nan"), norm

    monkeypatch.setattr(Learner, "step", broken)
    message = r"the loss became nan before step 2: .* in a new folder \(--out\); nothing was saved yet"
    with pytest.raises(IsothermError, match=message):
        train(tiny(tsv, run__checkpoint_every=2), tmp_path / "run", quiet=True)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())  # what is no number is not saved either


def test_a_loss_that_is_no_number_names_the_last_checkpoint(tsv, tmp_path, monkeypatch):
    train(tiny(tsv, run__steps=7), tmp_path / "run", quiet=True)
    monkeypatch.setattr(Learner, "step", lambda *_: (torch.tensor(float("inf")), torch.tensor(1.0)))
    with pytest.raises(IsothermError, match=r"the loss became inf before step 9: .* the last checkpoint is of step 7"):
        train(tiny(tsv), tmp_path / "run", resume=True, quiet=True)


@pytest.mark.parametrize("package", ["safetensors", "tokenizers", "sacrebleu"])
def test_a_package_that_is_missing_is_named_before_the_work(tsv, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(IsothermError, match=rf"training needs {package}; .*pip install 'isotherm\[train\]'"):
        train(tiny(tsv), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_weights_of_another_shape_are_refused(tsv):
    config = tiny(tsv)
    saved = Learner(config, 300, ALONE).tensors()
    with pytest.raises(IsothermError, match=r"checkpoint is of another model: embedding\.weight should have shape"):
        restore_model(make_model(config, 301), saved)
    with pytest.raises(IsothermError, match="it has nothing"):
        restore_model(make_model(config, 300), {})


def test_devices():
    assert pick("cpu") == torch.device("cpu")
    assert pick("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(ArgumentError, match=r"run\.device: expected auto, cpu, cuda or mps, got abacus"):
        pick("abacus")
    with pytest.raises(ArgumentError, match=r"--device: expected auto, cpu, cuda or mps, got meta"):
        pick("meta", argument="--device")
    with pytest.raises(ArgumentError, match=r"run\.device: expected a device of this machine \(\d+ CUDA devices\)"):
        pick("cuda:99")


def test_a_run_computes_with_the_threads_it_was_given_and_leaves_them_as_they_were(tsv, tmp_path, monkeypatch):
    seen, real = [], loop.Loop._step

    def step(self, number):
        seen.append(torch.get_num_threads())
        return real(self, number)

    monkeypatch.setattr(loop.Loop, "_step", step)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        train(tiny(tsv, run__steps=1, run__samples=0), tmp_path / "usual", quiet=True)
        train(tiny(tsv, run__steps=1, run__samples=0, run__threads=2), tmp_path / "two", quiet=True)
        assert seen == [1, 2]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_model_too_large_for_the_memory_is_one_sentence(tsv, tmp_path, monkeypatch):
    def full(*_):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(loop, "Learner", full)
    with pytest.raises(IsothermError, match=r"the run does not fit the memory of cpu: make \[model\]"):
        train(tiny(tsv), tmp_path / "run", quiet=True)
