"""Larger training runs kept with the package: sweeps made once on a GPU, to stand beside what is trained here and now.

There may be none. Each is a `SweepRecord` in `lab/recorded/`, with every trial and its outcome.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from math import log

from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.record import from_plain
from isotherm.record.sweep import SWEEP_SCHEMA, Outcome, SweepRecord, Trial


@dataclass(frozen=True)
class Tuned:
    """All seeds of one setting at the learning rate that suited it best: held-out losses by seed, in nats a token.

    `rates` is how many learning rates were tried.
    """

    trial: Trial
    losses: dict[int, float]
    diverged: int
    rates: int


def sweeps(folder: Traversable | None = None) -> Iterator[SweepRecord]:
    """Every sweep in the folder, in the order of their names; an `InputError` names one that cannot be read."""
    folder = files("isotherm.lab") / "recorded" if folder is None else folder
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".json"):
            try:
                plain = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise InputError(path.name, Text("not JSON ({why})", "不是 JSON（{why}）").format(why=error)) from None
            if isinstance(plain, dict) and plain.get("schema") == SWEEP_SCHEMA:
                yield from_plain(SweepRecord, plain, where=path.name)


def loss_of(outcome: Outcome) -> float:
    """The held-out loss; a run that diverged has learned nothing, and counts as guessing."""
    return log(outcome.trial.vocabulary) if outcome.held_out is None else outcome.held_out


def tuned(outcomes: Sequence[Outcome]) -> list[Tuned]:
    """Outcomes that differ in seed and learning rate alone, brought together: each setting at its best learning rate."""
    found: dict[Trial, dict[float, list[Outcome]]] = {}
    for outcome in outcomes:
        setting = replace(outcome.trial, seed=0, lr=1.0)
        found.setdefault(setting, {}).setdefault(outcome.trial.lr, []).append(outcome)
    best = []
    for setting, by_rate in found.items():
        rate = min(by_rate, key=lambda lr: sum(map(loss_of, by_rate[lr])) / len(by_rate[lr]))
        losses = {outcome.trial.seed: loss_of(outcome) for outcome in by_rate[rate]}
        diverged = sum(outcome.diverged for outcome in by_rate[rate])
        best.append(Tuned(replace(setting, lr=rate), losses, diverged, len(by_rate)))
    return best
