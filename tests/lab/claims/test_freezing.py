"""The phase diagram."""

from math import log

import pytest

from isotherm import scale, theory
from isotherm.lab.claims.freezing import experiment as freezing

from .running import multiplies_by, run, value_of

SMALL = {
    "dimensions": (2, 8, 32, 128, 512, 2048, 4096),
    "lengths": (2, 64, 256, 16384),
    "rows": {2: 256, 64: 256, 256: 256, 16384: 32},
    "shown": 256,
    "closing_rows": 1024,
    "real_dimensions": (2, 128),
    "real_lengths": (64,),
    "queries": 32,
    "seeds": 6,
}


def test_the_verdict_is_the_one_on_record_and_repeats():
    record = run(freezing.CLAIM, **SMALL)
    assert record.verdict == freezing.CLAIM.expected
    assert run(freezing.CLAIM, **SMALL) == record
    assert [number.holds for number in record.measured[:4]] == [False, False, False, True]
    gate = record.heatmaps[0]
    assert gate.boundary is not None
    assert gate.boundary.x == pytest.approx([2 * log(n) for n in (64, 256, 16384)])
    assert (len(gate.values), len(gate.values[0])) == (4, 7)
    assert len(record.heatmaps) == 8


def test_at_finite_n_the_gate_closes_gradually():
    record = run(freezing.CLAIM, **SMALL)
    begins, at_64, at_128 = (value_of(record, f"mean gate without a scale, n = 256, d = {d}") for d in (11, 64, 128))
    assert begins > 0.6
    assert 0.2 < at_128 < at_64 < 0.5
    assert value_of(record, "power of d in the mean gate") == pytest.approx(-0.5, abs=0.1)
    assert "begins to close" in record.sentence.en


@pytest.mark.parametrize(
    ("rule", "number"),
    [(scale.InverseSqrt, 1.0), (scale.MuP, 1.0), (scale.NoScale, 0.01)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_broken_rule_changes_the_verdict(rule, number, monkeypatch):
    monkeypatch.setattr(rule, "resolve", multiplies_by(number))
    assert run(freezing.CLAIM, **SMALL).verdict == "refuted"


def test_a_wrong_prediction_is_found_out(monkeypatch):
    exact = theory.gaussian_row
    monkeypatch.setattr(theory, "gaussian_row", lambda n, sigma: exact(n, 1.3 * sigma))
    assert run(freezing.CLAIM, **SMALL).verdict == "refuted"
