from math import log, sqrt

import pytest
import torch

from isotherm.checkup.measure import look
from isotherm.tuning.gaps import critical_factor, critical_of, gaps
from tests.tuning.copiers import copier, sequences


def test_gaps_are_counted_from_the_largest():
    row = torch.tensor([[1.0, 5.0, 4.5, -torch.inf, 3.0]])
    assert gaps(row).tolist() == [[0.5, 2.0, 4.0, torch.inf]]


def test_the_critical_factor_by_hand():
    row = torch.tensor([[0.0, -1.0, -1.1, -9.0, -torch.inf]], dtype=torch.float64)
    assert critical_factor(row).item() == pytest.approx(max(log(2) / 1, log(3) / 1.1, log(4) / 9))
    assert critical_factor(torch.tensor([[2.0, 2.0, 0.0]])).item() == torch.inf


@pytest.mark.parametrize("n", [64, 4096])
def test_normal_logits_are_critical_where_the_random_energy_model_freezes(n):
    """√(2 ln n)/σ up to a factor of order 1, and inversely proportional to σ."""
    draws = torch.randn(400, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    middle = critical_factor(draws).median().item()
    assert 0.8 < middle / sqrt(2 * log(n)) < 1.8
    assert critical_factor(2.5 * draws).median().item() == pytest.approx(middle / 2.5)


def test_a_model_with_a_larger_scale_is_nearer_to_its_critical_point():
    ids = sequences(3, 5)
    with torch.no_grad():
        plain, hot = (critical_of(look(copier(layers=by), ids).captures[:1]) for by in (1.0, 2.0))
    assert hot[0] == pytest.approx(plain[0] / 2, rel=1e-4)
    assert hot[2] == pytest.approx(plain[2] / 2, rel=1e-4)
    assert 1 <= hot[1] <= plain[1]


def test_without_known_logits_there_is_no_critical_point():
    assert critical_of([]) == (None, None, None)
