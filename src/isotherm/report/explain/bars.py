"""Bars as SVG: a group for each x, in it a bar for each line, in the order of the legend."""

from isotherm.record import Figure
from isotherm.report import digits
from isotherm.report.explain.axes import Axis
from isotherm.report.explain.markup import Html, join, tag
from isotherm.report.explain.series import Series
from isotherm.report.explain.svg import GLYPH, Frame, colour_class, thinned

ROOMY = 24
"""Up to this many bars carry their number."""


def groups(figure: Figure) -> list[float]:
    """The different x, in order."""
    return sorted({x for line in figure.lines for x in line.x})


def slots(figure: Figure, frame: Frame) -> list[tuple[float, str]]:
    """Where each group stands, and its label. Lines of one point each are their own labels: the legend names them."""
    xs = groups(figure)
    if len(figure.lines) > 1 and all(len(line.x) == 1 for line in figure.lines) and len(xs) == len(figure.lines):
        return []
    labels = Axis(0, 1, figure.x_log, ())
    return thinned([(_centre(frame, number, len(xs)), labels.label(x)) for number, x in enumerate(xs)])


def draw_bars(figure: Figure, looks: tuple[Series, ...], frame: Frame) -> Html:
    """Every bar, with its interval as a whisker and, where there is room, its number."""
    xs = groups(figure)
    beside = max(sum(x in look.line.x for look in looks) for x in xs) if xs else 1
    step = (frame.right - frame.left) / max(len(xs), 1)
    width = min(step * 0.8 / beside, 46)
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
    inner = max(width - 3, 1.5)
    colour = colour_class(look)
    kind = "solid" if line.source == "measured" else "stroke bar"
    text = digits.number(value, 3 if width > 4 * GLYPH else 2)
    high, low = frame.y(_one(line.high, index)), frame.y(_one(line.low, index))
    parts = [
        tag(
            "rect",
            tag("title", digits.number(value, 4)),
            x=f"{x + 1.5:.1f}",
            y=f"{min(top, base):.1f}",
            width=f"{inner:.1f}",
            height=f"{max(abs(base - top), 0.8):.1f}",
            class_=f"{colour} {kind}",
            stroke_dasharray=look.dash,
        )
    ]
    middle = x + width / 2
    if high is not None and low is not None:
        parts.append(
            tag(
                "path",
                d=f"M{middle:.1f} {high:.1f}V{low:.1f}m-3 0h6M{middle - 3:.1f} {high:.1f}h6",
                class_="c-ink stroke whisker",
            )
        )
    if named and len(text) * GLYPH < width * 1.6:
        above = min(top, base, top if high is None else high) - 4
        parts.append(tag("text", text, x=f"{middle:.1f}", y=f"{above:.1f}", text_anchor="middle", class_="loud"))
    return join(*parts)


def _one(values: tuple[float | None, ...] | None, index: int) -> float | None:
    return None if values is None else values[index]


def _centre(frame: Frame, number: int, count: int) -> float:
    return frame.left + (number + 0.5) * (frame.right - frame.left) / count
