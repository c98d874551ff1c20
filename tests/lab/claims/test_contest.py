"""Scores trained against one another, and the recorded runs beside."""

import json
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from math import log
from pathlib import Path

import pytest

from isotherm import scale
from isotherm.errors import InputError, IsothermError
from isotherm.lab import cache as lab_cache
from isotherm.lab import claims, contest, recorded
from isotherm.lab.claim import Setting
from isotherm.lab.claims.additive_wins_at_large_d.experiment import CLAIM as WINS
from isotherm.lab.claims.scaling_restores_it.experiment import CLAIM as RESTORES
from isotherm.language import Text
from isotherm.record import to_plain
from isotherm.record.sweep import SWEEP_SCHEMA, Axes, SweepRecord, Trial, TrialOutcome
from isotherm.scale import Resolved
from isotherm.theory import freezing_threshold
from isotherm.train.sweep import run_trials

from .running import multiplies_by, run, value_of

FEW = {"dimensions": (16, 128), "vocabulary": 10, "length": 5, "steps": 45, "lrs": (2e-2,), "seeds": 8}
SHORT = {"dimensions": (16, 128), "vocabulary": 10, "length": 4, "width": 24, "steps": 60, "seeds": 4}
MOMENT = {"vocabulary": 7, "length": 2, "width": 4, "dimensions": (3, 5), "batch": 4, "steps": 3, "seeds": 2}


@pytest.fixture
def held_once(monkeypatch):
    """Contests that were held in this test are not held again: the claim is run twice, its models are trained once."""
    hold, held = contest.hold, {}

    def again(setting, *others):
        key = repr((others, sorted(setting.parameters.items())))
        if key not in held:
            held[key] = hold(setting, *others)
        return held[key]

    monkeypatch.setattr(contest, "hold", again)


@pytest.mark.slow
def test_additive_wins_where_q_and_k_have_unit_variance_unless_a_recorded_run_says_otherwise(held_once, otherwise):
    record = run(WINS, **FEW)
    assert record.verdict == WINS.expected
    check_contradicted(WINS, FEW, otherwise)
    start = "logit spread at the start, dot product, unscaled, d_k = {d}, q, k of unit variance"
    small, large = (value_of(record, start.format(d=d)) for d in FEW["dimensions"])
    assert large / small == pytest.approx((128 / 16) ** 0.5, rel=0.25)


def test_the_derivation_names_the_freezing_threshold_of_five_words():
    sentence = WINS.steps[1].sentence
    for text in (sentence.en, sentence.zh):
        assert f"σ_c = {freezing_threshold(5):.1f}" in text
        assert f"d_k = {freezing_threshold(5) ** 2:.1f}" in text


@pytest.mark.slow
def test_a_scale_left_in_place_makes_it_no_longer_lose(monkeypatch):
    monkeypatch.setattr(scale.NoScale, "resolve", lambda self, site: Resolved(multiplier=site.head_dim**-0.5))
    assert run(WINS, **FEW).verdict == "refuted"


@pytest.mark.slow
def test_scaling_restores_it_unless_a_recorded_run_says_otherwise(held_once, otherwise):
    assert run(RESTORES, **SHORT).verdict == RESTORES.expected
    check_contradicted(RESTORES, SHORT, otherwise)


@pytest.mark.slow
def test_a_scale_that_does_nothing_restores_nothing(monkeypatch):
    monkeypatch.setattr(scale.InverseSqrt, "resolve", multiplies_by(1.0))
    assert run(RESTORES, **SHORT).verdict == "refuted"


@pytest.mark.parametrize("claim", [WINS, RESTORES], ids=lambda claim: claim.id)
def test_the_same_seed_gives_the_same_record(claim):
    assert run(claim, **MOMENT) == run(claim, **MOMENT)


@cache
def trained() -> TrialOutcome:
    """An outcome as training makes it, to be changed."""
    trial = Trial(task="align", model="recurrent", rule="additive", width=4, vocabulary=11, length=2, batch=2, steps=1)
    return run_trials([trial])[0]


def outcome(rule: str, d: int, lr: float, seed: int, loss: float | None) -> TrialOutcome:
    trial = replace(trained().trial, rule=rule, head_dim=d, lr=lr, seed=seed)
    return replace(trained(), trial=trial, held_out=loss, diverged=loss is None)


@pytest.fixture
def sweep() -> SweepRecord:
    outcomes = [
        outcome(rule, d, lr, seed, loss + 0.01 * seed + (0.5 if lr == 1e-2 else 0.0))
        for rule, d, loss in (
            ("additive", 16, 1.0),
            ("multiplicative", 16, 1.1),
            ("additive", 512, 0.6),
            ("multiplicative", 512, 1.9),
            ("scaled-dot", 16, 1.2),
            ("scaled-dot", 512, 0.7),
        )
        for lr in (1e-3, 1e-2)
        for seed in range(3)
    ]
    return SweepRecord(
        schema=SWEEP_SCHEMA,
        title="scores over d",
        spec="",
        quick=False,
        axes=Axes("head_dim", "loss", ("rule",)),
        created="2026-01-01",
        seconds=1.0,
        commit="",
        versions={},
        devices=("cpu",),
        precision="float32",
        blocks=(),
        cells=(),
        analyses=(),
        outcomes=tuple(outcomes),
    )


def test_recorded_runs_stand_beside_the_small_one(sweep, tmp_path, monkeypatch):
    (tmp_path / "scores.json").write_text(json.dumps(to_plain(sweep)))
    (tmp_path / "other.json").write_text('{"schema": "something else"}')
    (tmp_path / "notes.txt").write_text("not a record")
    assert list(recorded.sweeps(tmp_path)) == [sweep]
    monkeypatch.setattr(contest, "sweeps", lambda: recorded.sweeps(tmp_path))
    record = run(WINS, **MOMENT)
    lead = "recorded «scores over d»: nats by which «additive» leads «dot product, unscaled», d_k = "
    assert value_of(record, f"{lead}16") == pytest.approx(0.1)
    assert value_of(record, f"{lead}512") == pytest.approx(1.3)
    (shown,) = [figure for figure in record.figures if figure.id == "wins-recorded-0"]
    assert [line.name.en for line in shown.lines] == ["dot product, unscaled", "additive"]
    assert shown.lines[0].y == pytest.approx((1.11, 1.91))
    assert shown.caption.en == (
        "Recorded run «scores over d»; 3 seeds, each setting at the best learning rate tried. "
        "Start: Xavier's start. "
        "Loss minus that of additive at d_k = 16, 512: +0.10, +1.30 nats a token (dot product, unscaled)."
    )
    restored = run(RESTORES, **MOMENT)
    against = "recorded «scores over d»: nats by which «dot product, 1/√d_k» leads «dot product, unscaled», d_k = 512"
    assert value_of(restored, against) == pytest.approx(1.2)
    assert [line.en for line in (*record.recorded, *restored.recorded)] == [
        f"Recorded at d_k = 512: «{ahead}» leads «dot product, unscaled» by {by} nats a token "
        "(«scores over d», Xavier's start)."
        for ahead, by in (("additive", "+1.30"), ("dot product, 1/√d_k", "+1.20"))
    ]


@pytest.fixture
def otherwise(sweep, tmp_path, monkeypatch):
    """Puts a recorded run in place of those kept, in which all scores do equally well."""
    trials = [one.trial for one in sweep.outcomes]
    level = tuple(outcome(it.rule, it.d, it.lr, it.seed, 1.0 + it.seed * 0.01) for it in trials)
    (tmp_path / "scores.json").write_text(json.dumps(to_plain(replace(sweep, outcomes=level))))
    return lambda: monkeypatch.setattr(contest, "sweeps", lambda: recorded.sweeps(tmp_path))


def check_contradicted(claim, size, otherwise):
    """Recorded runs that show no difference refute the claim, however the small models do."""
    otherwise()
    record = run(claim, **size)
    assert record.verdict == "refuted"
    assert False in [number.holds for number in record.measured if number.name.en.startswith("recorded")]


def test_a_record_that_is_given_stands_beside_those_kept(sweep, tmp_path):
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(to_plain(sweep)))
    setting = Setting({**WINS.quick, **MOMENT}, records=(path,))
    record = WINS.record(setting, WINS.experiment(setting))
    kept = len(contest.large_runs(("additive", "multiplicative")))
    assert len(record.recorded) == kept + 1
    assert f"(«scores over d, {path}», Xavier's start)" in record.recorded[-1].en
    assert f"（「各种打分，对齐任务，{path}」" in record.recorded[-1].zh
    lead = f"recorded «scores over d, {path}»: nats by which «additive» leads «dot product, unscaled», d_k = 512"
    assert value_of(record, lead) == pytest.approx(1.3)
    assert record.figures[-1].id == f"wins-recorded-{kept}"


WRONG = {
    "missing": (lambda sweep: None, "there is no such file"),
    "torn": (lambda sweep: "{", "not JSON"),
    "a list": (lambda sweep: "[]", "not a sweep's record; isotherm sweep writes one, sweep.json"),
    "other": (lambda sweep: '{"schema": "isotherm.check/1"}', "not a sweep's record"),
    "a field gone": (lambda sweep: json.dumps({"schema": SWEEP_SCHEMA}), "title: expected a value"),
    "no recurrent model": (
        lambda sweep: json.dumps(to_plain(replace(sweep, outcomes=()))),
        "no recurrent model in this sweep",
    ),
    "two widths": (
        lambda sweep: json.dumps(to_plain(replace(sweep, outcomes=(*sweep.outcomes, wider(sweep.outcomes[0]))))),
        "varies more than",
    ),
}


def wider(one: TrialOutcome) -> TrialOutcome:
    return replace(one, trial=replace(one.trial, width=2 * one.trial.width))


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_record_that_cannot_be_shown_is_refused(sweep, tmp_path, text, message):
    path = tmp_path / "sweep.json"
    if (content := text(sweep)) is not None:
        path.write_text(content)
    with pytest.raises(IsothermError, match=rf"sweep\.json.*{message}"):
        recorded.given(path)


def test_the_claims_that_show_given_records_are_those_that_hold_contests():
    reading = [claim for claim in claims.CLAIMS if "contest" in lab_parts(claim)]
    assert tuple(reading) == recorded.SHOWN_IN


def lab_parts(claim: str) -> set[str]:
    lab = lab_cache._SOURCE / "lab"
    reached = lab_cache._reached(Path(find_spec(claims.module_of(claim)).origin))
    return {path.relative_to(lab).parts[0] for path in reached if path.is_relative_to(lab)}


def test_two_starts_are_told_apart_in_the_legend(sweep):
    again = [replace(one, trial=replace(one.trial, init=2.0)) for one in sweep.outcomes]
    shown = contest.recorded_figure("both", Text("t", "t"), recorded.tuned([*sweep.outcomes, *again]), 1)
    assert [line.name.en for line in shown.lines[:2]] == [
        "dot product, unscaled, Xavier's start",
        "dot product, unscaled, gain 2",
    ]
    assert "Behind" not in shown.caption.en


@pytest.mark.parametrize(("floor", "decades"), [(0.01, True), (0.5, False)])
def test_losses_far_apart_get_a_logarithmic_axis(floor, decades):
    few = [outcome("additive", d, 1e-3, seed, loss) for d, loss in ((16, 1.0), (512, floor)) for seed in range(2)]
    assert contest.recorded_figure("far", Text("t", "t"), recorded.tuned(few), 0).y_log is decades


@pytest.mark.slow
def test_no_two_figures_of_the_contests_share_a_file():
    shown = [figure.id for claim in (WINS, RESTORES) for figure in run(claim, **MOMENT).figures]
    assert len(shown) == len(set(shown))


def test_each_setting_is_taken_at_its_best_learning_rate(sweep):
    found = {(one.trial.rule, one.trial.d): one for one in recorded.tuned(sweep.outcomes)}
    assert (found["additive", 16].trial.lr, found["additive", 16].rates) == (1e-3, 2)
    assert list(found["additive", 16].losses.values()) == pytest.approx([1.0, 1.01, 1.02])


def test_a_run_that_diverged_counts_as_guessing(sweep):
    broken = [outcome("additive", 16, 1e-3, seed, None) for seed in range(3)]
    worse = [replace(one, trial=replace(one.trial, lr=0.1), held_out=2.5, diverged=False) for one in broken]
    (best,) = recorded.tuned([*broken, *worse])
    assert (best.diverged, list(best.losses.values())) == (3, [log(11)] * 3)


def test_a_start_is_known_by_its_gain():
    trial = Trial(model="recurrent", rule="additive", width=16, head_dim=128)
    named = {init: contest._start_of(replace(trial, init=init)).en for init in (1.0, 3 * (144 / 32) ** 0.5, 2.0)}
    assert list(named.values()) == ["Xavier's start", "q, k of unit variance", "gain 2"]


def test_nothing_recorded_is_nothing_shown(tmp_path):
    assert list(recorded.sweeps(tmp_path / "none")) == []


def test_a_recorded_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(InputError, match=r"torn\.json"):
        list(recorded.sweeps(tmp_path))


def test_tasks_of_one_recorded_sweep_are_not_drawn_as_one():
    shown = contest.large_runs(("additive", "multiplicative"))
    assert [len({one.trial.task for one in settings}) for _, settings in shown] == [1, 1]
    assert len({title.en for title, _ in shown}) == len({title.zh for title, _ in shown}) == 2
