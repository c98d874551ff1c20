"""Outcomes on disk, one file a trial: what is there need not be trained again.

A file appears whole or not at all, so a sweep may be stopped at any moment. One that cannot be read, or belongs to
another trial, counts as not there and is written again. One that was edited, or computed in another precision, is refused.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text
from isotherm.record import from_plain, to_plain
from isotherm.record.files import parse_json, read_bytes, sealed, unsealed
from isotherm.record.sweep import Trial, TrialOutcome
from isotherm.report.files import write_atomically

OUTCOMES = "trials"
OTHERWISE = Text(
    "holds these trials in {precision}; go on with --precision {precision}, or take another --store",
    "其中已有以 {precision} 计算的这些训练；请用 --precision {precision} 继续，或另选 --store",
)


class Store:
    """A folder of outcomes."""

    def __init__(self, folder: str | Path, precision: str) -> None:
        self.folder, self.precision = Path(folder), precision
        try:
            (self.folder / OUTCOMES).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = Text("no folder can be made here ({why})", "无法在此建立文件夹（{why}）")
            raise InputError(folder, why.format(why=error.strerror)) from None

    def path(self, trial: Trial) -> Path:
        """Where a trial's outcome lies."""
        return self.folder / OUTCOMES / f"{trial.key()}.json"

    def put(self, outcomes: Sequence[TrialOutcome]) -> None:
        """Keep some outcomes."""
        for outcome in outcomes:
            plain = sealed(to_plain(outcome))
            write_atomically(self.path(outcome.trial), json.dumps(plain, ensure_ascii=False))

    def get(self, trial: Trial) -> TrialOutcome | None:
        """The outcome of a trial, if a whole one is there; an `InputError` if it was edited, or is of another precision."""
        path = self.path(trial)
        try:
            plain = parse_json(path, read_bytes(path))
        except InputError:
            return None
        plain = unsealed(path, plain)
        try:
            found = from_plain(TrialOutcome, plain)
        except ArgumentError:
            return None
        if found.trial != trial:
            return None
        if found.precision != self.precision:
            raise InputError(self.folder, OTHERWISE.format(precision=found.precision))
        return found
