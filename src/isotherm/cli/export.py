"""`isotherm export`: a run that was watched, as a table for other programs."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from isotherm.cli.command import command, option
from isotherm.cli.output import WROTE, check_outputs, say
from isotherm.errors import InputError
from isotherm.language import Text

if TYPE_CHECKING:
    from isotherm.record.watch import WatchRecord

ABOUT = Text(
    "Write a run that was watched as a file for other programs.\n\nRUN is the store. CSV and Parquet have a row for each head"
    " of each reading; JSON has everything, events included. The store is only read, and the run may still be going on.",
    "将被监测的训练写成供其他程序使用的文件。\n\nRUN 为读数库。CSV 与 Parquet 中，每条读数的每个头为一行；JSON 包含全部内容，"
    "事件也在内。读数库只被读取，训练可以仍在进行。",
)


def run(store: str, files: dict[str, str | None]) -> None:
    """Write each file that was asked for."""
    from isotherm.cli.watch import read_run
    from isotherm.report.files import write_atomically
    from isotherm.report.watch import tables

    asked = {kind: path for kind, path in files.items() if path is not None}
    if not asked:
        raise InputError(
            store, Text("say where to: --csv, --json or --parquet", "请指明写到何处：--csv、--json 或 --parquet")
        )
    check_outputs([store], {f"--{kind}": path for kind, path in asked.items()})
    record = read_run(store)
    writers: dict[str, Callable[[WatchRecord], str | bytes]] = {
        "csv": tables.to_csv,
        "json": tables.to_json,
        "parquet": tables.to_parquet,
    }
    made = [(path, writers[kind](record)) for kind, path in asked.items()]  # all of them before any is written
    for path, content in made:
        write_atomically(Path(path), content)
        say(WROTE.format(path=path))


@command("export", ABOUT)
@click.argument("run_path", metavar="RUN")
@option("--csv", Text("Write a table as CSV.", "写成 CSV 表格。"), metavar="FILE")
@option("--json", Text("Write the whole record as JSON.", "将全部记录写成 JSON。"), "as_json", metavar="FILE")
@option(
    "--parquet",
    Text("Write a table as Parquet (needs pyarrow).", "写成 Parquet 表格（需要 pyarrow）。"),
    metavar="FILE",
)
def export(run_path: str, csv: str | None, as_json: str | None, parquet: str | None) -> None:
    """Export one run."""
    run(run_path, {"csv": csv, "json": as_json, "parquet": parquet})
