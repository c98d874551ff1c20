from math import log, sqrt

import pytest

from isotherm import scale
from isotherm.lab.claims.entropy_invariance.experiment import CLAIM, balanced_spread, entropy_of, level_spread

from .running import multiplies_by, run

SMALL = {"lengths": (64, 512, 2048, 16384), "dimension": 16, "rows": 256, "seeds": 4, "spreads": (1.0, 5.0)}


def test_a_log_n_factor_is_steady_for_one_spread_and_reproduces():
    record = run(CLAIM, **SMALL)
    assert record.verdict == CLAIM.expected
    assert run(CLAIM, **SMALL) == record
    for number in record.measured:
        assert number.value == pytest.approx(number.predicted, abs=0.12)


def test_a_factor_that_does_nothing_refutes_it(monkeypatch):
    monkeypatch.setattr(scale.LogN, "resolve", multiplies_by(1.0))
    assert run(CLAIM, **SMALL).verdict == "refuted"


def test_the_level_spread_has_that_entropy_and_its_limit_far_below_freezing():
    assert entropy_of(4096, level_spread(4096, 6.0)) == pytest.approx(6.0, abs=1e-4)
    assert level_spread(65536, 10.5) == pytest.approx(sqrt(2 * (log(65536) - 10.5)), rel=1e-2)


def test_the_balanced_spread_leaves_the_entropy_where_it_was():
    spread = balanced_spread(512, 16384)
    factor = log(16384) / log(512)
    assert entropy_of(16384, spread * factor) == pytest.approx(entropy_of(512, spread), rel=1e-5)
