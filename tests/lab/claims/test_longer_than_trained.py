"""Whether log n keeps a model good beyond its training length, and the recorded study of it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm import scale
from isotherm.lab.claims.longer_than_trained import experiment as longer
from isotherm.lab.claims.longer_than_trained.experiment import CLAIM
from isotherm.lab.recorded.lengths import LengthStudy, length_study

from .running import multiplies_by, run, value_of

SMALL = {"lengths": (16, 256), "seeds": 4}
TABLE = Path(__file__).parents[3] / "docs" / "notes" / "tuning.md"


def test_it_holds_where_only_the_number_of_keys_changes_and_reproduces():
    record = run(CLAIM, **SMALL)
    assert record.verdict == CLAIM.expected == "conditional"
    assert run(CLAIM, **SMALL) == record
    (odds,) = [number for number in record.measured if number.name.en.startswith("odds")]
    assert odds.predicted == pytest.approx(17)
    assert odds.low < odds.predicted < odds.high
    assert value_of(record, "share of the lost loss that log n regains, noisy query") < 0.5
    assert [number.holds for number in record.measured if number.holds is not None] == [True, True, False, True, False]


def test_a_factor_that_does_nothing_refutes_it(monkeypatch):
    monkeypatch.setattr(scale.LogN, "resolve", multiplies_by(1.0))
    record = run(CLAIM, **SMALL)
    assert record.verdict == "refuted"
    assert value_of(record, "share of the lost loss that log n regains, keys apart") == pytest.approx(0)


def test_a_recorded_run_that_says_otherwise_refutes_it(monkeypatch):
    pairs = longer._lookup()
    monkeypatch.setattr(longer, "_lookup", lambda: [(plain, plain) for plain, _ in pairs])
    assert run(CLAIM, **SMALL).verdict == "refuted"


def test_a_study_that_regains_all_is_judged_so(monkeypatch):
    study = length_study()
    lost = [row.constant[0] - study.rows[0].constant[0] for row in study.rows]
    rows = [
        replace(row, changes={**row.changes, "log-n": (-gap, 0.1)}) for row, gap in zip(study.rows, lost, strict=True)
    ]
    monkeypatch.setattr(longer, "length_study", lambda: replace(study, rows=tuple(rows)))
    record = run(CLAIM, **SMALL)
    assert [number.holds for number in record.measured if number.holds is not None] == [True, True, False, True, True]
    assert record.verdict == "conditional"


def test_the_study_is_the_table_of_the_notes():
    """Every number of the table, in its order; the document writes a change of exactly 0 as 0."""
    (first, *rest) = [
        line for line in TABLE.read_text(encoding="utf-8").splitlines() if re.match(r"\| [\d,]{3,5}( |\b)", line)
    ]
    study = length_study()
    assert "(as trained)" in first
    for line, row in zip([first, *rest], study.rows, strict=True):
        told = [
            float(word)
            for word in re.findall(r"[+-]?\d+(?:\.\d+)?", line.replace("−", "-").replace(",", "", 1).replace("+", ""))
        ]
        assert told == numbers(row, study), line


def numbers(row, study: LengthStudy) -> list[float]:
    """A row of the table as the document writes it."""
    changes = [part for pair in row.changes.values() for part in (pair if pair != (0.0, 0.0) else pair[:1])]
    return [row.length, *row.constant, *changes, *row.factors]
