"""Pictures for a terminal: curves in braille dots, bars in eighths of a cell, heat maps in shades.

Each curve ends in its number, and the legend repeats it, so that nothing depends on colour.
"""

from collections.abc import Sequence
from math import isfinite

from rich.cells import cell_len
from rich.text import Text as Styled

from isotherm.language import Language, Text
from isotherm.printable import printable
from isotherm.record import Figure, Heatmap
from isotherm.report import digits
from isotherm.report.draw import palette
from isotherm.report.draw.axes import Axis, axes, boundary, label, value_axis
from isotherm.report.draw.bars import groups
from isotherm.report.draw.series import SOURCES, Series, legend, series

COLOURS = ("blue", "yellow", "green", "magenta", "cyan", "white", "bright_blue", "bright_red")
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_SHADES = " ░▒▓█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_ON, _PERIOD = 4, 7
"""A predicted curve is dashed: the first `_ON` of every `_PERIOD` dots are drawn."""
MOST_BARS = 18


class Canvas:
    """Cells of two by four dots."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.dots = [[0] * columns for _ in range(rows)]
        self.styles = [[""] * columns for _ in range(rows)]
        self.letters: dict[tuple[int, int], str] = {}

    def dot(self, x: float, y: float, style: str) -> None:
        """One dot; x and y go from 0 to 1, from the lower left corner."""
        across, down = round(x * (2 * self.columns - 1)), round((1 - y) * (4 * self.rows - 1))
        if 0 <= across < 2 * self.columns and 0 <= down < 4 * self.rows:
            self.dots[down // 4][across // 2] |= _DOTS[down % 4][across % 2]
            self.styles[down // 4][across // 2] = style

    def stroke(
        self, start: tuple[float, float], end: tuple[float, float], style: str, walked: int, dashed: bool
    ) -> int:
        """Draw a straight line after `walked` dots, which place its dashes; returns the dots so far."""
        steps = max(round(abs(end[0] - start[0]) * 2 * self.columns), round(abs(end[1] - start[1]) * 4 * self.rows), 1)
        for step in range(steps + 1):
            part = step / steps
            if not dashed or (walked + step) % _PERIOD < _ON:
                self.dot(start[0] + part * (end[0] - start[0]), start[1] + part * (end[1] - start[1]), style)
        return walked + steps

    def letter(self, x: float, y: float, letter: str, style: str) -> None:
        """A letter at a place, or further left where another letter stands there."""
        column, row = round(x * (self.columns - 1)), round((1 - y) * (self.rows - 1))
        row = min(max(row, 0), self.rows - 1)
        while (row, column) in self.letters and column > 0:
            column -= 2
        column = min(max(column, 0), self.columns - 1)
        self.letters[row, column] = letter
        self.styles[row][column] = style

    def line(self, row: int) -> Styled:
        """One row of cells as styled text."""
        drawn = Styled()
        for column in range(self.columns):
            letter = self.letters.get((row, column)) or chr(0x2800 + self.dots[row][column]).replace("\u2800", " ")
            drawn.append(letter, style=self.styles[row][column])
        return drawn


def draw(figure: Figure | Heatmap, language: Language, width: int) -> list[Styled]:
    """A picture, line by line, with its axes and legend."""
    if isinstance(figure, Heatmap):
        return _heatmap(figure, language, width)
    return _bars(figure, language, width) if figure.bars else _curves(figure, language, width)


def _said(text: Text, language: Language) -> str:
    return printable(text.to(language), 200)


def _curves(figure: Figure, language: Language, width: int, rows: int = 11) -> list[Styled]:
    across, upward = axes(figure)
    looks = series(figure)
    left = max((len(upward.label(tick)) for tick in upward.ticks), default=1)
    canvas = Canvas(width - left - 3, rows)
    signs = _signs(looks)
    for look, sign in reversed(list(zip(looks, signs, strict=True))):
        _curve(canvas, look, (across, upward), sign, _style(look))
    labels: dict[int, str] = {}
    for tick in upward.ticks:
        part = upward.place(tick)
        if part is not None and -0.02 <= part <= 1.02:
            labels[round((1 - part) * (rows - 1))] = upward.label(tick)
    lines = [Styled(" " * (left + 2) + _said(figure.y, language), style="dim")]
    for row in range(rows):
        edge = f"{labels.get(row, ''):>{left}} {'┤' if row in labels else '│'}"
        lines.append(Styled.assemble((edge, "dim"), canvas.line(row)))
    lines += _foot(across, _said(figure.x, language), left, canvas.columns)
    return lines + _legend(figure, language, width)


def _curve(canvas: Canvas, look: Series, scales: tuple[Axis, Axis], sign: str, style: str) -> None:
    across, upward = scales
    before: tuple[float, float] | None = None
    last: tuple[float, float] | None = None
    walked = 0
    for x, y in zip(look.line.x, look.line.y, strict=True):
        place = across.place(x), upward.place(y)
        if place[0] is None or place[1] is None:
            before = None
            continue
        here = (place[0], place[1])
        if look.line.source == "document":
            canvas.letter(*here, "◇", style)
        elif not look.joined:
            canvas.letter(*here, sign or "·", style)
        elif before is not None:
            walked = canvas.stroke(before, here, style, walked, look.dash is not None)
        else:
            canvas.dot(*here, style)
        before = last = here
    if last is not None and sign and look.joined:
        canvas.letter(*last, sign, style)


def _foot(across: Axis, title: str, left: int, columns: int) -> list[Styled]:
    places = [(part, tick) for tick in across.ticks if (part := across.place(tick)) is not None and 0 <= part <= 1]
    marks, shown = _spaced([(round(part * (columns - 1)), across.label(tick)) for part, tick in places], columns)
    base = "".join("┬" if column in shown else "─" for column in range(columns))
    named = f"{' ' * max(columns - cell_len(title), 0)}{title}"
    lines = (f"{' ' * (left + 1)}└{base}", f"{' ' * (left + 2)}{marks}", f"{' ' * (left + 2)}{named}")
    return [Styled(text, style="dim") for text in lines]


def _spaced(labels: list[tuple[int, str]], columns: int) -> tuple[str, set[int]]:
    """Labels centred on their columns, without those that would touch another, and the columns of those shown."""
    text, shown = "", set()
    for column, name in labels:
        start = max(min(column - len(name) // 2, columns - len(name)), 0)
        if not text or start >= len(text) + 2:
            text = text.ljust(start) + name
            shown.add(column)
    return text, shown


def _legend(figure: Figure, language: Language, width: int) -> list[Styled]:
    lines, numbers = [], iter(filter(None, _signs(series(figure))))
    several = len({line.source for line in figure.lines}) > 1
    for look, name in legend(figure):
        sample = {"measured": "⠒⠒⠒" if look.joined else "   ", "predicted": "⠒ ⠒", "document": " ◇ "}[look.line.source]
        entry = Styled.assemble((f"  {next(numbers, ' ')} {sample} ", _style(look)), _said(name, language))
        if several and name != SOURCES[look.line.source]:
            source = Text(" ({it})", "（{it}）").format(it=SOURCES[look.line.source])
            entry.append(source.to(language), style="dim")
        entry.truncate(width, overflow="ellipsis")
        lines.append(entry)
    return lines


def _signs(looks: tuple[Series, ...]) -> list[str]:
    """1, 2, 3 … for the curves that have a name of their own in the legend, nothing for the others."""
    letters = iter("123456789abcdefghijklmnopqrstuvwxyz" + "+" * len(looks))
    return ["" if look.name is None else next(letters) for look in looks]


def _style(look: Series) -> str:
    return COLOURS[int(look.colour) % len(COLOURS)] if look.colour.isdigit() else "bold"


def _bars(figure: Figure, language: Language, width: int) -> list[Styled]:
    _, upward = axes(figure)
    looks = series(figure)
    alone = all(len(look.line.x) == 1 for look in looks)
    rows = []
    for x in groups(figure):
        for look in looks:
            if x in look.line.x:
                name = _said(look.line.name, language)
                given = look.line.y[look.line.x.index(x)]
                rows.append((name if alone else f"{label(x)} · {name}", given, _style(look)))
    shown = rows[:MOST_BARS]
    wide = min(max((cell_len(name) for name, _, _ in shown), default=0), width // 2)
    lines = [Styled(f"  {_said(figure.y, language)} · {_said(figure.x, language)}", style="dim")]
    for name, value, style in shown:
        title = Styled(name)
        title.truncate(wide, overflow="ellipsis", pad=True)
        drawn = bar(upward.place(value), width - wide - 14)
        lines.append(Styled.assemble("  ", title, " ", (drawn, style), f" {digits.number(value)}"))
    return lines


def bar(fraction: float | None, width: int = 6) -> str:
    """A bar in eighths of a cell, always `width` cells.

    >>> bar(0.5, 4), bar(None, 2)
    ('██  ', '  ')
    """
    if fraction is None or not isfinite(fraction):
        return " " * width
    full, rest = divmod(round(min(max(fraction, 0.0), 1.0) * width * 8), 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def sparks(values: Sequence[float | None]) -> str:
    """A cell for each value, from a low block for 0 to a full one for 1; a dot where there is none.

    >>> sparks([0.0, 0.5, 1.0, None])
    '▁▅█·'
    """
    known = [None if value is None or not isfinite(value) else min(max(value, 0.0), 1.0) for value in values]
    return "".join("·" if value is None else _HEIGHTS[round(value * (len(_HEIGHTS) - 1))] for value in known)


def _heatmap(heatmap: Heatmap, language: Language, width: int) -> list[Styled]:
    values = value_axis(heatmap)
    left = max(len(label(y)) for y in heatmap.ys)
    cell = max(min((width - left - 3) // len(heatmap.xs), 6), 1)
    crossed = {(round(row), round(column)) for column, row in boundary(heatmap)}
    lines = [Styled(_said(heatmap.y, language), style="dim")]
    for i in reversed(range(len(heatmap.ys))):
        line = Styled(f"{label(heatmap.ys[i]):>{left}} ", style="dim")
        for j, value in enumerate(heatmap.values[i]):
            part = values.place(value)
            shade = " " if part is None else _SHADES[min(int(part * len(_SHADES)), len(_SHADES) - 1)]
            text = "○".center(cell, shade) if (i, j) in crossed else shade * cell
            colour = "" if part is None else palette.ramp_colour(part)
            seen = palette.ink_on(colour) if colour and (i, j) in crossed else colour
            line.append(text, style=f"{seen} on {colour}" if colour else "")
        lines.append(line)
    names = [(j * cell + cell // 2, label(x)) for j, x in enumerate(heatmap.xs)]
    marks, _ = _spaced(names, cell * len(heatmap.xs))
    lines += [Styled(" " * (left + 1) + text, style="dim") for text in (marks, _said(heatmap.x, language))]
    step = (values.high - values.low) / len(_SHADES)
    middles = [digits.number(values.low + (n + 0.5) * step, 2) for n in range(len(_SHADES))]
    scale = "  ".join(f"[{shade * 2}] {middle}" for shade, middle in zip(_SHADES, middles, strict=True))
    lines += [Styled(f"{' ' * (left + 1)}{line}", style="dim") for line in (_said(heatmap.value, language), scale)]
    if heatmap.boundary is not None:
        lines.append(Styled(f"{' ' * (left + 1)}○ {_said(heatmap.boundary.name, language)}"))
    return lines
