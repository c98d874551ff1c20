"""The atlas of scale rules on a terminal."""

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from isotherm.language import Text
from isotherm.record import RuleLine, RulePage

WIDE = 110
"""Columns from which there is room to say who uses a rule."""


def show(lines: tuple[RuleLine, ...], console: Console) -> None:
    """Print one line per rule."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(str(Text("rule", "规则")), style="bold", no_wrap=True)
    table.add_column(str(Text("formula", "公式")), overflow="fold")
    table.add_column(str(Text("d64 n1024", "d64 n1024")), justify="right", no_wrap=True)
    table.add_column(str(Text("fold", "位置")), justify="center", no_wrap=True)
    wide = console.width >= WIDE
    if wide:
        table.add_column(str(Text("used by", "使用者")), style="dim", no_wrap=True, overflow="ellipsis")
    for line in lines:
        cells = [line.example, line.formula, number(line.multiplier_at_d64_n1024), line.fold]
        table.add_row(*cells, *([", ".join(line.where)] if wide else []))
    console.print(table, highlight=False)
    meanings = {line.fold: line.acts for line in lines}
    console.print(" · ".join(f"[bold]{fold}[/bold] {acts}" for fold, acts in meanings.items()), style="dim")
    console.print(str(Text("isotherm rules NAME explains one.", "isotherm rules NAME 可详解一条规则。")), style="dim")


def explain(page: RulePage, console: Console) -> None:
    """Print one rule: formula, sources, and its multiplier over d and n."""
    console.print(f"[bold]{page.name}[/bold]", highlight=False)
    for line in page.rules:
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column()
        facts.add_row(str(Text("formula", "公式")), f"[bold]{line.formula}[/bold]")
        facts.add_row(str(Text("what it does", "作用")), str(line.sentence))
        facts.add_row(str(Text("where it acts", "作用位置")), str(line.acts))
        if line.where:
            facts.add_row(str(Text("used by", "使用者")), ", ".join(line.where))
        if line.config_keys:
            facts.add_row(str(Text("config keys", "配置项")), ", ".join(line.config_keys))
        facts.add_row(str(Text("source", "出处")), line.citation)
        console.print(Padding(facts, (1, 0, 0, 2)), highlight=False)
    if any(cell is not None for row in page.multiplier for cell in row):
        console.print(Padding(_grid(page), (1, 0, 0, 2)))


def _grid(page: RulePage) -> Table:
    title = Text("multiplier of q·k for the last query, over n keys", "最后一个查询在 n 个键上对 q·k 的乘数")
    table = Table(box=box.SIMPLE_HEAD, title=str(title), title_justify="left", title_style="dim", pad_edge=False)
    table.add_column("d \\ n", justify="right", style="dim")
    for length in page.lengths:
        table.add_column(f"{length:,}", justify="right")
    for dimension, row in zip(page.dimensions, page.multiplier, strict=True):
        table.add_row(str(dimension), *(number(cell) for cell in row))
    return table


def number(value: float | None) -> str:
    """Four digits, or a dash where the rule is not one number."""
    return "–" if value is None else f"{value:.4g}"
