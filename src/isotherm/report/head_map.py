"""The map of heads in a terminal: a cell per head, coloured by its gate, with the sign of its state."""

from collections.abc import Iterator
from math import isfinite

from rich.console import Console
from rich.text import Text as Styled

from isotherm.language import Language, Text
from isotherm.record import CheckRecord, HeadStats
from isotherm.report import summary, vocabulary
from isotherm.report.draw import palette
from isotherm.report.summary import LayerSummary

_LAYER = Text("layer", "层")
_GATE = Text("colour: gradient gate of the median row, 0 ", "颜色：中位行的梯度闸门，0 ")
_LABEL_WIDTH = 6


def head_map(record: CheckRecord, lines: list[LayerSummary], language: Language, console: Console) -> Styled:
    """All rows of the map and its legend. With many heads cells get narrower, then rows wrap."""
    heads = summary.widest(record)
    room = max(console.width - _LABEL_WIDTH - 1, 8)
    cell = next((size for size in (3, 2, 1) if heads * size <= room), 1)
    per_line = max(room // cell, 1)
    picture = Styled(no_wrap=True)
    if cell > 1:
        picture.append(_header(heads, cell, language))
    for line in lines:
        stats = line.layer.head_stats
        for start in range(0, max(len(stats), 1), per_line):
            label = str(line.layer.index) if start == 0 else ""
            picture.append(f"{label:>{_LABEL_WIDTH}} ")
            for head in stats[start : start + per_line]:
                picture.append(*_cell(head, cell))
            picture.append("\n")
    picture.append(_legend(record, language, console))
    return picture


def _header(heads: int, cell: int, language: Language) -> Styled:
    title = Styled(_LAYER.to(language), style="dim")
    title.align("right", _LABEL_WIDTH)
    title.append(" ")
    step = 1 if cell == 3 else 5
    for head in range(0, heads, step):
        title.append(f"{head:>{cell}}".ljust(cell * step) if step > 1 else f"{head:^{cell}}", style="dim")
    title.append("\n")
    return title


def _cell(head: HeadStats, size: int) -> tuple[str, str]:
    glyph = (
        vocabulary.STATE_GLYPHS[head.state].center(size)
        if size == 3
        else vocabulary.STATE_GLYPHS[head.state].rjust(size)
    )
    gate = head.jacobian_trace.p50
    if head.state in {"invalid", "empty"} or gate is None or not isfinite(gate):
        colour = palette.STATE_COLOURS["invalid"] if head.state == "invalid" else "default"
        return glyph, "dim" if colour == "default" else f"bold #ffffff on {colour}"
    colour = palette.ramp_colour(gate)
    return glyph, f"{palette.ink_on(colour)} on {colour}"


def _legend(record: CheckRecord, language: Language, console: Console) -> Styled:
    """Signs with their counts, wrapped between entries only, then the ramp where the terminal has colour."""
    legend, used = Styled(), 0
    for entry in _entries(record, language):
        if used and used + entry.cell_len + 3 > console.width:
            legend.append("\n")
            used = 0
        legend.append("   " if used else " " * (_LABEL_WIDTH + 1))
        used += entry.cell_len + (3 if used else _LABEL_WIDTH + 1)
        legend.append(entry)
    if console.color_system is None or console.no_color:
        return legend
    legend.append("\n" + " " * (_LABEL_WIDTH + 1) + _GATE.to(language), style="dim")
    for step in range(12):
        legend.append(" ", style=f"on {palette.ramp_colour(step / 11)}")
    legend.append(" 1", style="dim")
    return legend


def _entries(record: CheckRecord, language: Language) -> Iterator[Styled]:
    for state, count in summary.state_counts(record).items():
        if count:
            yield Styled(f"{vocabulary.STATE_GLYPHS[state]} {vocabulary.STATES[state].to(language)} {count}")
