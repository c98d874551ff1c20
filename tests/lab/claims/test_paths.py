"""How far information has to go, and what has to wait."""

import pytest
import torch

from isotherm import ops, scale
from isotherm.lab.claims.constant_path.experiment import CLAIM as PATH
from isotherm.lab.claims.parallel import experiment as parallel
from isotherm.lab.claims.parallel.experiment import CLAIM as PARALLEL

from .running import multiplies_by, run, value_of

NEAR = {"lengths": (8, 32, 125, 400), "dimension": 16, "seeds": 5}
SMALL = {"lengths": (5, 11, 23), "dimension": 5, "seeds": 3, "timed": (7, 13), "repeats": 1}


def test_the_path_is_one_step_and_reproduces():
    record = run(PATH, **NEAR)
    assert record.verdict == PATH.expected
    assert run(PATH, **NEAR) == record
    assert value_of(record, "cells one after another between positions 1 and 400: GRU") == pytest.approx(400)
    assert value_of(record, "power of n in attention's gradient") == pytest.approx(-1, abs=0.35)


def test_a_frozen_softmax_lets_no_gradient_along_the_path(monkeypatch):
    monkeypatch.setattr(scale.InverseSqrt, "resolve", multiplies_by(1000.0))
    assert run(PATH, **NEAR).verdict == "refuted"


def test_what_waits_is_counted_and_reproduces():
    record = run(PARALLEL, **SMALL)
    assert record.verdict == PARALLEL.expected
    assert run(PARALLEL, **SMALL) == record
    assert value_of(record, "more operations in sequence for each position: GRU") == 10 + 3  # a sum over 5: 3 rounds


def test_a_sum_over_the_keys_takes_log_n_rounds_in_attention_as_in_a_scan():
    record = run(PARALLEL, **SMALL | {"lengths": (8, 16, 32)})
    assert value_of(record, "more operations in sequence for each doubling of n: attention, training") == 1
    assert 1 <= value_of(record, "more operations in sequence for each doubling of n: linear recurrence") <= 4


def test_attention_that_goes_through_its_keys_one_by_one_refutes_it(monkeypatch):
    whole = ops.attention

    def one_by_one(q, k, v, **options):
        result = whole(q, k, v, **options)
        output = result.output
        for _ in range(k.shape[2]):
            output = output * 1.0
        return result._replace(output=output)

    monkeypatch.setattr(ops, "attention", one_by_one)
    assert run(PARALLEL, **SMALL).verdict == "refuted"


@pytest.mark.parametrize("n", [1, 2, 7, 16, 31])
def test_a_scan_is_the_loop(n):
    generator = torch.Generator().manual_seed(n)
    decay, x = torch.rand(2, 3, n, 5, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(parallel.scan(decay, x), parallel.loop(decay, x), atol=1e-14, rtol=1e-13)


def test_a_wrong_scan_would_show(monkeypatch):
    monkeypatch.setattr(parallel, "scan", lambda decay, x: x.cumsum(1))
    record = run(PARALLEL, **SMALL)
    assert record.verdict == "confirmed"  # without a scan that is right, no recurrence is known to train in parallel
