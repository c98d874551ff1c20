"""Additive scores: their spread, and their cost."""

from math import sqrt

import pytest
import torch

from isotherm import ops, scale
from isotherm.lab.claim import Setting
from isotherm.lab.claims.additive_needs_no_scale.experiment import CLAIM as SPREAD
from isotherm.lab.claims.additive_needs_no_scale.experiment import hidden_spread
from isotherm.lab.claims.additive_versus_dot_cost.experiment import CLAIM as COST
from isotherm.scale import Resolved

from .running import run, value_of

FEW = {"dimensions": (16, 64, 256), "seeds": 12}
SMALL = {"lengths": (7, 13), "dimensions": (5, 11, 19), "timed_length": 13, "timed_dimension": 5, "repeats": 1}


def test_spread_depends_on_v_and_reproduces():
    record = run(SPREAD, **FEW)
    assert record.verdict == SPREAD.expected
    assert run(SPREAD, **FEW) == record
    assert value_of(record, "power of d_k in the logit spread: v with unit variance") == pytest.approx(0.5, abs=0.08)
    for number in record.measured:
        if number.predicted is not None and "at d_k = 256" in number.name.en:
            assert number.value == pytest.approx(number.predicted, rel=0.1)


def test_a_score_that_divides_by_the_root_refutes_it(monkeypatch):
    plain = ops.Additive.logits
    monkeypatch.setattr(ops.Additive, "logits", lambda self, s, h: plain(self, s, h) / sqrt(self.out.in_features))
    assert run(SPREAD, **FEW).verdict == "refuted"


def test_one_hidden_unit_spreads_as_drawn():
    draws = torch.randn(2, 400, 2000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    a, b = draws[0, :, :1], draws[1]
    assert hidden_spread() == pytest.approx(torch.tanh(a + b).var(1).mean().sqrt().item(), rel=0.02)


def test_cost_is_counted_and_reproduces():
    record = run(COST, **SMALL)
    assert record.verdict == COST.expected
    assert run(COST, **SMALL) == record
    assert value_of(record, "at n = 13, d_k = 19: tanh evaluations, additive") == 13 * 13 * 19
    assert value_of(record, "at n = 13, d_k = 19: multiply-adds, dot") == 2 * 13 * 19 * 19 + 2 * 13 * 13 * 19


def test_times_stay_out_of_the_record():
    result = COST.experiment(Setting({**COST.quick, **SMALL}))
    assert len(result.timings) == 3 * 4  # three ways at (13, 5), (13, 11), (13, 19) and (7, 5)
    assert {figure.id for figure in result.timing_figures} == {"cost-time-d", "cost-time-n"}
    assert not any("time" in figure.id for figure in result.figures)


def test_a_dot_product_with_a_tanh_in_it_refutes_it(monkeypatch):
    monkeypatch.setattr(scale.NoScale, "resolve", lambda self, site: Resolved(softcap=30.0))
    assert run(COST, **SMALL).verdict == "refuted"
