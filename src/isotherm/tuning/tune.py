"""The tuning of a model: search at each length → laws over length → temperature gradient → steps along it → record."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import exp, log
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from isotherm.checkup.batch import place
from isotherm.checkup.implementations import taking_turns
from isotherm.checkup.loading.loaded import Loaded, Progress, nobody
from isotherm.checkup.measure import look
from isotherm.errors import ArgumentError, InputError, IsothermError
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.record.plain import finite
from isotherm.record.tune import (
    TUNE_SCHEMA,
    TemperatureGradient,
    TunedFactor,
    TunedLaw,
    TunedLength,
    TunePoint,
    TuneRecord,
    TuneStep,
)
from isotherm.record.versions import versions
from isotherm.student import mean_interval
from isotherm.tuning import laws
from isotherm.tuning.documents import Material
from isotherm.tuning.estimate import Losses, enclosed, optimum, spread
from isotherm.tuning.gaps import critical_of
from isotherm.tuning.gradient import Slopes, slopes
from isotherm.tuning.knobs import Knobs
from isotherm.tuning.losses import Task, TaskName, make_task, task_of
from isotherm.tuning.search import MOST

Floats = NDArray[np.float64]
Per = Literal["layer", "head"]
STEPS = 6
"""Steps along the temperature gradient, at most."""
CANNOT_READ = Text("cannot be run on {length} tokens ({why})", "无法处理 {length} 个词元（{why}）")
NOT_FINITE = Text("its loss on {length} tokens is not a number", "在 {length} 个词元上的损失不是数")
NO_LAYER = Text("names or indices of layers ({names})", "层的名称或序号（{names}）")


@dataclass(frozen=True)
class TuneSettings:
    """How to tune: which task, at most how many documents a length, whether only the `last` tokens of each count, whether only
    some layers (names or indices) are tuned, and whether each layer or head gets a factor of its own."""

    task: TaskName = "auto"
    documents: int = 32
    last: int | None = None
    layers: tuple[str, ...] = ()
    per: Per | None = None
    evaluations: int = MOST


def tuned(
    loaded: Loaded, material: Material, lengths: tuple[int, ...], settings: TuneSettings, told: Progress = nobody
) -> TuneRecord:
    """Tune a model that stays as it is: the factors are put on it only while its losses are measured."""
    started = time.perf_counter()
    name = task_of(loaded.model, settings.task)
    tasks = [make_task(loaded, material, name, n, settings.documents, settings.last) for n in sorted(set(lengths))]
    run = TuneRun(loaded, settings, told, len(tasks))
    with taking_turns(loaded.model):
        found = tuple(reversed([run.length(task) for task in reversed(tasks)]))  # a length too long is told at once
        gradient, steps = run.along(tasks[0])
    known = [one for one in found if one.best.enclosed]  # an open interval says nothing of its own width
    sizes, bests = [one.length for one in known], [one.best for one in known]
    sigmas = [spread(log(best.low), log(best.high)) for best in bests]
    fits = laws.fit(sizes, [log(best.factor) for best in bests], sigmas)
    device, dtype = place(loaded.model)
    return TuneRecord(
        TUNE_SCHEMA,
        datetime.now(UTC).isoformat(timespec="seconds"),
        loaded.name,
        loaded.origin,
        material.name,
        name,
        run.layers,
        found,
        tuple(_law(fit, sizes, [one.length for one in found]) for fit in fits),
        laws.any_fits(fits, len(known)) if fits else None,
        gradient,
        steps,
        run.evaluations,
        time.perf_counter() - started,
        str(device),
        str(dtype).removeprefix("torch."),
        versions("torch", "transformers"),
    )


def gradient_of(loaded: Loaded, material: Material, length: int, told: Progress = nobody) -> TemperatureGradient:
    """The temperature gradient alone, on documents of this length."""
    settings = TuneSettings()
    task = make_task(loaded, material, task_of(loaded.model, "auto"), length, settings.documents, None)
    with taking_turns(loaded.model):
        return TuneRun(loaded, settings, told, 0).along(task)[0]


class TuneRun:
    """One run: it holds the settings, counts evaluations and tells how far it is."""

    def __init__(self, loaded: Loaded, settings: TuneSettings, told: Progress, lengths: int) -> None:
        self.loaded, self.settings, self.told = loaded, settings, told
        self.evaluations, self.layers = 0, tuple[str, ...]()
        more = STEPS * (settings.evaluations + 3) if settings.per else 0
        self._expected = lengths * settings.evaluations + 3 + more
        if loaded.model.training:
            raise ArgumentError("model", Text("a model in eval mode", "处于 eval 模式的模型"), got="train")

    def length(self, task: Task) -> TunedLength:
        """The best factor for all layers together at one length."""
        with self._running(task):
            with torch.no_grad():
                captures = look(self.loaded.model, task.batch(self.loaded.model)).captures
            with self._knobs(task, captures) as knobs:
                losses = enclosed(partial(self._measure, task, knobs), self.settings.evaluations)
            critical, within, freezing = critical_of(captures)
        points = tuple(_point(losses, x) for x in sorted(losses))
        loss, best = float(losses[0.0].mean()), _best(losses)
        return TunedLength(task.length, task.count, task.scored, loss, points, best, critical, within, freezing)

    def along(self, task: Task) -> tuple[TemperatureGradient, tuple[TuneStep, ...]]:
        """The temperature gradient of the model as it is, and the steps along it that were asked for."""
        with self._running(task):
            with torch.no_grad():
                captures = look(self.loaded.model, task.batch(self.loaded.model)).captures
            with self._knobs(task, captures) as knobs:
                first = self._slopes(task, knobs)
                return first.record(task), tuple(self._steps(task, knobs, first))

    def _steps(self, task: Task, knobs: Knobs, now: Slopes) -> Iterator[TuneStep]:
        """Again and again, the layer or head with the steepest slope beyond noise is turned to its best factor."""
        done = set[tuple[str, int | None]]()
        for _ in range(STEPS if self.settings.per else 0):
            known = now.by_layer() if self.settings.per == "layer" else now.by_head()
            steep = {at: mean for at, (mean, margin) in known.items() if abs(mean) > margin and at not in done}
            if not steep:
                return
            name, head = max(steep, key=lambda at: abs(steep[at]))
            losses = enclosed(partial(self._measure, task, knobs, name=name, head=head), self.settings.evaluations)
            best = _best(losses)
            done.add((name, head))
            knobs.turn(log(best.factor) if best.worth else 0.0, name, head)
            yield TuneStep(name, head, steep[name, head], best, best.loss if best.worth else float(losses[0.0].mean()))
            now = self._slopes(task, knobs) if best.worth else now

    def _slopes(self, task: Task, knobs: Knobs) -> Slopes:
        self._tell(Text("temperature gradient", "温度梯度"))
        found = slopes(self.loaded.model, knobs, task)
        self.evaluations += 3  # about what a forward and a backward pass cost
        return found

    def _measure(self, task: Task, knobs: Knobs, x: float, name: str | None = None, head: int | None = None) -> Floats:
        where = f" · {name}" if name else ""
        doing = Text("{length} tokens{where}, factor {factor:.3g}", "{length} 词元{where}，倍数 {factor:.3g}")
        self._tell(doing.format(length=f"{task.length:,}", where=where, factor=exp(x)))
        knobs.turn(x, name, head)
        with torch.no_grad():
            losses = torch.cat([task.losses(self.loaded.model, group).double().cpu() for group in task.groups]).numpy()
        self.evaluations += 1
        if x == 0 and not np.isfinite(losses).all():
            raise InputError(self.loaded.name, NOT_FINITE.format(length=f"{task.length:,}"))
        return losses

    def _tell(self, doing: Text) -> None:
        self.told(doing, min(self.evaluations / self._expected, 0.99))

    def _knobs(self, task: Task, captures: Sequence[Capture]) -> Knobs:
        names = list(dict.fromkeys(capture.name for capture in captures))
        chosen = []
        for wanted in self.settings.layers:
            found = [name for index, name in enumerate(names) if wanted in (name, str(index))]
            if not found:
                listed = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
                raise ArgumentError("layers", NO_LAYER.format(names=listed or "-"), got=repr(wanted))
            chosen += found
        knobs = Knobs(self.loaded.model, captures, task.batch(self.loaded.model), chosen)
        self.layers = tuple(knobs.names)
        return knobs

    @contextmanager
    def _running(self, task: Task) -> Iterator[None]:
        """A model that cannot read so many tokens fails in a way of its own; what it said is put into one sentence."""
        try:
            yield
        except IsothermError:
            raise
        except (RuntimeError, IndexError, ValueError, TypeError, AssertionError) as error:
            said = " ".join(str(error).split())[:160] or type(error).__name__
            why = CANNOT_READ.format(length=f"{task.length:,}", why=said)
            raise InputError(self.loaded.name, why) from error


def _point(losses: Losses, x: float) -> TunePoint:
    change, low, high = mean_interval(losses[x] - losses[0.0])
    return TunePoint(exp(x), float(losses[x].mean()), change, finite(low), finite(high))


def _best(losses: Losses) -> TunedFactor:
    found = optimum(losses)
    return TunedFactor(
        exp(found.x),
        exp(found.low),
        exp(found.high),
        found.loss,
        found.gain,
        finite(found.gain_low),
        finite(found.gain_high),
        worth=found.gain_low > 0,
        enclosed=found.enclosed,
    )


def _law(fit: laws.Fit, fitted: Sequence[int], lengths: Sequence[int]) -> TunedLaw:
    law, first = fit.law, min(fitted)
    factors = tuple(fit.constant * law.shape(n, first) for n in lengths)
    formula = law.formula.replace("{first}", str(first))
    return TunedLaw(law.name, formula, fit.constant, fit.chi_squared, len(fitted) - 1, fit.supported, factors)
