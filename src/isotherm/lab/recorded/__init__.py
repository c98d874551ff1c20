"""Larger training runs kept with the package: sweeps made once on a GPU, to stand beside what is trained here and now.

There may be none. Each is a `SweepRecord` in this folder, with every trial and its outcome; `given` reads one that
somebody else made.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from math import log
from pathlib import Path

from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.record.files import checked, parse_json, read_bytes
from isotherm.record.sweep import SWEEP_SCHEMA, SweepRecord, Trial, TrialOutcome

SHOWN_IN = ("additive-wins-at-large-d", "scaling-restores-it")
"""The claims that show recorded runs beside their own."""
OTHER = Text(
    "not a sweep's record; isotherm sweep writes one, sweep.json",
    "不是 isotherm sweep 的记录（它写出的文件是 sweep.json）",
)
NO_SCORES = Text(
    "no recurrent model in this sweep, so there are no scores to compare", "该记录中没有循环模型，因而没有打分可比"
)
CROWDED = Text(
    "this sweep varies more than task, score, d_k, initialisation, learning rate and seed: no one curve over d_k",
    "该记录中变化的不只是任务、打分、d_k、初始化、学习率与种子：画不成一条随 d_k 的曲线",
)


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
    folder = files(__name__) if folder is None else folder
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".json"):
            plain = parse_json(path.name, path.read_bytes())
            if isinstance(plain, dict) and plain.get("schema") == SWEEP_SCHEMA:
                yield checked(SweepRecord, path.name, plain)


def given(path: Path) -> SweepRecord:
    """The sweep in a file, if the claims can show it; an `InputError` says why they cannot."""
    plain = parse_json(path, read_bytes(path))
    if not isinstance(plain, dict) or plain.get("schema") != SWEEP_SCHEMA:
        raise InputError(path, OTHER)
    sweep = checked(SweepRecord, path, plain)
    trials = [one.trial for one in tuned(sweep.outcomes) if one.trial.model == "recurrent"]
    if not trials:
        raise InputError(path, NO_SCORES)
    if len(trials) > len({(trial.task, trial.rule, trial.d, trial.init) for trial in trials}):
        raise InputError(path, CROWDED)
    return sweep


def loss_of(outcome: TrialOutcome) -> float:
    """The held-out loss; a run that diverged has learned nothing, and counts as guessing."""
    return log(outcome.trial.vocabulary) if outcome.held_out is None else outcome.held_out


def tuned(outcomes: Sequence[TrialOutcome]) -> list[Tuned]:
    """Group outcomes that differ only in seed and learning rate, and keep the best learning rate of each group."""
    found: dict[Trial, dict[float, list[TrialOutcome]]] = {}
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
