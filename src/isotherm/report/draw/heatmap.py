"""Heat maps as SVG: a cell for each pair, dark where the softmax is frozen, with the predicted boundary over them."""

from collections.abc import Sequence
from itertools import pairwise
from math import hypot

from isotherm.language import Language
from isotherm.record import Heatmap
from isotherm.report import digits
from isotherm.report.draw import palette
from isotherm.report.draw.axes import Axis, boundary, label, make, value_axis
from isotherm.report.draw.plot_area import BOTTOM, GLYPH, TOP, PlotArea, Point, said, thinned, titles, word
from isotherm.report.draw.plot_area import WIDTH as NARROW
from isotherm.report.markup import Html, join, tag

WIDTH = 760
"""The width of a picture that stands alone."""
ROW, LEAST, MOST = 34, 220, 430
"""The height of a row of cells, as long as all rows together stay between these."""
BAR = 84
"""Room for the colour bar on the right."""
FINE = 40
"""Points looked at between two points of the boundary."""
HALF = 11
"""Half the height of a cell's number, with room for the boundary beside it."""
DIGIT = 8.6
"""Room for a digit of a cell's number, which may fill the cell."""
NAMED = 160
"""Up to this many cells carry their number."""


def area(heatmap: Heatmap, width: int) -> PlotArea:
    """The plot area of a heat map. Cells are all of one size, whatever their values; labels say which is which."""
    unit = make([0.0, 1.0], log=False)
    height = TOP + BOTTOM + round(min(max(ROW * len(heatmap.ys), LEAST), MOST) * (width / WIDTH) ** 0.5)
    made = PlotArea(unit, unit, width=width, height=height)
    made.left = 10 + max(len(label(y)) for y in heatmap.ys) * GLYPH
    made.right = width - BAR
    return made


def body(heatmap: Heatmap, area: PlotArea, language: Language | None) -> Html:
    """Cells, labels, boundary and colour bar."""
    values = value_axis(heatmap)
    return join(
        _cells(heatmap, area, values),
        _labels(heatmap, area),
        titles(area, heatmap.x, heatmap.y, language),
        _boundary(heatmap, area),
        _bar(heatmap, area, values, language),
    )


def thumbnail(heatmap: Heatmap) -> Html:
    """Cells and boundary alone, without a word."""
    bare = area(heatmap, NARROW)
    bare.left, bare.right, bare.top, bare.bottom = 0, bare.width, 0, bare.height
    drawing = join(_cells(heatmap, bare, value_axis(heatmap), words=False), _boundary(heatmap, bare))
    return tag(
        "svg", drawing, viewBox=f"0 0 {bare.width} {bare.height}", preserveAspectRatio="none", aria_hidden="true"
    )


def _cell_size(heatmap: Heatmap, area: PlotArea) -> tuple[float, float]:
    return (area.right - area.left) / len(heatmap.xs), (area.bottom - area.top) / len(heatmap.ys)


def _cells(heatmap: Heatmap, area: PlotArea, values: Axis, *, words: bool = True) -> Html:
    wide, tall = _cell_size(heatmap, area)
    longest = max(len(digits.number(value, 2)) for row in heatmap.values for value in row)
    named = words and len(heatmap.xs) * len(heatmap.ys) <= NAMED and longest * DIGIT < wide
    line = _finely(heatmap, area)
    parts = []
    for i, row in enumerate(heatmap.values):
        for j, value in enumerate(row):
            x, y = area.left + j * wide, area.bottom - (i + 1) * tall
            part = values.place(value)
            colour = "none" if part is None else palette.ramp_colour(part)
            title = f"{label(heatmap.xs[j])}, {label(heatmap.ys[i])}: {digits.number(value)}"
            parts.append(_rect((x, y, wide + 0.4, tall + 0.4), colour, tag("title", title) if words else None))
            said = digits.number(value, 2)
            middle = _beside(line, (x, y, wide, tall), len(said) * DIGIT / 2) if named and part is not None else None
            if middle is not None:
                ink = "cell-dark" if palette.ink_on(colour) == palette.ON_PALE else "cell-light"
                parts.append(word(said, middle[0], middle[1] + 4, "middle", ink))
    return join(*parts)


def _finely(heatmap: Heatmap, area: PlotArea) -> list[Point]:
    """The boundary as points that lie close together."""
    wide, tall = _cell_size(heatmap, area)
    steps = [step / FINE for step in range(FINE + 1)]
    return [
        (area.left + (column + part * (to - column) + 0.5) * wide, area.bottom - (row + part * (up - row) + 0.5) * tall)
        for (column, row), (to, up) in pairwise(boundary(heatmap))
        for part in steps
    ]


def _beside(line: Sequence[Point], cell: tuple[float, float, float, float], half: float) -> Point | None:
    """The place in a cell nearest to its middle where a number this wide keeps clear of the boundary; None without one."""
    x, y, wide, tall = cell
    near = [(at, up) for at, up in line if x - half < at < x + wide + half and y - HALF < up < y + tall + HALF]
    across = [x + wide / 2, x + half + 2, x + wide - half - 2]
    upward = [y + tall / 2, y + HALF + 1, y + tall - HALF - 1]
    places = sorted(
        ((at, up) for at in across for up in upward), key=lambda it: hypot(it[0] - across[0], it[1] - upward[0])
    )
    clear = (it for it in places if all(abs(at - it[0]) >= half + 3 or abs(up - it[1]) >= HALF for at, up in near))
    return next(clear, None)


def _rect(place: tuple[float, float, float, float], colour: str, title: Html | None = None) -> Html:
    x, y, width, height = (f"{length:.1f}" for length in place)
    return tag("rect", title, fill=colour, x=x, y=y, width=width, height=height)


def _labels(heatmap: Heatmap, area: PlotArea) -> Html:
    wide, tall = _cell_size(heatmap, area)
    every = max(1, -(-16 // int(tall))) if tall >= 1 else 16
    across = thinned([(area.left + (j + 0.5) * wide, label(x)) for j, x in enumerate(heatmap.xs)])
    upward = [(area.bottom - (i + 0.5) * tall + 4, label(y)) for i, y in enumerate(heatmap.ys) if i % every == 0]
    return join(
        *(word(text, x, area.bottom + 18, "middle") for x, text in across),
        *(word(text, area.left - 6, y, "end") for y, text in upward),
    )


def _boundary(heatmap: Heatmap, area: PlotArea) -> Html | None:
    """The predicted curve: white with a dark edge, so that it shows on any colour."""
    wide, tall = _cell_size(heatmap, area)
    points = [
        f"{area.left + (column + 0.5) * wide:.1f} {area.bottom - (row + 0.5) * tall:.1f}"
        for column, row in boundary(heatmap)
    ]
    return _edged("M" + "L".join(points)) if len(points) > 1 else None


def boundary_sign() -> Html:
    """The boundary's sign in a legend."""
    return _edged("M0 7h26")


def _edged(path: str) -> Html:
    return join(tag("path", d=path, class_="edge"), tag("path", d=path, class_="boundary"))


def _bar(heatmap: Heatmap, area: PlotArea, values: Axis, language: Language | None) -> Html:
    left, steps = area.right + 16, 24
    tall = (area.bottom - area.top) / steps
    parts = []
    for step in range(steps):
        place = (left, area.bottom - (step + 1) * tall, 12, tall + 0.4)
        parts.append(_rect(place, palette.ramp_colour(step / (steps - 1))))
    for tick in values.ticks:
        part = values.place(tick)
        if part is not None:
            parts.append(word(values.label(tick), left + 17, area.bottom - part * (area.bottom - area.top) + 4))
    return join(*parts, said(heatmap.value, language, x=area.width - 2, y=15, text_anchor="end", class_="loud"))
