"""One configuration under several scale rules: same weights to start from, same batches, same learning rate."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isotherm.errors import ArgumentError, IsothermError, named
from isotherm.language import Text, current
from isotherm.record import Figure, Line
from isotherm.report.draw import svg
from isotherm.report.files import write_atomically
from isotherm.scale import parse
from isotherm.train.config import Config, ModelSettings
from isotherm.train.loop import TrainingEnd, train
from isotherm.train.processes import join
from isotherm.train.run_folder import RunFolder

LOSS = Text("held-out loss (nats per token)", "留出损失（奈特/词元）")
TITLE = Text("Learning under each scale rule", "各缩放规则下的学习")
STEP = Text("step", "步数")
Curve = Sequence[tuple[int, float]]
"""Points (step, loss), by step."""


@dataclass(frozen=True)
class Contestant:
    """A rule and what came of training under it."""

    rule: str
    folder: Path
    curve: Curve
    result: dict[str, Any]


@dataclass(frozen=True)
class RuleComparison:
    """All contestants, or the run a signal stopped before there was anything to compare."""

    contestants: tuple[Contestant, ...]
    stopped: TrainingEnd | None


def compare(config: Config, rules: Sequence[str], path: Path, *, resume: bool = False) -> RuleComparison:
    """Train under each rule in a folder of its own; the picture of all curves goes beside them."""
    with named(**{"model.rule": "--rules"}):
        configs = [replace(config, model=replace(config.model, rule=rule)) for rule in rules]
    names = [slug(one.model) for one in configs]
    if len(set(names)) < max(2, len(names)):
        raise ArgumentError("--rules", Text("two or more different rules", "两条以上不同的规则"), got=", ".join(rules))
    processes = join(config.run.device)
    with processes.together():  # what the last one would refuse is refused before the first is trained
        for name, one in zip(names, configs, strict=True) if processes.first else ():
            RunFolder(path / name).admit(one, resume=resume)
    found: list[Contestant] = []
    for rule, name, one in zip(rules, names, configs, strict=True):
        outcome = train(one, path / name, resume=resume, title=rule)
        if outcome.stopped is not None:
            return RuleComparison(tuple(found), outcome)
        found.append(Contestant(rule, path / name, curve(path / name), dict(outcome.result)))
    drawn = svg.sheet([figure({one.rule: one.curve for one in found})], TITLE, current())
    write_atomically(path / "curves.svg", f"{drawn}\n")
    return RuleComparison(tuple(found), None)


def curve(path: Path) -> Curve:
    """A run's held-out loss over its steps."""
    points = tuple((line["step"], line["loss"]) for line in RunFolder(path).measured() if line["kind"] == "held_out")
    if not points:
        raise IsothermError(Text("{path}: nothing was measured yet", "{path}：尚无评测").format(path=path))
    return points


def figure(curves: Mapping[str, Curve]) -> Figure:
    """The curves, by name, over one pair of axes."""
    lines = tuple(
        Line(Text(name, name), tuple(float(step) for step, _ in points), tuple(loss for _, loss in points))
        for name, points in curves.items()
    )
    return Figure("curves", TITLE, STEP, LOSS, lines)


def slug(model: ModelSettings) -> str:
    """A model's rule as a folder's name.

    >>> slug(ModelSettings()), slug(ModelSettings(rule="qk-norm * 1/d")), slug(ModelSettings(kind="recurrent", rule="dot"))
    ('1-sqrt-d', 'qk-norm-1-d', 'dot')
    """
    rule = model.rule if model.kind == "recurrent" else str(parse(model.rule))
    return re.sub(r"[^A-Za-z0-9.]+", "-", rule).strip("-")
