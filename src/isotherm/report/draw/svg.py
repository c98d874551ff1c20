"""Figures as SVG: curves with their bands, bars with their intervals."""

from collections.abc import Iterator, Sequence
from math import isfinite

from isotherm.language import Language, Text
from isotherm.record import Figure, Heatmap
from isotherm.report import digits
from isotherm.report.draw import bars, heatmap
from isotherm.report.draw.axes import axes
from isotherm.report.draw.plot_area import (
    HEIGHT,
    WIDTH,
    PlotArea,
    Point,
    file,
    fixed,
    moved,
    page_part,
    said,
    thinned,
    titles,
    within,
    word,
)
from isotherm.report.draw.series import Series, legend, series
from isotherm.report.markup import Html, join, tag

MANY = 26
"""Curves with more points than this carry a marker at some of them only."""
ASIDE = 7
"""How far apart the whiskers of two series stand at the same place."""
PANELS = 3
"""Figures of a sheet that stand side by side."""


def draw(picture: Figure | Heatmap, language: Language | None = None, *, small: bool = False) -> Html:
    """A picture. Without a language: a part of a page, both languages in it. With one: a file.

    A small heat map is as wide as a figure.
    """
    if isinstance(picture, Heatmap):
        area = heatmap.area(picture, WIDTH if small else heatmap.WIDTH)
        body = heatmap.body(picture, area, language)
    else:
        area = PlotArea(*axes(picture))
        body = _body(picture, area, language)
    if language is None:
        return page_part(body, area, picture.id)
    return file(body, (area.width, area.height), picture.caption, language, signs(picture))


def sheet(figures: Sequence[Figure], title: Text, language: Language) -> Html:
    """Figures with the same lines as one file: side by side, each under its caption, with one legend."""
    head, above = 30, 20 if len(figures) > 1 else 0
    columns, rows = min(len(figures), PANELS), -(-len(figures) // PANELS)
    parts = [said(title, language, x=12, y=18, class_="loud title")]
    for number, figure in enumerate(figures):
        x, y = number % PANELS * WIDTH, head + number // PANELS * (HEIGHT + above)
        if above:
            parts.append(said(figure.caption, language, x=x + 12, y=y + 13, class_="word"))
        parts.append(moved(_body(figure, PlotArea(*axes(figure)), language), x, y + above))
    size = columns * WIDTH, head + rows * (HEIGHT + above)
    return file(join(*parts), size, title, language, signs(figures[0]) if figures else [])


def signs(picture: Figure | Heatmap) -> list[tuple[Html, Text]]:
    """The legend: each sign, 28 wide and 14 tall, and what it means."""
    if isinstance(picture, Heatmap):
        return [] if picture.boundary is None else [(heatmap.boundary_sign(), picture.boundary.name)]
    return [(_swatch(look, picture.bars), name) for look, name in legend(picture)]


def _body(figure: Figure, area: PlotArea, language: Language | None) -> Html:
    looks = series(figure)
    if figure.bars:
        marks, ticks = bars.draw(figure, looks, area), bars.labels(figure, area)
    else:
        measured_first = sorted(looks, key=lambda look: look.line.source != "measured")
        alone = [look for look in looks if not look.joined and look.line.low is not None]
        if any(look.line.source == "predicted" for look in looks):
            alone = []  # beside its prediction, a point must lie where it is
        places = {id(look): ASIDE * (number - (len(alone) - 1) / 2) for number, look in enumerate(alone)}
        marks = join(*(_curve(look, area, places.get(id(look), 0.0)) for look in measured_first))
        ticks = [(place, area.across.label(tick)) for tick in area.across.ticks if (place := area.x(tick)) is not None]
    return join(_grid(area, thinned(ticks, area.width)), titles(area, figure.x, figure.y, language), marks)


def _grid(area: PlotArea, ticks: Sequence[tuple[float, str]]) -> Html:
    parts = []
    for tick in area.upward.ticks:
        y = area.y(tick)
        if y is not None and area.top - 1 <= y <= area.bottom + 1:
            parts.append(tag("path", d=f"M{fixed(area.left)} {fixed(y)}H{fixed(area.right)}", class_="tick"))
            parts.append(word(area.upward.label(tick), area.left - 6, y + 4, "end"))
    for x, label in ticks:
        parts.append(tag("path", d=f"M{fixed(x)} {fixed(area.bottom)}v4", class_="frame"))
        parts.append(word(label, within(x, label, area.width), area.bottom + 18, "middle"))
    base = f"M{fixed(area.left)} {fixed(area.bottom)}H{fixed(area.right)}"
    return join(*parts, tag("path", d=base, class_="frame"))


def _curve(look: Series, area: PlotArea, aside: float = 0.0) -> Html:
    """A line with its band and markers; points that are not joined have whiskers, and lie `aside` of one another."""
    line = look.line
    points = [_moved(_at(area, x, y), aside) for x, y in zip(line.x, line.y, strict=True)]
    parts: list[Html | None] = [_band(look, area) if look.joined else _whiskers(look, area, aside)]
    path = "".join(_path(stretch) for stretch in _stretches(points) if len(stretch) > 1) if look.joined else ""
    if path:
        kind = "stroke curve" if look.dash is None else "stroke curve dashed"
        parts.append(tag("path", d=path, class_=f"{look.colour_class} {kind}", stroke_dasharray=look.dash))
    if look.marker is not None or not path:
        every = 1 if len(points) <= MANY else -(-len(points) // 12)
        hollow = line.source != "measured"
        for number, place in enumerate(points):
            if place is not None and number % every == 0:
                title = f"{digits.number(line.x[number], 4)}, {digits.number(line.y[number], 4)}"
                parts.append(_mark(look.marker or "cross", place, look.colour_class, hollow=hollow, title=title))
    return join(*parts)


def _band(look: Series, area: PlotArea) -> Html | None:
    line = look.line
    if line.low is None or line.high is None:
        return None
    low = [_at(area, x, y) for x, y in zip(line.x, line.low, strict=True)]
    high = [_at(area, x, y) for x, y in zip(line.x, line.high, strict=True)]
    known = [None not in pair for pair in zip(low, high, strict=True)]
    under = _stretches([point if both else None for point, both in zip(low, known, strict=True)])
    over = _stretches([point if both else None for point, both in zip(high, known, strict=True)])
    path = "".join(f"{_path([*start, *end[::-1]])}Z" for start, end in zip(under, over, strict=True))
    return tag("path", d=path, class_=f"{look.colour_class} solid band") if path else None


def _whiskers(look: Series, area: PlotArea, aside: float) -> Html | None:
    line = look.line
    if line.low is None or line.high is None:
        return None
    path = ""
    for x, low, high in zip(line.x, line.low, line.high, strict=True):
        below, above = _moved(_at(area, x, low), aside), _moved(_at(area, x, high), aside)
        if below is not None and above is not None:
            path += f"{_path([below, above])}m-3 0h6M{fixed(below[0] - 3)} {fixed(below[1])}h6"
    return tag("path", d=path, class_=f"{look.colour_class} stroke whisker") if path else None


def _moved(point: Point | None, aside: float) -> Point | None:
    return None if point is None else (point[0] + aside, point[1])


def _at(area: PlotArea, x: float | None, y: float | None) -> Point | None:
    across, upward = area.x(x), area.y(y)
    return None if across is None or upward is None or not isfinite(across + upward) else (across, upward)


def _stretches(points: Sequence[Point | None]) -> Iterator[list[Point]]:
    """Points that follow one another without a gap."""
    stretch: list[Point] = []
    for point in [*points, None]:
        if point is not None:
            stretch.append(point)
        elif stretch:
            yield stretch
            stretch = []


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{fixed(x)} {fixed(y)}" for x, y in points)


_SHAPES = {
    "square": (-3, -3, "h6v6h-6z"),
    "triangle": (0, -4.4, "l4 7h-8z"),
    "diamond": (0, -4.4, "l4.4 4.4l-4.4 4.4l-4.4 -4.4z"),
    "wedge": (0, 4.4, "l4 -7h-8z"),
    "cross": (-3, -3, "l6 6m0 -6l-6 6"),
}
"""Each marker: where its path starts, from the centre, and the path."""


def _mark(marker: str, place: Point, colour: str, *, hollow: bool = False, title: str = "") -> Html:
    """One marker; hollow for numbers of a document."""
    x, y = place
    kind = f"{colour} {'stroke hollow' if hollow or marker == 'cross' else 'solid'}"
    inner = tag("title", title) if title else None
    if marker == "circle":
        return tag("circle", inner, cx=fixed(x), cy=fixed(y), r="3.2", class_=kind)
    right, down, shape = _SHAPES[marker]
    return tag("path", inner, d=f"M{fixed(x + right)} {fixed(y + down)}{shape}", class_=kind)


def _swatch(look: Series, bars: bool) -> Html:
    colour = look.colour_class
    if bars:
        return tag("rect", x=6, y=2, width=13, height=10, **look.outline)
    stem = tag("path", d="M0 7h26", class_=f"{colour} stroke curve", stroke_dasharray=look.dash)
    return join(
        stem if look.joined else None,
        _mark(look.marker, (13, 7), colour, hollow=look.line.source != "measured") if look.marker else None,
    )
