from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isotherm.lab.interval import effect_size, geometric, interval, over_seeds, power, slope, student
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
