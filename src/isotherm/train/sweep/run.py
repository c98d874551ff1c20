"""Run a whole sweep: train what the store lacks, and sum everything up in one record."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import torch

from isotherm.record.sweep import SWEEP_SCHEMA, SweepRecord, TrialOutcome
from isotherm.record.versions import versions
from isotherm.train.processes import pick
from isotherm.train.sweep.analysis import analyses, cells
from isotherm.train.sweep.examples import corpora_of
from isotherm.train.sweep.group_job import Group, Job
from isotherm.train.sweep.group_training import TOGETHER
from isotherm.train.sweep.local_executor import run_here
from isotherm.train.sweep.provenance import commit
from isotherm.train.sweep.ray_executor import run_on_ray
from isotherm.train.sweep.spec import Spec
from isotherm.train.sweep.store import Store
from isotherm.train.sweep.trials import groups

RECORD = "sweep.json"
Watch = Callable[[int, int], object]
"""Told how many model steps were just taken and how many trials are done in all."""


@dataclass(frozen=True)
class How:
    """Where and how a sweep is trained. Left to None, `workers` is the number of CPUs, or 1 on a GPU."""

    device: str = "cpu"
    precision: str = "float32"
    executor: Literal["local", "ray"] = "local"
    address: str | None = None
    workers: int | None = None
    gpus: float | None = None
    together: int | None = None


def run_sweep(spec: Spec, folder: str | Path, how: How, watch: Watch = lambda _steps, _trials: None) -> SweepRecord:
    """Train what the store in `folder` lacks, and sum everything up. A sweep that was stopped goes on where it was."""
    started = time.perf_counter()
    how = replace(how, device=str(pick(how.device, argument="--device", here=how.executor == "local")))
    store = Store(folder, how.precision)
    found: dict[str, TrialOutcome] = {}
    left = _left(spec, store, how, found)
    watch(0, len(found))

    def done(outcomes: list[TrialOutcome]) -> None:
        store.put(outcomes)
        found.update({outcome.trial.key(): outcome for outcome in outcomes})
        watch(0, len(found))

    if left:
        corpora = corpora_of([trial for group in left for trial in group], spec.root)
        _train(left, Job(how.device, how.precision, corpora=corpora), how, done, lambda steps: watch(steps, len(found)))
    return summed_up(spec, found, how.precision, time.perf_counter() - started)


def _left(spec: Spec, store: Store, how: How, found: dict[str, TrialOutcome]) -> list[Group]:
    """The groups that lack a trial. They are trained again as a whole, so that every number comes out the same."""
    most = how.together or TOGETHER.get(torch.device(how.device).type, TOGETHER["cpu"])
    left = []
    for group in groups(spec.trials, most):
        there = [store.get(trial) for trial in group]
        if all(there):
            found.update({outcome.trial.key(): outcome for outcome in there if outcome is not None})
        else:
            left.append(group)
    return left


def _train(left: list[Group], job: Job, how: How, done: Callable[..., None], tick: Callable[[int], object]) -> None:
    on_gpu = torch.device(job.device).type == "cuda"
    if how.executor == "ray":
        gpus = how.gpus if how.gpus is not None else float(on_gpu)
        run_on_ray(left, job, address=how.address, gpus=gpus, workers=how.workers, done=done)
    else:
        workers = how.workers or (1 if on_gpu else os.cpu_count() or 1)
        run_here(left, job, workers=min(workers, len(left)), done=done, tick=tick)


def summed_up(spec: Spec, found: dict[str, TrialOutcome], precision: str, seconds: float) -> SweepRecord:
    """The record of a sweep whose trials are all there."""
    blocks = [(name, [found[trial.key()] for trial in trials]) for name, trials in spec.blocks]
    outcomes = tuple(found[trial.key()] for trial in spec.trials)
    return SweepRecord(
        schema=SWEEP_SCHEMA,
        title=spec.title,
        spec=spec.text,
        quick=spec.quick,
        axes=spec.axes,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        commit=commit(),
        versions=versions("torch"),
        devices=tuple(sorted({outcome.device for outcome in outcomes})),
        precision=precision,
        blocks=tuple((name, tuple(outcome.trial.key() for outcome in part)) for name, part in blocks),
        cells=cells(blocks, spec.axes),
        analyses=analyses(blocks, spec.axes),
        outcomes=outcomes,
    )
