"""The runs kept with the package: whole, of the specification beside them, and saying what is said about them."""

import tomllib
from math import prod
from pathlib import Path

import pytest

from isotherm.lab import contest, recorded
from isotherm.lab.interval import interval
from isotherm.train.sweep.analysis import analyses, cells

SWEEPS = Path(__file__).parents[2] / "sweeps"
RECORDS = {path.stem: sweep for path, sweep in zip(sorted(SWEEPS.glob("*.toml")), recorded.sweeps(), strict=True)}
FREE = ("title", "quick")
each = pytest.mark.parametrize("name", RECORDS)


@each
def test_what_was_run_is_the_specification_that_comes_along(name):
    """But for the small version and the title, which no number of the record depends on."""
    texts = (RECORDS[name].spec, (SWEEPS / f"{name}.toml").read_text(encoding="utf-8"))
    run, now = ({key: part for key, part in tomllib.loads(text).items() if key not in FREE} for text in texts)
    assert run == now


@each
def test_every_combination_was_trained(name):
    grid = tomllib.loads(RECORDS[name].spec)["grid"]
    assert {len(keys) for _, keys in RECORDS[name].blocks} == {prod(map(len, grid.values()))}
    wanted = {key for _, keys in RECORDS[name].blocks for key in keys}
    assert wanted == {outcome.trial.key() for outcome in RECORDS[name].outcomes}


@each
def test_means_and_intervals_follow_from_the_trials(name):
    sweep = RECORDS[name]
    found = {outcome.trial.key(): outcome for outcome in sweep.outcomes}
    blocks = [(block, [found[key] for key in keys]) for block, keys in sweep.blocks]
    assert cells(blocks, sweep.axes) == sweep.cells
    assert analyses(blocks, sweep.axes) == sweep.analyses


@each
def test_all_trials_are_of_one_device_and_arithmetic(name):
    kinds = {(outcome.device, outcome.precision, outcome.versions["torch"]) for outcome in RECORDS[name].outcomes}
    assert kinds == {("NVIDIA H200", "tf32", "2.11.0+cu130")}


@pytest.mark.parametrize("task", ["align", "translation"])
def test_the_unscaled_product_falls_behind_as_d_grows_and_the_scale_brings_it_back(task):
    outcomes = [one for one in RECORDS["attention-kind"].outcomes if one.trial.task == task]
    settings = recorded.tuned(outcomes)
    unscaled, scaled = (
        {trial.d: interval(gaps) for trial, gaps in contest._gaps(settings, score, "additive")}
        for score in ("multiplicative", "scaled-dot")
    )
    assert list(unscaled) == list(scaled) == [64, 128, 256, 512, 1024]
    assert unscaled[64].high < 0.25 < unscaled[1024].low
    assert all(gap.high < 0.25 for gap in scaled.values())
