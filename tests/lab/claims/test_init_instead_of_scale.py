import pytest

from isotherm import scale
from isotherm.lab.claims.init_instead_of_scale.experiment import CLAIM, FORMS, factor

from .running import multiplies_by, run

SMALL = {"dimension": 27, "width": 12, "keys": 7, "batch": 16, "steps": 30, "seeds": 4}


def test_it_is_the_same_at_the_start_only_and_reproduces():
    record = run(CLAIM, **SMALL)
    assert record.verdict == CLAIM.expected
    assert run(CLAIM, **SMALL) == record
    for number in record.measured:
        if number.name.en.startswith("first step"):
            assert number.value == pytest.approx(number.predicted, rel=1e-9)
        if "corrected" in number.name.en:
            assert number.value < 1e-9


def test_another_scale_is_not_the_same_even_at_the_start(monkeypatch):
    monkeypatch.setattr(scale.InverseSqrt, "resolve", multiplies_by(1 / 27))
    assert run(CLAIM, **SMALL).verdict == "refuted"


def test_what_a_smaller_weight_is_worth():
    assert factor(FORMS["query"], "sgd", "query", 64) == 64
    assert factor(FORMS["query"], "adam", "query", 64) == 8
    assert factor(FORMS["query"], "sgd", "key", 64) == 1
    assert factor(FORMS["both"], "adam", "key", 16) == 2
