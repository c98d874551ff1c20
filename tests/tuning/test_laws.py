from math import log, sqrt

import pytest

from isotherm.tuning.laws import LAWS, any_fits, chi_squared_95, fit

LENGTHS = (512, 2048, 8192, 32768)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_law_that_made_the_factors_is_the_best_and_alone(law):
    xs = [log(0.9 * law.shape(n, 512)) for n in LENGTHS]
    fits = fit(LENGTHS, xs, [0.01] * 4)
    assert fits[0].law is law
    assert fits[0].constant == pytest.approx(0.9)
    assert [one.law.name for one in fits if one.supported] == [law.name]
    assert any_fits(fits, 4)


def test_wide_intervals_support_several_laws():
    fits = fit(LENGTHS, [0.0, 0.02, 0.03, 0.05], [0.2] * 4)
    assert {one.law.name for one in fits if one.supported} > {"constant", "sqrt-log"}


def test_chi_squared_is_the_sum_of_squared_deviations():
    fits = fit((2, 4), [0.0, 0.2], [0.1, 0.1])
    assert {one.law.name: one.chi_squared for one in fits}["constant"] == pytest.approx(2.0)
    away = (log(sqrt(log(4))) - log(sqrt(log(2))) - 0.2) / 0.1
    assert {one.law.name: one.chi_squared for one in fits}["sqrt-log"] == pytest.approx(away**2 / 2)


def test_factors_that_follow_no_law_are_said_to_follow_none():
    assert not any_fits(fit(LENGTHS, [0.0, 0.5, -0.5, 0.3], [0.01] * 4), 4)


def test_one_length_has_no_law():
    assert fit((512,), [0.1], [0.1]) == ()


@pytest.mark.parametrize(("freedom", "exact"), [(1, 3.841), (2, 5.991), (4, 9.488), (10, 18.307)])
def test_the_quantile_of_chi_squared(freedom, exact):
    assert chi_squared_95(freedom) == pytest.approx(exact, rel=0.03)
