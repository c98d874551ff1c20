"""The small pieces that figures and results of claims are made of."""

import pytest
import torch

from isotherm.lab.claim import Setting, all_hold, at_most, conclude, none_of
from isotherm.lab.figures import curve, figure, heads_map, level, predicted
from isotherm.language import Text
from isotherm.record import Measured

NAME = Text("name", "名称")


def test_log_names_the_logarithmic_axes():
    line = curve(NAME, (1, 2), (3.0, 4.0))
    axes = {log: figure("a", NAME, NAME, NAME, [line], log) for log in ("", "x", "y", "xy")}
    assert {log: (made.x_log, made.y_log) for log, made in axes.items()} == {
        "": (False, False),
        "x": (True, False),
        "y": (False, True),
        "xy": (True, True),
    }


def test_a_curve_takes_values_or_a_function():
    assert curve(NAME, (1, 2), lambda x: 3.0 * x) == curve(NAME, (1, 2), [3.0, 6.0])
    assert predicted(NAME, (1, 2), float).source == "predicted"
    assert (level(NAME, (1, 2, 5), 7.0).x, level(NAME, (1, 2, 5), 7.0).y) == ((1.0, 5.0), (7.0, 7.0))


def test_a_map_of_heads_has_a_row_for_each_layer():
    made = heads_map("a", NAME, NAME, torch.arange(6.0).reshape(2, 3))
    assert (made.xs, made.ys, made.values) == ((0.0, 1.0, 2.0), (0.0, 1.0), ((0.0, 1.0, 2.0), (3.0, 4.0, 5.0)))


@pytest.mark.parametrize(
    ("holds", "under", "verdict"),
    [(True, False, "confirmed"), (True, True, "confirmed"), (False, True, "conditional"), (False, False, "refuted")],
)
def test_the_verdict_and_its_condition_follow(holds, under, verdict):
    result = conclude(holds, NAME, [], under=under, condition=NAME)
    assert (result.verdict, result.condition) == (verdict, NAME if verdict == "conditional" else None)


def test_numbers_hold_or_only_illustrate():
    assert all_hold([at_most(NAME, 1.0, 1.0), none_of(NAME, 0), Measured(NAME, 9.0)])
    assert not all_hold([at_most(NAME, 1.1, 1.0)])
    assert not all_hold([none_of(NAME, 1)])


def test_a_counter_tells_how_far_the_experiment_is():
    told = []
    count = Setting({}, progress=told.append).counter(8, done=0.5)
    count(2)
    count(6)
    assert told == [0.625, 1.0]
