"""What `isotherm sweep` does once it has been understood: train what is missing, show it, write it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.record import to_plain
from isotherm.record.sweep import SweepRecord
from isotherm.report import files, sweep, sweep_figure
from isotherm.train.sweep.run import RECORD, How, run_sweep
from isotherm.train.sweep.source import corpora_of
from isotherm.train.sweep.spec import Spec, read_spec

WROTE = Text("wrote {path}", "已写出 {path}")


@dataclass(frozen=True)
class Request:
    """The command line, as it was given."""

    spec: str
    store: str | None
    executor: Literal["local", "ray"]
    address: str | None
    workers: int | None
    gpus: float | None
    device: str
    precision: str
    together: int | None
    quick: bool
    prepare: bool
    as_json: bool


def run(request: Request) -> int:
    """The whole command; its exit code."""
    spec = read_spec(request.spec, quick=request.quick)
    if request.prepare:
        prepare(spec)
        return 0
    if request.store is None:
        raise ArgumentError("--store", Text("a folder for the results", "结果文件夹"), got=Text("nothing", "空"))
    folder = Path(request.store)
    how = How(
        device=request.device,
        precision=request.precision,
        executor=request.executor,
        address=request.address,
        workers=request.workers,
        gpus=request.gpus,
        together=request.together,
    )
    record = _with_bar(spec, folder, how)
    plain = json.dumps(to_plain(record), ensure_ascii=False, indent=1)
    files.write_atomically(folder / RECORD, plain + "\n")
    drawn = sweep_figure.write(record, folder)
    if request.as_json:
        click.echo(plain)
    else:
        sweep.show(record, Console())
    notes = [drawn] if isinstance(drawn, Text) else [WROTE.format(path=path) for path in (folder / RECORD, *drawn)]
    for note in notes:
        click.echo(str(note), err=True)
    return 0


def prepare(spec: Spec) -> None:
    """Read every corpus once, which leaves its token ids beside it."""
    for (name, task, vocabulary), corpus in corpora_of(spec.trials, spec.root).items():
        said = Text("{name}, {task}: {tokens} tokens of {size}", "{name}，{task}：{tokens} 个词元，词表 {size}")
        tokens = sum(len(side.ids) for side in corpus.sides)
        click.echo(str(said.format(name=name, task=task, tokens=f"{tokens:,}", size=vocabulary)), err=True)


def _with_bar(spec: Spec, folder: Path, how: How) -> SweepRecord:
    messages = Console(stderr=True)
    trials = spec.trials
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeRemainingColumn(),
        console=messages,
        transient=True,
        disable=not messages.is_terminal,
    )
    with bar:
        total = sum(trial.steps for trial in trials)
        task = bar.add_task(str(Text("training", "训练中")), total=total, done=f"0/{len(trials)}")
        steps = 0

        def watch(taken: int, done: int) -> None:
            nonlocal steps
            steps += taken
            at_least = done * total // len(trials)  # a cluster tells of finished trials only
            bar.update(task, completed=max(steps, at_least), done=f"{done}/{len(trials)}")

        return run_sweep(spec, folder, how, watch)
