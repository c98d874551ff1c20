"""A sweep as figures: one per block, one line per series, the 95 % interval over seeds around it."""

from pathlib import Path
from statistics import fmean

from isotherm.language import Text, current
from isotherm.record import Figure, Line
from isotherm.record.sweep import SweepRecord, TrialOutcome
from isotherm.report.draw import png, svg
from isotherm.report.files import write_atomically
from isotherm.report.sweep import NAMES

LOGARITHMIC = ("lr", "width", "head_dim", "length", "init")
TRAINING = Text("training loss (nats a token)", "训练损失（nat/词元）")
UNITS = {"length": Text("length (tokens, words or pairs of the task)", "长度（任务的词元、词或对数）")}


def write(record: SweepRecord, folder: Path) -> list[Path] | Text:
    """Write `sweep.png` and `sweep.svg` in the folder; where there can be no PNG, the reason is returned."""
    language, drawn = current(), figures(record)
    title = Text(record.title, record.title)
    write_atomically(folder / "sweep.svg", f"{svg.sheet(drawn, title, language)}\n")
    if (obstacle := png.obstacle(language)) is not None:
        return obstacle
    png.write(drawn, folder / "sweep.png", language, title)
    return [folder / "sweep.png", folder / "sweep.svg"]


def figures(record: SweepRecord) -> list[Figure]:
    """One figure per block. Each has a line for every series of the sweep, so that all share colours and legend."""
    axes = record.axes
    x = UNITS.get(axes.x, NAMES.get(axes.x, Text(axes.x, axes.x)))
    y = TRAINING if axes.x == "step" else NAMES[axes.y]
    series = list(dict.fromkeys(cell.series for cell in record.cells))
    made = []
    for number, block in enumerate(dict.fromkeys(cell.block for cell in record.cells)):
        draw = _learning if axes.x == "step" else _means
        lines = tuple(draw(record, block, name) for name in series)
        made.append(Figure(f"sweep-{number}", Text(block, block), x, y, lines, x_log=axes.x in LOGARITHMIC))
    return made


def _means(record: SweepRecord, block: str, name: str) -> Line:
    cells = [cell for cell in record.cells if (cell.block, cell.series) == (block, name) and cell.x is not None]
    cells.sort(key=lambda cell: cell.x or 0.0)
    known = [(cell.x or 0.0, value) for cell in cells if (value := getattr(cell, record.axes.y)) is not None]
    return Line(
        Text(name, name),
        tuple(x for x, _ in known),
        tuple(value.mean for _, value in known),
        tuple(value.mean if value.low is None else value.low for _, value in known),
        tuple(value.mean if value.high is None else value.high for _, value in known),
    )


def _learning(record: SweepRecord, block: str, name: str) -> Line:
    """The training loss at each step: the mean over the runs that reached it."""
    blocks = dict(record.blocks)
    keys = set(blocks.get(block, blocks.get(name, ())))
    wanted = {cell.series: cell.settings for cell in record.cells if cell.block == block}.get(name, {})
    losses: dict[int, list[float]] = {}
    for run in record.outcomes:
        if run.trial.key() in keys and _fits(run, wanted):
            for step, loss in run.losses:
                if loss is not None:
                    losses.setdefault(step, []).append(loss)
    steps = sorted(losses)
    return Line(Text(name, name), tuple(map(float, steps)), tuple(fmean(losses[step]) for step in steps))


def _fits(outcome: TrialOutcome, settings: dict[str, str]) -> bool:
    return all(str(getattr(outcome.trial, name)) == value for name, value in settings.items())
