from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isotherm.lab.interval import (
    bisect,
    effect_size,
    geometric,
    groups,
    interval,
    over_seeds,
    power,
    powers,
    quantile,
    quantile_line,
    share,
    share_line,
    slope,
    student,
)
from isotherm.language import Text


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (7, 2.3646), (15, 2.1314), (100, 1.9840)]
)
def test_students_quantile_is_the_tables(freedom, t):
    assert student(freedom) == pytest.approx(t, abs=1e-4)


def test_the_interval_covers_the_true_mean_nineteen_times_in_twenty():
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(4000, 5, generator=generator, dtype=torch.float64).tolist()
    covered = sum(found.low <= 0 <= found.high for found in map(interval, draws))
    assert 0.94 < covered / 4000 < 0.96


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9), st.floats(-10, 10))
def test_a_shift_moves_the_interval_and_leaves_its_width(values, shift):
    one, two = interval(values), interval([value + shift for value in values])
    assert two.mean == pytest.approx(one.mean + shift, abs=1e-9)
    assert two.high - two.low == pytest.approx(one.high - one.low, abs=1e-6)


def test_a_geometric_interval_is_that_of_the_logarithm():
    values = [1e-9, 1e-3, 1.0]
    found, logs = geometric(values), interval([log(value) for value in values])
    assert (found.mean, found.low) == pytest.approx((exp(logs.mean), exp(logs.low)))


def test_one_seed_has_no_interval_in_a_record():
    number = over_seeds(Text("x", "x"), [3.0])
    assert (number.value, number.low, number.high) == (3.0, None, None)


def test_effect_size_counts_standard_deviations():
    assert effect_size([3.0, 5.0], [0.0, 2.0]) == pytest.approx(3 / 2**0.5)
    assert effect_size([1.0, 1.0], [1.0, 1.0]) == 0


def test_a_power_law_has_its_exponent():
    x = [3.0, 7.0, 19.0]
    assert power(x, [5 * value**-1.5 for value in x]) == pytest.approx(-1.5)
    assert slope(x, [2 * value + 1 for value in x]) == pytest.approx(2)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_the_interval_of_a_quantile_covers_it_19_times_in_20(q):
    draws = torch.empty(1000, 301, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(1))
    truth = -log(1 - q)
    covered = sum(low <= truth <= high for _, low, high in (quantile(row, q) for row in draws))
    assert 930 <= covered <= 985


def test_a_quantile_lies_inside_its_interval():
    values = torch.randn(57, generator=torch.Generator().manual_seed(2))
    for q in (0.001, 0.1, 0.5, 0.999):
        value, low, high = quantile(values, q)
        assert low <= value <= high
        assert value == pytest.approx(float(values.quantile(q)), abs=1e-6)


@pytest.mark.parametrize("truth", [0.02, 0.5, 0.97])
def test_the_interval_of_a_share_covers_it_19_times_in_20(truth):
    draws = torch.rand(1000, 211, generator=torch.Generator().manual_seed(3)) < truth
    covered = sum(low <= truth <= high for _, low, high in map(share, draws))
    assert 920 <= covered <= 990


def test_a_share_of_none_or_all_stays_within_0_and_1():
    assert share(torch.zeros(31, dtype=torch.bool))[:2] == (0.0, 0.0)
    value, low, high = share(torch.ones(31, dtype=torch.bool))
    assert (value, high) == (1.0, 1.0)
    assert low < 1


def test_groups_keep_the_mean():
    values = torch.arange(80.0)
    assert len(groups(values, 8)) == 8
    assert sum(groups(values, 8)) / 8 == pytest.approx(39.5)
    assert groups(torch.tensor([1.0, 3.0]), 8) == [1.0, 3.0]


def test_lines_carry_their_band():
    rows = [torch.rand(101, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    line = quantile_line(Text("a", "a"), (1.0, 2.0, 3.0), rows, 0.5)
    assert line.low is not None
    assert line.high is not None
    assert all(low < y < high for low, y, high in zip(line.low, line.y, line.high, strict=True))
    assert share_line(Text("a", "a"), (1.0,), [rows[0] < 2]).y == (1.0,)


def test_powers_are_one_for_each_seed():
    assert powers([1, 2, 4], [[1.0, 3.0], [2.0, 12.0], [4.0, 48.0]]) == pytest.approx([1.0, 2.0])


def test_bisection_closes_in_on_the_last_point_below():
    low, high = bisect(lambda x: x * x < 2, 0.0, 2.0, 40)
    assert low < 2**0.5 <= high
    assert high - low == pytest.approx(2.0**-39)


def test_the_farthest_end_of_an_interval_is_the_larger_in_size():
    assert interval([-3.0, -1.0, -2.0]).farthest == -interval([-3.0, -1.0, -2.0]).low
