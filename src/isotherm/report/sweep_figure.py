"""A sweep drawn: one panel a block, one line a series, the 95 % interval over seeds around it."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from isotherm.language import Text, current
from isotherm.record.sweep import Cell, SweepRecord, TrialOutcome
from isotherm.report.explain.palette import RULE, SERIES
from isotherm.report.sweep import NAMES

MARKERS = "osD^vXP*"
LOGARITHMIC = ("lr", "width", "head_dim", "length", "init")
FONTS = ("Noto Sans CJK SC", "Noto Serif CJK SC", "Source Han Sans SC", "PingFang SC", "Microsoft YaHei", "SimHei")
MISSING = Text(
    "no figure: matplotlib is not installed (pip install 'isotherm[plots]')",
    "没有图：未安装 matplotlib（pip install 'isotherm[plots]'）",
)
TRAINING = Text("training loss (nats a token)", "训练损失（nat/词元）")
UNITS = {"length": Text("length (tokens, words or pairs of the task)", "长度（任务的词元、词或对数）")}


def write(record: SweepRecord, folder: Path) -> list[Path] | Text:
    """`sweep.png` and `sweep.svg` in the folder, both on white; or why there are none."""
    if find_spec("matplotlib") is None:
        return MISSING
    from matplotlib import font_manager, rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    known = {font.name for font in font_manager.fontManager.ttflist}
    font = next((name for name in FONTS if name in known), None)
    language = "en" if font is None else current()
    blocks = list(dict.fromkeys(cell.block for cell in record.cells))
    looks: Any = {"font.family": ["DejaVu Sans", *([font] if font else [])], "font.size": 9, "svg.hashsalt": "isotherm"}
    with rc_context(looks):
        figure = Figure(figsize=(5.2 * len(blocks), 4.6), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(blocks), squeeze=False)[0]
        for panel, block in zip(panels, blocks, strict=True):
            _panel(record, block, panel, language)
        lines, names = panels[0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=min(3, len(names)), frameon=False, fontsize=8)
        figure.suptitle(record.title, fontsize=10)
        paths = [folder / f"sweep.{kind}" for kind in ("png", "svg")]
        for path in paths:
            temporary = path.with_name(f".{path.name}")
            figure.savefig(
                temporary, format=path.suffix[1:], dpi=150, metadata={"Date": None} if ".svg" in path.name else {}
            )
            temporary.replace(path)
    return paths


def _panel(record: SweepRecord, block: str, panel: Any, language: Any) -> None:
    axes = record.axes
    cells = [cell for cell in record.cells if cell.block == block]
    for index, name in enumerate(dict.fromkeys(cell.series for cell in record.cells)):
        look = {
            "color": SERIES["light"][index % len(SERIES["light"])],
            "marker": MARKERS[index % len(MARKERS)],
            "markersize": 4.5,
            "linewidth": 1.6,
            "linestyle": "-" if index < len(SERIES["light"]) else "--",
            "label": name,
        }
        line = [cell for cell in cells if cell.series == name]
        if axes.x == "step":
            _curve(record, block, name, panel, look)
        else:
            _line(sorted(line, key=lambda cell: cell.x or 0.0), axes.y, panel, look)
    panel.set_title(block, fontsize=9)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color=RULE["light"], linewidth=0.6)
    panel.set_axisbelow(True)
    if axes.x in LOGARITHMIC:
        panel.set_xscale("log", base=10 if axes.x in ("lr", "init") else 2)
        if axes.x not in ("lr", "init"):
            ticks = sorted({cell.x for cell in cells if cell.x})
            panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            panel.minorticks_off()
    panel.set_xlabel(UNITS.get(axes.x, NAMES.get(axes.x, Text(axes.x, axes.x))).to(language))
    panel.set_ylabel((TRAINING if axes.x == "step" else NAMES[axes.y]).to(language))
    if axes.y == "accuracy" and axes.x != "step":
        panel.set_ylim(-0.02, 1.02)


def _line(cells: Sequence[Cell], measure: str, panel: Any, look: dict[str, Any]) -> None:
    known = [(cell.x, value) for cell in cells if (value := getattr(cell, measure)) is not None]
    if not known:
        return
    xs = [x for x, _ in known]
    panel.plot(xs, [value.mean for _, value in known], **look)
    low = [value.mean if value.low is None else value.low for _, value in known]
    high = [value.mean if value.high is None else value.high for _, value in known]
    panel.fill_between(xs, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _curve(record: SweepRecord, block: str, name: str, panel: Any, look: dict[str, Any]) -> None:
    """Training curves, the mean over the runs that got so far."""
    blocks = dict(record.blocks)
    keys = set(blocks.get(block, blocks.get(name, ())))
    wanted = {cell.series: cell.settings for cell in record.cells if cell.block == block}.get(name, {})
    runs = [one for one in record.outcomes if one.trial.key() in keys and _fits(one, wanted)]
    steps: dict[int, list[float]] = {}
    for run in runs:
        for step, loss in run.losses:
            if loss is not None:
                steps.setdefault(step, []).append(loss)
    if steps:
        ordered = sorted(steps)
        panel.plot(ordered, [fmean(steps[step]) for step in ordered], **{**look, "marker": None})


def _fits(outcome: TrialOutcome, settings: dict[str, str]) -> bool:
    return all(str(getattr(outcome.trial, name)) == value for name, value in settings.items())
