"""How every verb speaks: one JSON document on standard output, lines and a progress bar on standard error."""

import json
from typing import TYPE_CHECKING, Any

import click

from isotherm.language import Text

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

WROTE = Text("wrote {path}", "已写出 {path}")


def print_json(plain: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(plain, ensure_ascii=False, indent=1))


def say(line: Text | str) -> None:
    """Print a line for the person who runs the command."""
    click.echo(str(line), err=True)


def progress_bar(*columns: "ProgressColumn") -> "Progress":
    """A bar that shows itself only on a terminal, and is gone when the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    described = TextColumn("{task.description}"), BarColumn()
    return Progress(*described, *columns, console=console, transient=True, disable=not console.is_terminal)
