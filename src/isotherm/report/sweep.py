"""A sweep on a terminal: every setting with its mean over seeds, and a summary of each series."""

from rich import box
from rich.console import Console
from rich.table import Table

from isotherm.language import Text
from isotherm.record.sweep import Analysis, Cell, SeedInterval, SweepRecord

NAMES = {
    "lr": Text("learning rate", "学习率"),
    "width": Text("width", "宽度"),
    "head_dim": Text("head dimension d", "头维度 d"),
    "length": Text("length", "长度"),
    "init": Text("gain on W_q and W_k", "W_q、W_k 的初始增益"),
    "layers": Text("layers", "层数"),
    "step": Text("step", "步"),
    "rule": Text("rule", "规则"),
    "seed": Text("seed", "种子"),
    "loss": Text("held-out loss (nats a token)", "留出集损失（nat/词元）"),
    "accuracy": Text("held-out token accuracy", "留出集词元准确率"),
}
SHORT = {"head_dim": "d"}
ANALYSES = {
    "lr-sensitivity": Text("learning-rate sensitivity (nats; 0 is best)", "学习率敏感度（nat；0 最好）"),
    "large/small": Text(
        "loss at the largest over the smallest (1: no difference)", "最大处与最小处损失之比（1 为无差别）"
    ),
    "small/first": Text("at the smallest: loss over that of the first series", "最小处：损失与首个系列之比"),
    "large/first": Text("at the largest: loss over that of the first series", "最大处：损失与首个系列之比"),
    "long-short entropy": Text(
        "entropy fraction at the longest less the shortest (0: steady)", "最长处与最短处的熵占比之差（0 为不变）"
    ),
    "long/short": Text(
        "accuracy at the longest over the shortest (1: no loss)", "最长处与最短处准确率之比（1 为无损失）"
    ),
}
LEGEND = Text(
    "loss: held out, in nats a token; a run that diverged counts with its loss at the start. ±: 95 % t-interval over seeds.\n"
    "gate: median of 1 − Σp² at the start → at the end.  g: Hedges' g of the loss against {first}; below 0 is better.\n"
    "{best}{lost}",
    "损失：留出集上的数值，单位 nat/词元；发散的训练按其初始损失计。±：各种子的 95 % t 区间。\n"
    "闸门：1 − Σp² 的中位数，开始 → 结束。  g：损失相对 {first} 的 Hedges g；小于 0 为更好。\n"
    "{best}{lost}",
)
BEST = Text("{best}: the one with the lowest mean loss, of those tried.  ", "{best}：所试各值中平均损失最低者。  ")
LOST = Text("lost: runs that diverged.", "发散：发散的训练次数。")
SUMMARY = Text(
    "{trials} trials, {diverged} diverged, {devices}, {precision}, torch {torch}",
    "{trials} 次训练，{diverged} 次发散，{devices}，{precision}，torch {torch}",
)


def show(record: SweepRecord, console: Console) -> None:
    """Print one table per block, the legend, then the summary of each series."""
    console.print(record.title, style="bold", highlight=False, markup=False)
    for block in dict.fromkeys(cell.block for cell in record.cells):
        console.print(_table(record, block, [cell for cell in record.cells if cell.block == block]))
    first = record.cells[0].series if record.cells else ""
    best = BEST.format(best=record.axes.best) if record.axes.best else Text("", "")
    lost = LOST if any(cell.diverged for cell in record.cells) else Text("", "")
    legend = str(LEGEND.format(first=first, best=best, lost=lost)).rstrip()
    console.print(legend, style="dim", highlight=False, markup=False)
    for name in dict.fromkeys(analysis.name for analysis in record.analyses):
        console.print()
        console.print(_summary(name, [analysis for analysis in record.analyses if analysis.name == name]))
    said = SUMMARY.format(
        trials=len(record.outcomes),
        diverged=sum(outcome.diverged for outcome in record.outcomes),
        devices=", ".join(record.devices),
        precision=record.precision,
        torch=record.versions.get("torch", "?"),
    )
    console.print()
    console.print(str(said), style="dim", highlight=False, markup=False)


def _table(record: SweepRecord, block: str, cells: list[Cell]) -> Table:
    axes = record.axes
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=block or None, title_justify="left")
    table.add_column("" if axes.series == ("sweep",) else ", ".join(axes.series), overflow="fold", min_width=9)
    fields = [SHORT.get(name, name) for name in ("" if axes.x == "step" else axes.x, axes.best or "") if name]
    heads = [Text("loss", "损失"), Text("accuracy", "准确率"), Text("gate", "闸门"), Text("g", "g")]
    lost = any(cell.diverged for cell in cells)
    for head in [*fields, *heads, *([Text("lost", "发散")] if lost else [])]:
        table.add_column(str(head), justify="right", no_wrap=True)
    before = None
    for cell in cells:
        row = ["" if cell.series == before else cell.series]
        row += [] if axes.x == "step" else ["–" if cell.x is None else f"{cell.x:g}"]
        row += [cell.settings.get(axes.best, "–")] if axes.best else []
        gate = "→".join(_number(value, ".2f") for value in (cell.gate_start, cell.gate_end))
        row += [said(cell.loss), said(cell.accuracy), gate, _number(cell.effect, "+.1f", "")]
        table.add_row(*row, *([str(cell.diverged or "")] if lost else []))
        before = cell.series
    return table


def _summary(name: str, analyses: list[Analysis]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(str(ANALYSES.get(name, Text(name, name))))
    table.add_column("")
    for analysis in sorted(analyses, key=lambda one: (one.block, one.value)):
        series = f"{analysis.block}: {analysis.series}" if analysis.block else analysis.series
        seeds = 2 if analysis.low is not None else 1
        table.add_row(series, said(SeedInterval(analysis.value, analysis.low, analysis.high, seeds)))
    return table


def said(value: SeedInterval | None) -> str:
    """A mean and half the width of its interval.

    >>> said(SeedInterval(1.5, 1.25, 1.75, 3)), said(SeedInterval(1.5, None, None, 1)), said(None)
    ('1.500 ± 0.250', '1.500', '–')
    """
    if value is None:
        return "–"
    return f"{value.mean:.3f}" if value.high is None else f"{value.mean:.3f} ± {value.high - value.mean:.3f}"


def _number(value: float | None, form: str, nothing: str = "–") -> str:
    return nothing if value is None else format(value, form)
