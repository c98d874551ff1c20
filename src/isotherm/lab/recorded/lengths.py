"""The length study kept with the package: a small GPT trained at one length and asked at longer ones, under several scales.

It was run once on a GPU by `benchmarks/length_study.py`. What is kept is its table: means over seeds, with 95 % intervals.
"""

from dataclasses import dataclass
from importlib.resources import files

from isotherm.record.files import checked, parse_json

FILE = "length-study.json"
Spread = tuple[float, float]
"""A mean over seeds, and the half width of its 95 % interval."""


@dataclass(frozen=True)
class AtContext:
    """Held-out loss in nats a byte with a context of so many bytes: under the constant scale, and the `changes` from it by
    rule. `factors` are the tuned ones, by seed."""

    length: int
    constant: Spread
    changes: dict[str, Spread]
    factors: tuple[float, ...]

    def under(self, rule: str) -> Spread:
        """The loss under a rule, and how sure its change from the constant scale's is."""
        change, margin = self.changes[rule]
        return self.constant[0] + change, margin


@dataclass(frozen=True)
class LengthStudy:
    """The whole study. `kept` says what of it is here, `table` where it is told."""

    schema: str
    script: str
    table: str
    kept: str
    device: str
    torch: str
    precision: str
    layers: int
    width: int
    trained: int
    seeds: int
    rows: tuple[AtContext, ...]

    def regained(self, rule: str, row: AtContext) -> tuple[float, float, float]:
        """The share of what the constant scale loses from the trained length to this row that a rule regains, with its 95 %
        interval, which is that of the change alone."""
        lost = row.constant[0] - self.rows[0].constant[0]
        change, margin = row.changes[rule]
        return -change / lost, -(change + margin) / lost, -(change - margin) / lost


def length_study() -> LengthStudy:
    """The study that is kept."""
    return checked(LengthStudy, FILE, parse_json(FILE, (files(__package__) / FILE).read_bytes()))
