"""What `isotherm sweep` does once it has been understood: train what is missing, show it, write it."""

import json
import time
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
from isotherm.train.sweep.examples import corpora_of
from isotherm.train.sweep.run import RECORD, How, run_sweep
from isotherm.train.sweep.spec import Spec, read_spec

WROTE = Text("wrote {path}", "已写出 {path}")
DONE = Text("{done} of {trials} trials, {seconds:.0f} s", "{done}/{trials} 次训练，{seconds:.0f} 秒")
STOPPED = Text(
    "stopped: {done} of {trials} trials are kept in {folder}; the same command goes on from there",
    "已停止：{trials} 次训练中的 {done} 次已存入 {folder}；再运行同一命令即从那里继续",
)


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
    _check_ray(request)
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
    record = _watched(spec, folder, how)
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


def _check_ray(request: Request) -> None:
    for name, value in (("--address", request.address), ("--gpus", request.gpus)):
        if value is not None and request.executor != "ray":
            raise ArgumentError(name, Text("nothing without --executor ray", "空（不用 --executor ray 时）"), got=value)


def _watched(spec: Spec, folder: Path, how: How) -> SweepRecord:
    """The sweep, told of as it goes; stopped by Ctrl-C, what is kept and how to go on."""
    watch = _Watch(spec)
    try:
        with watch.bar:
            return run_sweep(spec, folder, how, watch)
    except KeyboardInterrupt:
        click.echo(str(STOPPED.format(done=watch.done, trials=watch.trials, folder=folder)), err=True)
        raise click.exceptions.Exit(130) from None


class _Watch:
    """A bar on a terminal; elsewhere a line whenever trials are finished."""

    def __init__(self, spec: Spec) -> None:
        messages = Console(stderr=True)
        self.trials, self.total = len(spec.trials), sum(trial.steps for trial in spec.trials)
        self.steps, self.done, self.started = 0, 0, time.monotonic()
        self.plain = not messages.is_terminal
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[done]}"),
            TimeRemainingColumn(),
            console=messages,
            transient=True,
            disable=self.plain,
        )
        self.task = self.bar.add_task(str(Text("training", "训练中")), total=self.total, done=f"0/{self.trials}")

    def __call__(self, taken: int, done: int) -> None:
        self.steps += taken
        if self.plain and done > self.done:
            seconds = time.monotonic() - self.started
            click.echo(str(DONE.format(done=done, trials=self.trials, seconds=seconds)), err=True)
        self.done = done
        at_least = done * self.total // self.trials  # a cluster tells of finished trials only
        self.bar.update(self.task, completed=max(self.steps, at_least), done=f"{done}/{self.trials}")
