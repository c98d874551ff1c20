"""`isotherm watch`: a run that is watched, on the terminal and as a page, once or while it goes on."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from isotherm.cli.command import NumberRange, command, option
from isotherm.cli.output import WROTE, check_outputs, say
from isotherm.errors import IsothermError
from isotherm.language import Text, current

if TYPE_CHECKING:
    from rich.console import Console

    from isotherm.record.watch import WatchRecord

ABOUT = Text(
    "Show a run that is watched: attention's temperature by layer over time, the worst heads, the alerts.\n\nRUN is the store"
    " that the run writes, or its JSON from isotherm export. It is only read; the run may be going on.",
    "展示被监测的训练：各层注意力温度随时间的变化、最差的头与警报。\n\nRUN 为训练写出的读数库，或 isotherm export 写出的 JSON。"
    "它只被读取；训练可以仍在进行。",
)
DEMO = Text(
    "Train a small transformer three ways (left alone, too hot, too hot with the valve) and compare; minutes.",
    "以三种方式训练一个小 Transformer（不干预、过热、过热但有阀门）并比较；需数分钟。",
)
RUN_OR_DEMO = Text("give a RUN to show, or --demo, and not both", "请给出要展示的 RUN，或用 --demo，二者取一")
NEEDS_RUN = Text(
    "{options}: needs a RUN; --demo keeps its runs in the folder of --out, and isotherm watch shows them",
    "{options}：需要 RUN；--demo 的训练存入 --out 的文件夹，再用 isotherm watch 展示",
)
NEEDS_DEMO = Text("{options}: only with --demo", "{options}：只用于 --demo")
SEEDS = 5
ENDED = Text("no process is writing to {path}: the run has ended", "没有进程在写入 {path}：训练已结束")


def read_run(path: str) -> "WatchRecord":
    """The run in a store, or in a JSON file that was exported from one."""
    from isotherm.monitor import store
    from isotherm.record.files import parse_json, read_bytes
    from isotherm.record.watch import record_of

    return record_of(path, parse_json(path, read_bytes(path))) if path.endswith(".json") else store.read(path)


def run(path: str, html: str | None, following: bool, interval: float) -> None:
    """Show the run, and follow it if asked to."""
    from rich.console import Console

    from isotherm.report.watch import page, terminal

    record, console = read_run(path), Console()
    if following and not path.endswith(".json"):
        _follow(path, record, console, html, interval)
        return
    if html is not None:
        page.write_html(record, Path(html), current())
    terminal.show(record, console, current())
    if html is not None:
        say(WROTE.format(path=html))


def _follow(path: str, record: "WatchRecord", console: "Console", html: str | None, interval: float) -> None:
    """Show the run again whenever it has grown, until no process writes it. Off a terminal it is shown once, at the end."""
    from rich.live import Live

    from isotherm.monitor import store
    from isotherm.report.watch import page, terminal

    shown = None
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            going_on = store.is_written(path)
            record = store.follow(path, record)
            state = len(record.readings), record.readings[-1:], len(record.events), record.superseded
            if state != shown:
                live.update(terminal.view(record, current(), console.width), refresh=console.is_terminal)
                if html is not None:
                    page.write_html(record, Path(html), current())
                shown = state
            if not going_on:
                break
            time.sleep(interval)
    terminal.show(record, console, current())
    say(ENDED.format(path=path))


@command("watch", ABOUT)
@click.argument("run_path", metavar="[RUN]", required=False)
@option("--demo", DEMO, is_flag=True)
@option(
    "--seeds",
    Text("How many seeds --demo trains (default: 5).", "--demo 训练的种子数（默认 5）。"),
    type=click.IntRange(1, 1000),
    metavar="N",
)
@option(
    "--out",
    Text("Keep the stores of --demo's runs in this folder.", "将 --demo 各次训练的读数库存入此文件夹。"),
    metavar="DIR",
)
@option("--html", Text("Write the run as one page.", "将训练写成一个网页。"), metavar="FILE")
@option(
    "--follow",
    Text("Show the run again as it grows, and write the page again.", "随训练进行不断更新显示与网页。"),
    is_flag=True,
)
@option(
    "--interval",
    Text("Seconds between two looks with --follow.", "--follow 时两次查看间隔的秒数。"),
    type=NumberRange(0.1, 3600),
    default=2.0,
    metavar="SECONDS",
)
def watch(
    run_path: str | None,
    demo: bool,
    seeds: int | None,
    out: str | None,
    html: str | None,
    follow: bool,
    interval: float,
) -> None:
    """Watch one run."""
    if demo == (run_path is not None):
        raise IsothermError(RUN_OR_DEMO)
    others = {"--html": html, "--follow": follow or None} if demo else {"--seeds": seeds, "--out": out}
    if idle := ", ".join(name for name, value in others.items() if value is not None):
        raise IsothermError((NEEDS_RUN if demo else NEEDS_DEMO).format(options=idle))
    if run_path is None:
        show_demo(seeds or SEEDS, out)
    else:
        check_outputs([run_path], {"--html": html})
        run(run_path, html, follow, interval)


def show_demo(seeds: int, out: str | None) -> None:
    """Train and show what came of it."""
    import torch
    from rich.console import Console
    from rich.progress import Progress

    from isotherm.monitor.demo import demonstrate
    from isotherm.report.files import write_error
    from isotherm.report.watch import demo as shown

    folder = None if out is None else Path(out)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(folder, error) from error
    torch.set_num_threads(1)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(str(Text("training", "训练")), total=3 * seeds)
        trios = demonstrate(seeds, folder=folder, progress=lambda _: bar.advance(task))
    shown.show(trios, Console(), current())
