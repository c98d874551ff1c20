"""How the tests run a claim: with its quick parameters, some of them smaller."""

import json
from typing import Any
from xml.etree import ElementTree

from isotherm.lab.claim import Claim, Setting
from isotherm.record import ClaimRecord, from_plain, to_plain
from isotherm.scale import Resolved


def run(claim: Claim, **changes: Any) -> ClaimRecord:
    """The claim's record, having gone through JSON as a user's does."""
    assert set(changes) <= set(claim.quick)
    told: list[float] = []
    setting = Setting({**claim.quick, **changes}, claim.seed, progress=told.append)
    record = claim.record(setting, claim.experiment(setting))
    assert all(0 <= part <= 1.0000001 for part in told)
    again = from_plain(ClaimRecord, json.loads(json.dumps(to_plain(record), allow_nan=False)), where=claim.id)
    assert again == record
    check_form(claim, record)
    return record


def check_form(claim: Claim, record: ClaimRecord) -> None:
    """What every record must have, whatever it found."""
    assert set(claim.full) <= set(claim.quick)
    assert (record.condition is not None) == (record.verdict == "conditional")
    assert any(number.holds is not None for number in record.measured)
    assert record.verdict != "confirmed" or any(number.holds for number in record.measured)
    for number in record.measured:
        assert number.low is None or number.high is None or number.low <= number.value <= number.high, number
    shown = [figure.id for figure in record.figures] + [heatmap.id for heatmap in record.heatmaps]
    assert shown
    assert len(set(shown)) == len(shown)
    for figure in record.figures:
        for line in figure.lines:
            assert len(line.x) == len(line.y) > 1
    for step in claim.steps:
        if step.math:
            ElementTree.fromstring(f"<math>{step.math}</math>")


def multiplies_by(number: float):
    """A `resolve` that is wrong: it answers with this number whatever it is asked."""
    return lambda self, site: Resolved(multiplier=number)


def value_of(record: ClaimRecord, start: str) -> float:
    """The one number whose English name starts so."""
    (found,) = [number.value for number in record.measured if number.name.en.startswith(start)]
    return found
