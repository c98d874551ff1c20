from math import sqrt

import pytest
import torch

from isotherm import scale
from isotherm.lab.claim import Setting
from isotherm.lab.departures import DEPARTURES
from isotherm.lab.dots import DISTRIBUTIONS, BlockPlan, independent, logits, moments, normal

SETTING = Setting({}, seed=3)


@pytest.mark.parametrize("kind", DISTRIBUTIONS, ids=lambda kind: kind.name.en)
def test_components_have_mean_0_and_variance_1_and_their_kurtosis(kind):
    x = kind.draw((400_000,), SETTING.generator(1))
    assert x.dtype == torch.float64
    assert abs(float(x.mean())) < 5 / sqrt(len(x))
    assert float(x.square().mean()) == pytest.approx(1, abs=5 * sqrt(8 / len(x)))
    # The eighth moment of Student's t is infinite, so its fourth settles slowly.
    assert float(x.pow(4).mean()) == pytest.approx(kind.kurtosis, rel=0.25 if kind.kurtosis == 9 else 0.02)


def test_student_has_the_tail_of_student():
    x = DISTRIBUTIONS[3].draw((400_000,), SETTING.generator(2))
    # P(|t₅| > 2.5706) = 0.05
    assert float((x.abs() > 2.5706 / sqrt(5 / 3)).double().mean()) == pytest.approx(0.05, abs=0.002)


@pytest.mark.parametrize(("d", "block"), [(1, 16), (3, 48), (11, 128), (257, 128)])
def test_a_plan_draws_every_block_once(d, block):
    plan = BlockPlan(d, 1 << 16)
    shapes = list(plan.shapes())
    assert plan.block == block
    assert sum(shape[0] for shape in shapes) == plan.blocks >= 16
    assert {shape[1:] for shape in shapes} == {(block, d)}


def test_logits_are_scaled_by_the_rule():
    q, k = normal((3, 5, 7), SETTING.generator(3)), normal((3, 11, 7), SETTING.generator(4))
    dot = torch.einsum("bqd,bkd->bqk", q, k)
    assert torch.allclose(logits(q, k, scale.NoScale()), dot)
    assert torch.allclose(logits(q, k, scale.InverseSqrt()), dot / sqrt(7))
    assert logits(q, k, scale.NoScale()).shape == (3, 5, 11)


def test_moments_are_those_of_all_pairs_and_repeat():
    plan = BlockPlan(7, 1, largest=5, fewest=16)
    pairs = independent(normal)
    found = moments(SETTING, plan, pairs, scale.NoScale(), 9)
    (shape,) = plan.shapes()
    q, k = pairs(shape, SETTING.generator(9))
    s = torch.einsum("bqd,bkd->bqk", q, k).flatten(1)
    assert torch.allclose(found.mean, s.mean(-1))
    assert torch.allclose(found.square, s.square().mean(-1))
    assert found.variance == moments(SETTING, plan, pairs, scale.NoScale(), 9).variance


@pytest.mark.parametrize("departure", DEPARTURES, ids=lambda departure: departure.name.en)
def test_departures_have_the_moments_they_say(departure):
    d = 5
    q, k = departure.draw((200_000, d), SETTING.generator(5))
    s, right = (q * k).sum(-1), departure.moments(d)
    assert float(s.mean()) == pytest.approx(right.mean, abs=5 * sqrt(right.variance / len(s)))
    assert float(s.var()) == pytest.approx(right.variance, rel=0.03)
