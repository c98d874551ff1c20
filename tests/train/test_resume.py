"""A run that was stopped, killed or cut off anywhere goes on as if nothing had happened, to the last bit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from isotherm.errors import InputError, IsothermError
from isotherm.train import checkpoint, loop
from isotherm.train.config import to_plain
from isotherm.train.loop import train
from isotherm.train.run_folder import RunFolder
from tests.train.corpora import last_state, learned, tiny, write_tsv


@pytest.fixture(scope="module")
def tsv(tmp_path_factory):
    return write_tsv(tmp_path_factory.mktemp("corpus") / "pairs.tsv")


@pytest.fixture(scope="module")
def through(tsv, tmp_path_factory):
    """The run that nothing happened to."""
    path = tmp_path_factory.mktemp("through") / "run"
    outcome = train(tiny(tsv), path, quiet=True)
    assert outcome.stopped is None
    return path


def assert_same(path: Path, through: Path) -> None:
    assert learned(path) == learned(through)
    assert last_state(path) == last_state(through)
    assert (path / "result.json").read_text() == (through / "result.json").read_text()


def test_a_run_repeats_exactly_and_another_seed_does_not(tsv, through, tmp_path):
    train(tiny(tsv), tmp_path / "again", quiet=True)
    assert_same(tmp_path / "again", through)
    train(tiny(tsv, run__seed=1, run__steps=3), tmp_path / "other", quiet=True)
    assert learned(tmp_path / "other")[0]["loss"] != learned(through)[0]["loss"]


class PowerCut(BaseException):
    """Nothing catches this: whatever was not on the disk is gone."""


def test_cut_off_at_any_moment_of_writing_it_resumes_exactly(tsv, tmp_path, monkeypatch):
    """Each flush and each rename of checkpoint and manifest is a moment at which the power may fail."""
    config, whole = tiny(tsv, run__steps=9), tmp_path / "whole"
    train(config, whole, quiet=True)
    reached = []
    for cut in range(1, 40):
        path, calls = tmp_path / str(cut), []

        def failing(name, real, calls=calls, cut=cut):
            def run(*arguments, **options):
                calls.append(name)
                if len(calls) == cut:
                    raise PowerCut
                return real(*arguments, **options)

            return run

        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", failing("flush", os.fsync))
            patch.setattr(Path, "replace", failing("rename", Path.replace))
            try:
                train(config, path, quiet=True)
            except PowerCut:
                reached.append(calls[-1])
            else:
                break
        train(config, path, resume=True, quiet=True)
        assert_same(path, whole)
    assert reached.count("rename") == 7  # configuration, vocabulary, two checkpoints of two files, result
    assert reached.count("flush") == 11  # each of these, and a folder after each file of a checkpoint


def test_stopped_between_lines_of_metrics_it_resumes_exactly(tsv, through, tmp_path, monkeypatch):
    """A signal at a step that is no multiple of anything."""
    real = loop.Loop._step

    def step(self, number):
        if number == 11:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_step", step)
        outcome = train(tiny(tsv), tmp_path / "run", quiet=True)
    assert (outcome.stopped, outcome.step) == (signal.SIGINT, 11)
    assert last_state(tmp_path / "run")[0] == 11
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    torch.rand(5)  # whatever happens in between
    train(tiny(tsv), tmp_path / "run", resume=True, quiet=True)
    assert_same(tmp_path / "run", through)


def test_a_second_signal_does_not_wait(tsv, tmp_path, monkeypatch):
    def stuck(self, number):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop.Loop, "_step", stuck)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(tsv), tmp_path / "run", quiet=True)


@pytest.mark.slow
def test_killed_it_resumes_exactly(tsv, through, tmp_path):
    """SIGKILL in a process of its own, twice, at moments nobody chose; then it is let through."""
    config, path = tmp_path / "config.json", tmp_path / "run"
    config.write_text(json.dumps(to_plain(tiny(tsv))))
    command = [sys.executable, "-m", "tests.train.job", str(config), str(path), "--resume", "--slowly"]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    metrics = path / "metrics.jsonl"
    for lines in (2, 5):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
        while process.poll() is None:
            if metrics.exists() and metrics.read_bytes().count(b"\n") >= lines:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.005)
        assert process.wait(timeout=60) == -signal.SIGKILL
    train(tiny(tsv), path, resume=True, quiet=True)
    assert_same(path, through)


def test_a_damaged_checkpoint_costs_steps_not_exactness(tsv, through, tmp_path, capsys):
    path = tmp_path / "run"
    train(tiny(tsv, run__steps=14), path, quiet=True)
    newest = max((path / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    train(tiny(tsv), path, resume=True)
    assert_same(path, through)
    said = capsys.readouterr().err
    assert "step-00000014.safetensors: this checkpoint is damaged" in said
    assert "resuming after step 7" in said
    assert json.loads((path / "config.json").read_text())["run"]["steps"] == 23


def test_resuming_what_was_never_begun_begins_it(tsv, through, tmp_path):
    train(tiny(tsv), tmp_path / "run", resume=True, quiet=True)
    assert_same(tmp_path / "run", through)


def test_a_finished_run_resumed_is_only_measured_again(tsv, through):
    before = last_state(through), learned(through)
    outcome = train(tiny(tsv), through, resume=True, quiet=True)
    assert outcome.result["scores"]["sentences"] == 2
    assert (last_state(through), learned(through)) == before


def test_a_folder_that_holds_a_run_is_not_overwritten(tsv, through):
    with pytest.raises(InputError, match="holds a run already; --resume continues it"):
        train(tiny(tsv), through, quiet=True)


@pytest.mark.parametrize(
    "changes", [{"data__path": "none.tsv"}, {"run__precision": "float16"}], ids=["no such file", "no such arithmetic"]
)
def test_a_start_that_failed_does_not_stand_in_the_way(tsv, tmp_path, changes):
    with pytest.raises(IsothermError):
        train(tiny(tsv, **changes), tmp_path / "run", quiet=True)
    assert train(tiny(tsv, run__steps=2), tmp_path / "run", quiet=True).step == 2


def test_fewer_steps_than_are_done_are_refused(tsv, begun):
    before = (begun / "config.json").read_text()
    with pytest.raises(InputError, match=r"trained for 7 steps already, and run\.steps asks for 5"):
        train(tiny(tsv, run__steps=5), begun, resume=True, quiet=True)
    assert (begun / "config.json").read_text() == before


def test_a_run_that_is_alive_is_left_alone(tsv, begun):
    before = learned(begun)
    with RunFolder(begun).held(), pytest.raises(InputError, match="another process is training here"):
        train(tiny(tsv), begun, resume=True, quiet=True)
    assert learned(begun) == before
    train(tiny(tsv, run__steps=8), begun, resume=True, quiet=True)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a disk that is always full")
def test_a_full_disk_is_said_of_a_measurement_too(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics.symlink_to("/dev/full")
    with pytest.raises(IsothermError, match=r"cannot write .*metrics\.jsonl: no space is left on the disk"):
        folder.record({"step": 1})


def test_other_numbers_are_another_run(tsv, through):
    with pytest.raises(InputError, match=r"started with other values of: model\.rule, optimizer\.lr"):
        train(tiny(tsv, model__rule="none", optimizer__lr=0.5), through, resume=True, quiet=True)


@pytest.fixture
def begun(tsv, tmp_path):
    path = tmp_path / "run"
    train(tiny(tsv, run__steps=7), path, quiet=True)
    return path


def test_another_vocabulary_is_refused(tsv, begun):
    from isotherm.train.vocabulary import Vocabulary

    (begun / "tokenizer.json").write_text(Vocabulary.learn(["something else"], 290).to_json())
    with pytest.raises(InputError, match=r"step 7 was made with another vocabulary \(tokenizer\.json\)"):
        train(tiny(tsv), begun, resume=True, quiet=True)


def test_other_text_is_refused(tsv, begun, tmp_path):
    text = tsv.read_text(encoding="utf-8")
    try:
        tsv.write_text(text.replace("the red cat\t", "a red cat\t"), encoding="utf-8")
        with pytest.raises(InputError, match="step 7 was made with another text"):
            train(tiny(tsv), begun, resume=True, quiet=True)
    finally:
        tsv.write_text(text, encoding="utf-8")


def test_the_random_state_is_part_of_it(tsv, through, begun, monkeypatch):
    """The guard guarded: without it the dropout of the resumed steps differs, and the comparison above would see it."""
    real = checkpoint.latest

    def forgetful(*arguments):
        found = real(*arguments)
        tensors = {name: tensor for name, tensor in found.tensors.items() if not name.startswith("random.")}
        return checkpoint.Checkpoint(found.step, tensors, found.notes)

    monkeypatch.setattr(checkpoint, "latest", forgetful)
    train(tiny(tsv), begun, resume=True, quiet=True)
    assert learned(begun) != learned(through)
