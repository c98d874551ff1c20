"""`isotherm sweep`: many training runs from one specification, here or on a Ray cluster."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isotherm.cli.command import NumberRange, as_json, command, device, option
from isotherm.cli.output import WROTE, print_json, progress_bar, say
from isotherm.errors import ArgumentError
from isotherm.language import Text

if TYPE_CHECKING:
    from isotherm.record.sweep import SweepRecord
    from isotherm.train.sweep.run import How
    from isotherm.train.sweep.spec import Spec

ABOUT = Text(
    "Train every combination that a specification names, and compare them over seeds.\n\nSPEC is a TOML file with [base]"
    " values and [grid] lists. Runs that differ only in numbers train together. The store keeps each finished run: after an"
    " interruption, the same command continues and ends with the same numbers.",
    "训练配置中列出的每一种组合，并在多个种子上比较。\n\nSPEC 是含 [base] 取值与 [grid] 列表的 TOML 文件。"
    "只在数值上不同的训练会一起进行。每次完成的训练都存入结果文件夹：随时停下，再运行同一命令即可继续，最后的数字不变。",
)
DONE = Text("{done} of {trials} trials, {seconds:.0f} s", "{done}/{trials} 次训练，{seconds:.0f} 秒")
STOPPED = Text(
    "stopped: {done} of {trials} trials are kept in {folder}; the same command continues from there",
    "已停止：{trials} 次训练中的 {done} 次已存入 {folder}；再运行同一命令即从那里继续",
)


def run(spec: "Spec", folder: Path, how: "How", as_json: bool) -> None:
    """Train what the folder lacks, write the record and its figures, and show it."""
    from rich.console import Console

    from isotherm.record import to_plain
    from isotherm.report import files, sweep_figure
    from isotherm.report import sweep as table
    from isotherm.train.sweep.run import RECORD

    record = _watched(spec, folder, how)
    plain = to_plain(record)
    files.write_atomically(folder / RECORD, json.dumps(plain, ensure_ascii=False, indent=1) + "\n")
    drawn = sweep_figure.write(record, folder)
    if as_json:
        print_json(plain)
    else:
        table.show(record, Console())
    notes = [drawn] if isinstance(drawn, Text) else [WROTE.format(path=path) for path in (folder / RECORD, *drawn)]
    for note in notes:
        say(note)


def prepare_corpora(spec: "Spec") -> None:
    """Read every corpus once, which leaves its token ids beside it."""
    from isotherm.train.sweep.examples import corpora_of

    for (name, task, vocabulary), corpus in corpora_of(spec.trials, spec.root).items():
        said = Text("{name}, {task}: {tokens} tokens of {size}", "{name}，{task}：{tokens} 个词元，词表 {size}")
        tokens = sum(len(side.ids) for side in corpus.sides)
        say(said.format(name=name, task=task, tokens=f"{tokens:,}", size=vocabulary))


def _check_ray(how: "How") -> None:
    for name, value in (("--address", how.address), ("--gpus", how.gpus)):
        if value is not None and how.executor != "ray":
            raise ArgumentError(name, Text("nothing without --executor ray", "空（不用 --executor ray 时）"), got=value)


def _watched(spec: "Spec", folder: Path, how: "How") -> "SweepRecord":
    """Train, show the progress, and after Ctrl-C say what is kept and how to continue."""
    from isotherm.train.sweep.run import run_sweep

    watch = _Watch(spec)
    try:
        with watch.bar:
            return run_sweep(spec, folder, how, watch)
    except KeyboardInterrupt:
        say(STOPPED.format(done=watch.done, trials=watch.trials, folder=folder))
        raise click.exceptions.Exit(130) from None


class _Watch:
    """A bar on a terminal; elsewhere a line whenever trials are finished."""

    def __init__(self, spec: "Spec") -> None:
        from rich.progress import TextColumn, TimeRemainingColumn

        self.trials, self.total = len(spec.trials), sum(trial.steps for trial in spec.trials)
        self.steps, self.done, self.started = 0, 0, time.monotonic()
        self.bar = progress_bar(TextColumn("{task.fields[done]}"), TimeRemainingColumn())
        self.task = self.bar.add_task(str(Text("training", "训练中")), total=self.total, done=f"0/{self.trials}")

    def __call__(self, taken: int, done: int) -> None:
        self.steps += taken
        if self.bar.disable and done > self.done:
            seconds = time.monotonic() - self.started
            say(DONE.format(done=done, trials=self.trials, seconds=seconds))
        self.done = done
        at_least = done * self.total // self.trials  # a Ray cluster reports only finished trials
        self.bar.update(self.task, completed=max(self.steps, at_least), done=f"{done}/{self.trials}")


@command("sweep", ABOUT)
@click.argument("spec")
@option("--store", Text("Folder for the results.", "结果文件夹。"), metavar="DIR")
@option(
    "--executor",
    Text("Processes on this machine, or a Ray cluster.", "本机进程，或 Ray 集群。"),
    type=click.Choice(["local", "ray"]),
    default="local",
)
@option(
    "--address",
    Text(
        "The Ray cluster, host:port (default: RAY_ADDRESS, or this machine's).",
        "Ray 集群，host:port（默认取 RAY_ADDRESS 或本机集群）。",
    ),
    metavar="ADDRESS",
)
@option(
    "--workers",
    Text(
        "Processes at once (default: one per CPU, or 1 on a GPU).",
        "同时运行的进程数（默认每个 CPU 一个，GPU 上为 1）。",
    ),
    type=click.IntRange(1),
    metavar="N",
)
@option(
    "--gpus",
    Text("With Ray: share of a GPU that each process takes.", "使用 Ray 时每个进程占用的 GPU 份额。"),
    type=NumberRange(0),
    metavar="SHARE",
)
@device
@option(
    "--precision",
    Text("Precision of the computation.", "计算精度。"),
    type=click.Choice(["float32", "tf32", "bfloat16", "float64"]),
    default="float32",
)
@option(
    "--together",
    Text(
        "Train at most this many models as one (default: 64 on a GPU, 16 on a CPU).",
        "一起训练的模型数上限（默认 GPU 上 64，CPU 上 16）。",
    ),
    type=click.IntRange(1),
    metavar="N",
)
@option(
    "--quick", Text("Train the small version, which [quick] describes.", "小规模版本：按 [quick] 所写。"), is_flag=True
)
@option(
    "--prepare",
    Text("Only turn the corpora into token ids, to carry elsewhere.", "只把语料转成词元编号，供带到别处使用。"),
    is_flag=True,
)
@as_json
def sweep(spec: str, store: str | None, quick: bool, prepare: bool, as_json: bool, **given: Any) -> None:
    """Train what the store does not have yet, and summarise. The other options are the fields of `How`."""
    from isotherm.train.sweep.run import How
    from isotherm.train.sweep.spec import read_spec

    read = read_spec(spec, quick=quick)
    if prepare:
        prepare_corpora(read)
        return
    if store is None:
        raise ArgumentError("--store", Text("a folder for the results", "结果文件夹"), got=Text("nothing", "空"))
    how = How(**given)
    _check_ray(how)
    run(read, Path(store), how, as_json)
