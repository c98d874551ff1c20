"""Curves as SVG, with their bands; bars are handed on."""

from collections.abc import Iterator, Sequence
from math import isfinite

from isotherm.language import Language
from isotherm.record import Figure
from isotherm.report import digits
from isotherm.report.explain.axes import axes
from isotherm.report.explain.bars import draw_bars, slots
from isotherm.report.explain.markup import Html, join, tag
from isotherm.report.explain.series import Series, series
from isotherm.report.explain.svg import GLYPH, Frame, Point, colour_class, fixed, legend, mark, thinned, titles, whole

MANY = 26
"""Curves with more points than this carry a marker at some of them only."""


def draw(figure: Figure, language: Language | None = None) -> Html:
    """A figure. Without a language: a part of the page, both languages in it. With one: a file."""
    across, upward = axes(figure)
    frame = Frame(across, upward)
    looks = series(figure)
    if figure.bars:
        marks = draw_bars(figure, looks, frame)
        grid = _grid(frame, slots(figure, frame))
    else:
        marks = join(*(_curve(look, frame) for look in sorted(looks, key=lambda look: look.line.source != "measured")))
        ticks = [(place, across.label(tick)) for tick in across.ticks if (place := frame.x(tick)) is not None]
        grid = _grid(frame, thinned(ticks))
    body = join(grid, titles(frame, figure.x, figure.y, language), marks)
    return whole(body, frame, figure.id, figure.caption, language, legend(figure, language) if language else None)


def _grid(frame: Frame, ticks: Sequence[tuple[float, str]]) -> Html:
    parts = []
    for tick in frame.upward.ticks:
        y = frame.y(tick)
        if y is not None and frame.top - 1 <= y <= frame.bottom + 1:
            path = f"M{fixed(frame.left)} {fixed(y)}H{fixed(frame.right)}"
            label = frame.upward.label(tick)
            parts.append(tag("path", d=path, class_="tick"))
            place = {"x": fixed(frame.left - 6), "y": fixed(y + 4), "text_anchor": "end", "class_": "word"}
            parts.append(tag("text", label, **place))
    for x, label in ticks:
        path = f"M{fixed(x)} {fixed(frame.bottom)}v4"
        parts.append(tag("path", d=path, class_="frame"))
        middle = min(x, frame.width - len(label) * GLYPH / 2 - 2)
        parts.append(
            tag("text", label, x=fixed(middle), y=fixed(frame.bottom + 16), text_anchor="middle", class_="word")
        )
    base = f"M{fixed(frame.left)} {fixed(frame.bottom)}H{fixed(frame.right)}"
    return join(*parts, tag("path", d=base, class_="frame"))


def _curve(look: Series, frame: Frame) -> Html:
    line = look.line
    points = [_at(frame, x, y) for x, y in zip(line.x, line.y, strict=True)]
    parts: list[Html | None] = [_band(look, frame)]
    colour = colour_class(look)
    path = "".join(_run(run) for run in _runs(points) if len(run) > 1)
    if path:
        kind = "stroke curve" if look.dash is None else "stroke curve dashed"
        parts.append(tag("path", d=path, class_=f"{colour} {kind}", stroke_dasharray=look.dash))
    lonely = not path and look.marker is None
    if look.marker is not None or lonely:
        every = 1 if len(points) <= MANY else -(-len(points) // 12)
        hollow = line.source != "measured"
        for number, place in enumerate(points):
            if place is not None and number % every == 0:
                words = f"{digits.number(line.x[number], 4)}, {digits.number(line.y[number], 4)}"
                parts.append(mark(look.marker or "cross", place, colour, hollow=hollow, title=words))
    return join(*parts)


def _band(look: Series, frame: Frame) -> Html | None:
    line = look.line
    if line.low is None or line.high is None:
        return None
    path = ""
    pairs = [
        (_at(frame, x, low), _at(frame, x, high)) for x, low, high in zip(line.x, line.low, line.high, strict=True)
    ]
    stretch: list[tuple[Point, Point]] = []
    for under, over in [*pairs, (None, None)]:
        if under is not None and over is not None:
            stretch.append((under, over))
        elif stretch:
            path += _run([low for low, _ in stretch] + [high for _, high in stretch[::-1]]) + "Z"
            stretch = []
    colour = colour_class(look)
    return tag("path", d=path, class_=f"{colour} solid band") if path else None


def _at(frame: Frame, x: float | None, y: float | None) -> Point | None:
    across, upward = frame.x(x), frame.y(y)
    return None if across is None or upward is None or not isfinite(across + upward) else (across, upward)


def _runs(points: Sequence[Point | None]) -> Iterator[list[Point]]:
    run: list[Point] = []
    for point in points:
        if point is not None:
            run.append(point)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _run(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{fixed(x)} {fixed(y)}" for x, y in points)
