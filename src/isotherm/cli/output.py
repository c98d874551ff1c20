"""How every verb speaks: one JSON document on standard output, lines and a progress bar on standard error."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

STEERING = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
WROTE = Text("wrote {path}", "已写出 {path}")


def check_outputs(read: Iterable[str | None], written: Mapping[str, str | None]) -> None:
    """Refuse to write over a file that is read, or two results to one file. `written` has the path for each option."""
    taken = {os.path.realpath(path) for path in read if path is not None}
    for option, path in written.items():
        if path is None:
            continue
        place = os.path.realpath(path)
        if place in taken and (os.path.isfile(path) or not os.path.exists(path)):  # a device takes more than one
            expected = Text("a file that is neither read nor written otherwise", "既未被读取也不另作输出的文件")
            raise ArgumentError(option, expected, got=path)
        taken.add(place)


def print_json(plain: Any) -> None:
    """Print one JSON document. Characters that could steer a terminal are written as escapes."""
    document = json.dumps(plain, ensure_ascii=False, indent=1)
    click.echo(STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", document))


def say(line: Text | str) -> None:
    """Print a line for the person who runs the command."""
    click.echo(printable(" ".join(str(line).splitlines())), err=True)


def say_trace(trace: str) -> None:
    """Print a traceback, in which a name may hold anything."""
    for line in trace.splitlines():
        say(line)


def progress_bar(*columns: "ProgressColumn") -> "Progress":
    """A bar that shows itself only on a terminal, and is gone when the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    described = TextColumn("{task.description}"), BarColumn()
    return Progress(*described, *columns, console=console, transient=True, disable=not console.is_terminal)
