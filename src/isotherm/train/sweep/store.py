"""Outcomes on disk, one file a trial: what is there need not be trained again.

A file appears whole or not at all, so a sweep may be stopped at any moment. One that cannot be read, or belongs to
another trial or another precision, counts as not there, and is written anew.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text
from isotherm.record import from_plain, to_plain
from isotherm.record.sweep import Outcome, Trial
from isotherm.report.files import write_atomically

OUTCOMES = "trials"


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

    def put(self, outcomes: Sequence[Outcome]) -> None:
        """Keep some outcomes."""
        for outcome in outcomes:
            write_atomically(self.path(outcome.trial), json.dumps(to_plain(outcome), ensure_ascii=False))

    def get(self, trial: Trial) -> Outcome | None:
        """The outcome of a trial, if a whole one is there."""
        try:
            found = from_plain(Outcome, json.loads(self.path(trial).read_text(encoding="utf-8")), where="outcome")
        except (OSError, ValueError, ArgumentError):
            return None
        return found if found.trial == trial and found.precision == self.precision else None
