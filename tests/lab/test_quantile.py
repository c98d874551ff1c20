from math import log

import pytest
import torch

from isotherm.lab.quantile import groups, quantile, quantile_line, share, share_line
from isotherm.language import Text


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
