"""Scaled beside unscaled attention on a terminal."""

from rich import box
from rich.console import Console
from rich.table import Table

from isotherm.language import Text
from isotherm.record import RuleAtDimension, TemperatureTable
from isotherm.report.draw.terminal import bar

TITLE = Text(
    "One softmax row over n = {n} keys: random unit-variance q and k, {rows} rows a reading.",
    "n = {n} 个键上的 softmax 行：q、k 为单位方差随机向量，每个读数 {rows} 行。",
)
LEGEND = Text(
    "σ: spread of the logits; the softmax freezes beyond σ_c = √(2 ln n) = {threshold:.2f}.\n"
    "entropy: fraction of ln n.  gate: 1 − Σp², the trace of the softmax's Jacobian; 0 lets no gradient through.\n"
    "In brackets: the prediction for Gaussian logits.  p10: one row in ten is below this.",
    "σ：logits 的标准差；超过 σ_c = √(2 ln n) = {threshold:.2f} 时 softmax 冻结。\n"
    "熵：占 ln n 的比例。  闸门：1 − Σp²，即 softmax 雅可比矩阵的迹；为 0 时没有梯度通过。\n"
    "括号内：高斯 logits 的理论预测。  p10：十分之一的行低于此值。",
)
VERDICT = Text(
    "With 1/√d every reading stays where it is from d = {first} to {last}. Without it, at d = {last} one row in ten"
    " lets through less than {p10:.0e} of the gradient.",
    "有 1/√d 时，从 d = {first} 到 {last} 读数都保持不变；没有它，d = {last} 时"
    "十分之一的行只让不到 {p10:.0e} 的梯度通过。",
)


def show(table: TemperatureTable, console: Console) -> None:
    """Print the table, its legend, and its conclusion in a sentence."""
    console.print(str(TITLE.format(n=table.n, rows=f"{table.rows_measured:,}")), style="bold", highlight=False)
    console.print(_grid(table))
    console.print(str(LEGEND.format(threshold=table.threshold)), style="dim", highlight=False)
    console.print()
    first, last = table.rows[0], table.rows[-1]
    verdict = VERDICT.format(first=first.d, last=last.d, p10=last.unscaled.gate_p10)
    console.print(str(verdict), highlight=False)


def _grid(table: TemperatureTable) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    grid.add_column("d", justify="right", style="bold")
    grid.add_column(str(Text("scale", "缩放")), no_wrap=True)
    grid.add_column("σ", justify="right", no_wrap=True)
    grid.add_column(str(Text("entropy (theory)", "熵（理论）")), justify="right", no_wrap=True)
    grid.add_column(str(Text("gate (theory)", "闸门（理论）")), justify="right", no_wrap=True)
    grid.add_column("", no_wrap=True)
    grid.add_column(str(Text("gate p10", "闸门 p10")), justify="right", no_wrap=True)
    for row in table.rows:
        grid.add_row(str(row.d), "1/√d", *_cells(row.scaled), style="cyan")
        grid.add_row("", str(Text("none", "无")), *_cells(row.unscaled), style="yellow")
    return grid


def _cells(reading: RuleAtDimension) -> tuple[str, ...]:
    return (
        f"{reading.logit_std:.2f}",
        f"{reading.entropy:.3f} ({reading.entropy_predicted:.3f})",
        f"{reading.gate:.3f} ({reading.gate_predicted:.3f})",
        bar(reading.gate, 10),
        f"{reading.gate_p10:.2g}",
    )
