"""Bars as SVG: a group for each x, in it a bar for each line, in the order of the legend."""

from isotherm.record import Figure
from isotherm.report import digits
from isotherm.report.draw.axes import label
from isotherm.report.draw.frame import GLYPH, Frame, word
from isotherm.report.draw.series import Series
from isotherm.report.markup import Html, join, tag

ROOMY = 24
"""Up to this many bars carry their number."""


def groups(figure: Figure) -> list[float]:
    """The different x, in order."""
    return sorted({x for line in figure.lines for x in line.x})


def labels(figure: Figure, frame: Frame) -> list[tuple[float, str]]:
    """The place and the label of each group; none where each line is one bar, which the legend names."""
    xs = groups(figure)
    if len(figure.lines) > 1 and all(len(line.x) == 1 for line in figure.lines) and len(xs) == len(figure.lines):
        return []
    return [(_centre(frame, number, len(xs)), label(x)) for number, x in enumerate(xs)]


def draw(figure: Figure, looks: tuple[Series, ...], frame: Frame) -> Html:
    """Every bar, with its interval as a whisker and, where there is room, its number."""
    xs = groups(figure)
    beside = max((sum(x in look.line.x for look in looks) for x in xs), default=1)
    width = min((frame.right - frame.left) / max(len(xs), 1) * 0.8 / beside, 46)
    total = sum(len(look.line.x) for look in looks)
    parts = []
    for number, x in enumerate(xs):
        present = [look for look in looks if x in look.line.x]
        start = _centre(frame, number, len(xs)) - width * len(present) / 2
        for place, look in enumerate(present):
            parts.append(_bar(look, look.line.x.index(x), (start + place * width, width), frame, named=total <= ROOMY))
    return join(*parts)


def _bar(look: Series, index: int, span: tuple[float, float], frame: Frame, *, named: bool) -> Html | None:
    line, (x, width) = look.line, span
    value = line.y[index]
    top, base = frame.y(value), frame.y(0.0)
    base = frame.bottom if base is None else base
    if value is None or top is None:
        return None
    low, high = (None if side is None else frame.y(side[index]) for side in (line.low, line.high))
    parts = [
        tag(
            "rect",
            tag("title", digits.number(value, 4)),
            x=f"{x + 1.5:.1f}",
            y=f"{min(top, base):.1f}",
            width=f"{max(width - 3, 1.5):.1f}",
            height=f"{max(abs(base - top), 0.8):.1f}",
            **look.outline,
        )
    ]
    middle = x + width / 2
    if high is not None and low is not None:
        whisker = f"M{middle:.1f} {high:.1f}V{low:.1f}m-3 0h6M{middle - 3:.1f} {high:.1f}h6"
        parts.append(tag("path", d=whisker, class_="c-ink stroke whisker"))
    text = digits.number(value, 3 if width > 4 * GLYPH else 2)
    if named and len(text) * GLYPH < width * 1.6:
        parts.append(word(text, middle, min(top, base, top if high is None else high) - 4, "middle", "loud"))
    return join(*parts)


def _centre(frame: Frame, number: int, count: int) -> float:
    return frame.left + (number + 0.5) * (frame.right - frame.left) / count
