import pytest
import torch

from isotherm import scale, theory
from isotherm.lab import phase
from isotherm.lab.claim import Setting
from isotherm.lab.interval import groups, interval
from isotherm.lab.phase import dot_rows, rows_over, rules

POINTS = [("none", 3), ("none", 17), ("1/√d", 17), ("log n", 3)]
STATISTICS = ("gate", "entropy", "reach")


@pytest.fixture
def setting():
    return Setting({"rows": dict.fromkeys((23, 1021), 29), "queries": 31}, seed=5)


def test_keys_in_tiles_are_the_keys_at_once(setting, monkeypatch):
    whole = rows_over(setting, 1021, POINTS, rules())
    drawn = []

    def normal(shape, generator, real=phase.normal):
        drawn.append(shape)
        return real(shape, generator)

    monkeypatch.setattr(phase, "TILE", 29 * 211)
    monkeypatch.setattr(phase, "normal", normal)
    tiled = rows_over(setting, 1021, POINTS, rules())
    assert max(width for _, width in drawn) == 211
    for point in POINTS:
        # Other tiles draw other numbers: the law is the same, not the rows. The number of keys is exact.
        assert tiled[point].stats.n.tolist() == whole[point].stats.n.tolist() == [1021] * 29


def test_one_tile_is_the_definition(setting):
    (found,) = rows_over(setting, 23, [("1/√d", 17)], rules()).values()
    q = phase.normal((29, 17), setting.generator(23, 17))
    along = phase.normal((29, 23), setting.generator(23))
    p = torch.softmax(q.norm(dim=-1, keepdim=True) / 17**0.5 * along, -1)
    assert torch.allclose(found.gate, 1 - p.square().sum(-1))
    attended = (p * (found.sigma.unsqueeze(-1) * along)).sum(-1)
    assert torch.allclose(found.reach, attended / found.sigma)


def test_points_share_their_keys(setting):
    found = rows_over(setting, 23, [("none", 17), ("1/√d", 17)], rules())
    ratio = found["none", 17].sigma / found["1/√d", 17].sigma
    assert torch.allclose(ratio, torch.full_like(ratio, 17**0.5))
    assert torch.allclose(found["none", 17].stats.logit_std, found["1/√d", 17].stats.logit_std * ratio)


@pytest.mark.parametrize(("n", "d"), [(23, 3), (23, 17), (1021, 17)])
def test_the_reduction_has_the_law_of_whole_dot_products(n, d):
    setting = Setting({"rows": {n: 2000}, "queries": 100}, seed=7)
    reduced = rows_over(setting, n, [("none", d)], rules())["none", d]
    whole = [dot_rows(setting, n, d, scale.NoScale(), seed) for seed in range(20)]
    for statistic in STATISTICS:
        a = interval([float(getattr(rows, statistic).mean()) for rows in whole])
        b = interval(groups(getattr(reduced, statistic), 20))
        error = (a.spread**2 / a.count + b.spread**2 / b.count) ** 0.5
        assert abs(a.mean - b.mean) < 4 * error


def test_reach_times_sigma_is_predicted_exactly():
    setting = Setting({"rows": {64: 4000}}, seed=11)
    rows = rows_over(setting, 64, [("none", 17)], rules())["none", 17]
    expected = theory.gaussian_attention(64, 17, 1.0)
    found = interval(groups(rows.stats.lse - rows.stats.entropy, 40))
    assert abs(found.mean - (expected.lse - expected.entropy)) < 4 * found.spread / found.count**0.5
