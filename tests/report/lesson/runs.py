"""Small runs by hand, as `isotherm export --json` writes them, whole and broken."""

from typing import Any

from isotherm.record import to_plain
from isotherm.record.watch import STATISTICS
from tests.report.lesson.reports import ATTACK

STEPS = (0, 50, 100)
HEADS = 3


def exported() -> Any:
    """A run of two layers with one and two heads, whose last head gets hot; its second reading misses the first layer."""
    logits = ((1.0, 2.0, 3.0), (None, 20.0, 30.0), (10.0, 200.0, 300.0))
    readings = [
        {
            "step": step, "at": 1.7e9, "loss": loss, "rows": None, "seconds": None,
            "values": {name: values if name == "max_logit" else [0.5, 0.25, 0.75] for name in STATISTICS},
            "gradients": {"q": [0.1, 0.1], "k": [0.1, None]},
        }
        for step, loss, values in zip(STEPS, (3.0, None, 1.0), map(list, logits), strict=True)
    ]  # fmt: skip
    event = {
        "step": 100, "at": 1.7e9, "kind": "alert", "rule": "max-logit-100", "layer": 1, "head": 1,
        "message": {"en": "layer 1 is hot", "zh": "第 1 层过热"}, "numbers": {"limit": 100.0},
    }  # fmt: skip
    return {
        "schema": "isotherm.watch/1", "model": "my-run", "every": 50, "rows": None, "created": 1.7e9,
        "versions": to_plain({"torch": "2"}), "superseded": 0, "readings": readings, "events": [event],
        "layers": [{"number": 0, "name": "one", "heads": 1}, {"number": 1, "name": "two", "heads": 2}],
    }  # fmt: skip


def broken(path: str, value: Any) -> Any:
    """The run with one value replaced: `readings.0.values.gate`."""
    run = exported()
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = run
    for part in way:
        place = place[part]
    place[last] = value
    return run


__all__ = ["ATTACK", "broken", "exported"]
