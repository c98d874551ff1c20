"""Means, intervals and summaries, against numbers worked out by hand."""

from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.record.sweep import AtLength, Axes, SeedInterval, Temperature, TrialOutcome
from isotherm.train.sweep.analysis import analyses, cells, hedges, interval, lr_sensitivity, t_quantile
from tests.train.sweep.small import SMALL

OUTCOME = TrialOutcome(
    trial=SMALL, losses=((1, 3.0),), held_out_start=3.0, held_out=2.0, accuracy=0.5, by_length=(), diverged=False,
    diverged_at=None, temperatures=(Temperature(0, 0.8, 0.7, 0.9, 1.0), Temperature(5, 0.6, 0.5, 0.7, 2.0)),
    gradients=((1, 0.1),), parameters=10, seconds=1.0, together=1, graph=False, device="a", precision="float32",
    versions={},
)  # fmt: skip


def outcome(loss: float | None, start: float = 3.0, **changes) -> TrialOutcome:
    diverged = loss is None
    return replace(OUTCOME, trial=replace(SMALL, **changes), held_out=loss, held_out_start=start, diverged=diverged)


def test_an_interval_is_the_t_interval():
    got = interval([1.0, 2.0, 3.0, None])
    assert got.mean == 2
    assert got.high - got.mean == pytest.approx(4.3027 * 1.0 / sqrt(3))
    assert (interval([2.0]), interval([None])) == (SeedInterval(2.0, None, None, 1), None)


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.7062), (30, 2.0423), (40, 2.0211), (120, 1.9799)])
def test_quantiles_of_t_are_the_tables(freedom, expected):
    assert t_quantile(freedom) == pytest.approx(expected, abs=2e-4)


def test_hedges_g_by_hand():
    # means 2 and 5, both variances 1, correction 1 − 3/(4·6 − 9) = 0.8
    assert hedges([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == pytest.approx(-3 * 0.8)
    assert hedges([1.0], [4.0, 5.0]) is None


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9), st.floats(-3, 3), st.floats(0.1, 10))
def test_an_effect_size_does_not_depend_on_units(values, shift, factor):
    others = [value + 1 for value in values]
    g, moved = (
        hedges(values, others),
        hedges([v * factor + shift for v in values], [v * factor + shift for v in others]),
    )
    assert (g is None) == (moved is None) or max(values) - min(values) < 1e-6
    if g is not None and moved is not None and max(values) - min(values) > 1e-6:
        assert moved == pytest.approx(g, rel=1e-6)


def test_lr_sensitivity_by_hand():
    """min(loss, start) = 2.5, 2.0, 3.0 (diverged: the start), 3.0 (worse than the start); mean 2.625, best 2."""
    found = [outcome(2.5, lr=0.1), outcome(2.0, lr=0.2), outcome(None, lr=0.3), outcome(7.0, lr=0.4)]
    assert lr_sensitivity(found) == pytest.approx(0.625)


def test_a_sweep_over_learning_rates_has_its_sensitivity_for_each_rule():
    found = [
        outcome(loss, rule=rule, lr=lr, seed=seed)
        for rule, losses in (("none", (2.0, None)), ("1/d", (2.0, 2.0)))
        for lr, loss in zip((0.1, 0.2), losses, strict=True)
        for seed in (0, 1)
    ]
    made = analyses([("", found)], Axes("lr", "loss", ("rule",)))
    assert [(one.name, one.series, one.value) for one in made] == [
        ("lr-sensitivity", "none", 0.5),
        ("lr-sensitivity", "1/d", 0.0),
    ]


def test_large_over_small_takes_the_best_rate_at_each_end():
    losses = {(16, 0.1): 2.0, (16, 0.2): 1.0, (64, 0.1): 1.5, (64, 0.2): 9.0}
    found = [outcome(loss + 0.0 * s, width=w, lr=lr, seed=s) for (w, lr), loss in losses.items() for s in (0, 1)]
    axes = Axes("width", "loss", ("rule",), "lr")
    (made,) = analyses([("", found)], axes)
    assert (made.name, made.value) == ("large/small", 1.5)
    assert [(cell.x, cell.settings["lr"], cell.loss.mean) for cell in cells([("", found)], axes)] == [
        (16.0, "0.2", 1.0),
        (64.0, "0.1", 1.5),
    ]


def test_lengths_are_places_along_the_axis():
    tested = tuple(AtLength(length, 1.0, share, 1 - share / 2) for length, share in ((4, 1.0), (8, 0.5), (16, 0.25)))
    found = [replace(outcome(1.0, seed=seed), by_length=tested) for seed in (0, 1)]
    axes = Axes("length", "accuracy", ("rule",))
    made = [(one.name, one.value) for one in analyses([("", found)], axes)]
    assert made == [("long/short", 0.25), ("long-short entropy", 0.375)]
    assert [(cell.x, cell.accuracy.mean) for cell in cells([("", found)], axes)] == [
        (4.0, 1.0),
        (8.0, 0.5),
        (16.0, 0.25),
    ]


def test_blocks_may_be_the_lines_and_effects_are_against_the_first():
    blocks = [
        ("first", [outcome(loss, lr=0.1, seed=seed) for seed, loss in enumerate((1.0, 2.0, 3.0))]),
        ("second", [outcome(loss, lr=0.2, seed=seed) for seed, loss in enumerate((4.0, 5.0, 6.0))]),
    ]
    made = cells(blocks, Axes("step", "loss", ("sweep",)))
    assert [(cell.block, cell.series, cell.loss.mean) for cell in made] == [("", "first", 2.0), ("", "second", 5.0)]
    assert made[0].effect is None
    assert made[1].effect == pytest.approx(2.4)
    assert (made[0].gate_start, made[0].gate_end) == pytest.approx((0.8, 0.6))
