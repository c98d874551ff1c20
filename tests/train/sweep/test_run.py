"""Stopped at any moment and started again, a sweep ends with the same numbers."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from isotherm.errors import ArgumentError, InputError, IsothermError
from isotherm.record import from_plain, to_plain
from isotherm.record.sweep import SweepRecord, TrialOutcome
from isotherm.train.sweep import group_job, local_executor, run_trials
from isotherm.train.sweep import run as sweeping
from isotherm.train.sweep.group_job import Job
from isotherm.train.sweep.group_training import points
from isotherm.train.sweep.run import How, run_sweep
from isotherm.train.sweep.spec import read_spec
from isotherm.train.sweep.store import Store
from isotherm.train.sweep.trials import groups
from tests.train.sweep.small import SMALL, SPEC


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(SPEC, encoding="utf-8")
    return read_spec(path)


def numbers(record: SweepRecord) -> list[TrialOutcome]:
    return [outcome.numbers() for outcome in record.outcomes]


def test_an_outcome_holds_what_training_did():
    trials = [replace(SMALL, steps=40, test_lengths=(3, 4)), replace(SMALL, steps=40, rule="none", lr=1e30)]
    good, bad = run_trials([replace(trial, test_lengths=(3, 4)) for trial in trials])
    assert [step for step, _ in good.losses] == points(40)
    assert good.losses[-1][1] < good.losses[0][1]
    assert good.held_out < good.held_out_start
    assert 0 <= good.accuracy <= 1
    assert [at.length for at in good.by_length] == [3, 4]
    assert [look.step for look in good.temperatures] == [0, 1, 4, 16, 40]
    assert all(0 < look.gate < 1 and look.gate_p10 <= look.gate for look in good.temperatures)
    assert good.gradients[0][1] > 0
    assert good.together == 2
    assert not good.diverged
    assert bad.diverged
    assert bad.diverged_at == 2
    assert (bad.held_out, bad.accuracy, bad.by_length) == (None, None, ())


def test_the_gate_at_the_start_is_the_rules_and_agrees_with_attention_itself():
    trials = [replace(SMALL, width=64, heads=1, steps=1, rule=rule) for rule in ("none", "1/sqrt(d)", "1/d")]
    looks = [outcome.temperatures[0] for outcome in run_trials(trials)]
    assert looks[0].gate < looks[1].gate < looks[2].gate
    assert looks[0].logit_std == pytest.approx(8 * looks[1].logit_std, rel=1e-5)
    assert looks[1].logit_std == pytest.approx(8 * looks[2].logit_std, rel=1e-5)


@pytest.mark.parametrize("score", ["additive", "multiplicative", "dot", "scaled-dot"])
def test_a_recurrent_models_attention_is_seen_whatever_its_score(score):
    trial = replace(SMALL, model="recurrent", task="align", rule=score, heads=1, steps=2)
    (outcome,) = run_trials([trial])
    assert 0 < outcome.temperatures[0].gate < 1
    assert (outcome.gradients[0][1] is None) == (score == "dot")


def test_an_outcome_survives_json():
    (outcome,) = run_trials([SMALL])
    assert from_plain(TrialOutcome, json.loads(json.dumps(to_plain(outcome)))) == outcome


def test_a_sweep_taken_up_again_trains_only_what_is_missing_and_ends_the_same(spec, tmp_path, monkeypatch):
    whole = run_sweep(spec, tmp_path / "whole", How(workers=1))
    store = Store(tmp_path / "part", "float32")
    store.put(whole.outcomes[:5])
    trained = []
    monkeypatch.setattr(
        local_executor, "work", lambda group, *rest: (trained.append(group), group_job.work(group, *rest))[1]
    )
    again = run_sweep(spec, tmp_path / "part", How(workers=1))
    assert numbers(again) == numbers(whole)
    assert again.cells == whole.cells
    made = groups(spec.trials, 16)
    assert trained == [group for group in made if not set(group) <= {one.trial for one in whole.outcomes[:5]}]
    trained.clear()
    assert numbers(run_sweep(spec, tmp_path / "part", How(workers=1))) == numbers(whole)
    assert trained == []


@pytest.mark.parametrize(
    "damage",
    ["", "{", '{"trial": 3}', "another trial's", "null", "[" * 10**5, "[" * 999 + "]" * 999],
    ids=["empty", "cut", "half", "another", "null", "deep and cut", "deep"],
)
def test_a_damaged_file_is_recognised_and_redone(tmp_path, damage):
    (outcome,) = run_trials([SMALL])
    store = Store(tmp_path, "float32")
    store.put([outcome])
    assert store.get(SMALL) == outcome
    if damage == "another trial's":
        damage = json.dumps(to_plain(replace(outcome, trial=replace(SMALL, seed=5))))
    store.path(SMALL).write_text(damage, encoding="utf-8")
    assert store.get(SMALL) is None
    store.put([outcome])
    assert store.get(SMALL) == outcome


def test_an_edited_trial_is_refused_and_one_from_before_there_were_seals_is_not(spec, tmp_path, capsys):
    whole = run_sweep(spec, tmp_path, How(workers=1))
    path = Store(tmp_path, "float32").path(spec.trials[0])
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in plain.items() if key != "seal"}))
    assert numbers(run_sweep(spec, tmp_path, How(workers=1))) == numbers(whole)
    path.write_text(json.dumps(plain | {"held_out": 0.001}))
    with pytest.raises(InputError, match=rf"{path.name}: changed since it was written"):
        run_sweep(spec, tmp_path, How(workers=1))
    assert json.loads(path.read_text())["held_out"] == 0.001


def test_what_was_computed_in_another_precision_is_refused_not_overwritten(spec, tmp_path):
    first = run_sweep(spec, tmp_path, How(workers=1))
    with pytest.raises(InputError, match="holds these trials in float32; go on with --precision float32"):
        run_sweep(spec, tmp_path, How(workers=1, precision="float64"))
    assert numbers(run_sweep(spec, tmp_path, How(workers=1))) == numbers(first)
    another = replace(SMALL, seed=7)
    run_sweep(replace(spec, blocks=(("", (another,)),)), tmp_path, How(workers=1, precision="float64"))
    assert Store(tmp_path, "float64").get(another).precision == "float64"


@pytest.mark.slow
def test_processes_give_the_same_numbers_as_this_one_also_when_one_dies(spec, tmp_path, monkeypatch):
    here = run_sweep(spec, tmp_path / "here", How(workers=1, together=4))
    killed = []

    def kill_one(_steps: int, done: int) -> None:
        children = [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
        workers = [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
        if workers and not killed:
            killed.append(workers[-1])
            os.kill(workers[-1], signal.SIGKILL)

    there = run_sweep(spec, tmp_path / "there", How(workers=2, together=4), kill_one)
    assert killed
    assert numbers(there) == numbers(here)


def test_a_group_that_keeps_killing_its_process_is_given_up(monkeypatch):
    monkeypatch.setattr(local_executor, "_run_pool", lambda left, *_: (list(left), "broken"))
    with pytest.raises(IsothermError, match="were lost 4 times"):
        local_executor.run_here([(SMALL,)], Job(), workers=2, done=print, tick=print)


@pytest.mark.slow
def test_a_sweep_killed_midway_and_started_again_ends_with_the_same_numbers(tmp_path):
    """The whole program, killed without warning as soon as a first result is there."""
    path = tmp_path / "spec.toml"
    path.write_text(SPEC.replace("steps = 5", "steps = 40"), encoding="utf-8")
    call = (
        "import sys; from isotherm.train.sweep.run import *; from isotherm.train.sweep.spec import read_spec\n"
        "run_sweep(read_spec(sys.argv[1]), sys.argv[2], How(workers=1, together=3))"
    )
    process = subprocess.Popen([sys.executable, "-c", call, str(path), str(tmp_path / "store")])
    try:
        trials = tmp_path / "store" / "trials"
        deadline = time.monotonic() + 60
        while not (trials.exists() and list(trials.glob("*.json"))) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    spec = read_spec(path)
    there = len(list(trials.glob("[0-9a-f]*.json")))
    assert 0 < there < len(spec.trials)
    resumed = run_sweep(spec, tmp_path / "store", How(workers=1, together=3))
    assert numbers(resumed) == numbers(run_sweep(spec, tmp_path / "fresh", How(workers=1, together=3)))


def test_mistakes_are_one_sentence(spec, tmp_path):
    for how in (How(device="warp"), How(device="meta"), How(device="warp", executor="ray")):
        with pytest.raises(
            ArgumentError, match=r"^--device: expected (auto, cpu, cuda or mps|cpu or cuda), got (warp|meta)"
        ):
            run_sweep(spec, tmp_path / "store", how)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="no folder can be made here"):
        run_sweep(spec, tmp_path / "file", How())
    broken = replace(spec, blocks=(("", (replace(SMALL, task="recall", vocabulary=6),)),))
    with pytest.raises(IsothermError, match="vocabulary: expected at least"):
        run_sweep(broken, tmp_path / "store", How(workers=1))


def test_training_leaves_threads_and_random_state_as_they_were():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    group_job.work((SMALL,), Job(threads=1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_the_record_says_what_it_was_made_from(spec, tmp_path):
    record = run_sweep(spec, tmp_path, How(workers=1))
    assert record.spec == spec.text
    assert record.versions["torch"] == torch.__version__
    assert record.devices
    assert from_plain(SweepRecord, json.loads(json.dumps(to_plain(record)))) == record
    assert sweeping.RECORD == "sweep.json"


def test_only_rows_where_something_is_asked_count():
    """A decoder that copies is asked in its second half: with a batch of one question, one row a head counts."""
    from isotherm.train.sweep.examples import source_of
    from isotherm.train.sweep.group_training import built
    from isotherm.train.sweep.temperatures import _counting, rows_of

    batch = source_of(SMALL, torch.device("cpu"), {}).held_out(3)[0].map(lambda tokens: tokens[:2])
    with torch.no_grad():
        (stats,) = rows_of(built(SMALL), batch.inputs)
    assert stats.n.shape == (2, SMALL.heads, 7)
    asked = (batch.labels != 0).sum().item()
    assert asked == 2 * 4
    assert len(_counting(stats.entropy, stats, batch)) == asked * SMALL.heads
