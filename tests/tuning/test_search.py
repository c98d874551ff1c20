from math import log

import numpy as np
import pytest

from isotherm.tuning.estimate import enclosed, optimum
from isotherm.tuning.search import FARTHEST, MOST, parabola, search


def bowl(best: float, documents: int = 40, noise: float = 0.0, seed: int = 0):
    """Losses that are least at `best`, steeper to the right, with a slope of its own for each document."""
    slopes = noise * np.random.default_rng(seed).standard_normal(documents)
    level = np.linspace(1, 3, documents)

    def evaluate(x: float):
        away = x - best
        return level + 0.1 * away**2 + 0.02 * away**3 * (away > -2) + slopes * x

    return evaluate


@pytest.mark.parametrize("factor", [1.0, 1.05, 1 / 0.7, 1 / 3, 3.0, 0.8])
def test_the_least_loss_is_found_in_few_evaluations(factor):
    tried = search(bowl(log(factor)))
    assert len(tried) <= MOST
    assert 0.0 in tried
    assert optimum(tried).x == pytest.approx(log(factor), abs=2e-3)


def test_a_far_optimum_is_found_and_no_factor_beyond_the_farthest_is_tried():
    assert optimum(search(bowl(log(1 / 20)))).x == pytest.approx(log(1 / 20), abs=0.05)
    assert min(search(lambda x: np.full(4, x))) == -FARTHEST


def test_losses_that_are_not_numbers_are_walked_around():
    def evaluate(x: float):
        return bowl(-0.4)(x) if x < 0.1 else np.full(40, np.nan)

    assert optimum(search(evaluate)).x == pytest.approx(-0.4, abs=0.01)


def test_the_interval_holds_the_optimum_about_as_often_as_it_says():
    found = [optimum(search(bowl(0.1, noise=0.02, seed=seed)), seed) for seed in range(80)]
    hits = sum(one.low <= 0.1 <= one.high for one in found)
    assert 68 <= hits <= 80  # 95 % of 80 is 76; below 68 once in 3,000
    assert np.mean([one.high - one.low for one in found]) == pytest.approx(4 * 0.02 / 0.2 / 40**0.5, rel=0.25)


def test_more_documents_make_a_narrower_interval():
    few, many = (optimum(search(bowl(0.1, documents, noise=0.02))) for documents in (20, 320))
    assert many.high - many.low < (few.high - few.low) / 2


def test_noise_alone_gains_nothing():
    """Judged on the documents that chose it, the optimum would always gain."""
    found = [optimum(search(bowl(0.0, 30, noise=0.03, seed=seed)), seed) for seed in range(60)]
    assert np.mean([one.gain_low > 0 for one in found]) < 0.1
    assert abs(np.mean([one.gain for one in found])) < 2e-3
    assert optimum(search(bowl(log(1 / 0.7), 30, noise=0.03))).gain_low > 0


def test_a_wide_interval_is_enclosed_by_further_points():
    curves = [bowl(0.0, 12, noise=0.15, seed=seed) for seed in range(20)]
    open_ones = [evaluate for evaluate in curves if not optimum(search(evaluate)).enclosed]
    assert open_ones
    after = [enclosed(evaluate, MOST) for evaluate in open_ones]
    assert sum(optimum(tried).enclosed for tried in after) > len(after) / 2  # the others say that they are not
    for tried in after:
        found = optimum(tried)
        assert found.enclosed == (min(tried) < found.low and found.high < max(tried))


def test_the_vertex_of_a_parabola():
    assert parabola((-1, 4), (0, 1), (3, 4)) == pytest.approx(1.0)
    assert parabola((-1, 0), (0, 1), (1, 0)) == 0
