"""The record of one head: its state, and what the page draws of it."""

from itertools import pairwise
from math import inf, log, nan

import pytest
import torch

import isotherm
from isotherm.checkup.heads import BINS, STRETCHES, heads_of_layers, state
from isotherm.checkup.rows import measure
from isotherm.probe import probe
from isotherm.stats import RowStats
from isotherm.theory import gaussian_row
from tests.checkup.models import Attention, Model, batch, trained


def head(logits):
    """The record of one head whose logits [T, S] these are."""
    return heads_of_layers([RowStats.from_logits(torch.tensor(logits, dtype=torch.float64)[None, None])])[0][0]


@pytest.mark.parametrize(
    ("rows", "invalid", "gate", "fraction", "excess", "expected"),
    [
        (9, 1, 0.5, 0.5, 0.9, "invalid"),
        (0, 0, None, None, 0.0, "empty"),
        (9, 0, 0.01, 0.1, 0.31, "sink"),
        (9, 0, 0.01, 0.1, 0.30, "saturated"),
        (9, 0, 0.05, 0.1, 0.0, "balanced"),
        (9, 0, 0.049, 0.1, 0.0, "saturated"),
        (9, 0, 0.5, 0.981, 0.0, "diffuse"),
        (9, 0, 0.5, 0.98, 0.0, "balanced"),
        (9, 0, None, None, 0.0, "balanced"),
    ],
)
def test_states(rows, invalid, gate, fraction, excess, expected):
    assert state(rows, invalid, gate, fraction, excess) == expected


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([[0.0, 0.0]] * 5, "diffuse"),  # half of the probability is the first key's even share
        ([[3.0, 0.0]] * 5, "sink"),  # 0.95 of it is 0.45 more
        ([[0.0, 6.0]] * 5, "saturated"),
        ([[1.0, 0.0]] * 5, "balanced"),  # 0.73 is 0.23 more
        ([[1.0, 0.0, nan]] * 5, "invalid"),
    ],
)
def test_a_sink_is_more_than_an_even_share(logits, expected):
    assert head(logits).state == expected


def test_a_row_of_one_key_is_no_sink():
    visible = torch.ones(3, 3).tril().bool()  # the first row sees one key
    stats = RowStats.from_logits(torch.zeros(1, 1, 3, 3), visible)
    assert heads_of_layers([stats])[0][0].state == "diffuse"


def test_numbers_of_a_head():
    record = head([[2.0, 0.0], [0.0, 0.0], [0.0, -1.0]])
    p = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, -1.0]], dtype=torch.float64).softmax(-1)
    assert (record.head, record.rows, record.empty, record.invalid, record.label) == (0, 3, 0, 0, "exact")
    assert (record.rows_total, record.entropy_interval) == (None, None)
    assert record.max_logit == 2
    assert record.logit_std == pytest.approx(0.5)  # the median of 1, 0 and 0.5
    assert record.sink == pytest.approx(p[:, 0].mean().item())
    assert record.top1.mean == pytest.approx(p.amax(-1).mean().item())
    assert record.jacobian_trace.p50 == pytest.approx((1 - p.square().sum(-1)).median().item())


def test_a_sampled_head_says_how_many_rows_it_has():
    torch.manual_seed(0)
    model = trained(Model(Attention()))
    whole, some = (isotherm.check(model, batch(), what_if=(), compare=False, rows=rows).record for rows in (None, 5))
    heads = whole.layers[0].head_stats[0], some.layers[0].head_stats[0]
    assert [record.rows for record in heads] == [2 * 23, 2 * 5]
    assert [record.rows_total for record in heads] == [None, 2 * 23]
    assert heads[0].entropy_interval is None
    assert heads[1].entropy_interval > 0


@pytest.mark.parametrize("tokens", [96, 100], ids=["equal stretches", "unequal ones"])
def test_histograms_profiles_and_predictions(tokens):
    torch.manual_seed(0)
    model = trained(Model(Attention()))
    with probe(model) as seen:
        model(batch(tokens))
    stats = measure(seen.captures[0])
    for index, record in enumerate(heads_of_layers([stats], detail=True)[0]):
        gate, fraction = stats.jacobian_trace[:, index], stats.entropy_fraction[:, index]
        assert record.detail.gate_histogram == tuple(gate.histc(BINS, 0, 1).long().tolist())
        assert sum(record.detail.entropy_histogram) == 2 * tokens
        assert len(record.detail.position_gate) == STRETCHES
        bounds = [-(-stretch * tokens // STRETCHES) for stretch in range(STRETCHES + 1)]
        means = [fraction[:, a:b].mean().item() for a, b in pairwise(bounds)]
        assert record.detail.position_entropy == pytest.approx(means, abs=1e-4)
        row = gaussian_row(tokens, float(f"{record.logit_std:.2g}"))
        assert record.predicted_gate == row.jacobian_trace
        assert record.predicted_entropy_fraction == pytest.approx(row.entropy / log(tokens))


def test_what_is_not_finite_is_none():
    record = head([[inf, 0.0]])
    assert (record.entropy.mean, record.logit_std, record.max_logit) == (None, None, None)
