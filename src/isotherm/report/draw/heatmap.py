"""Heat maps as SVG: a cell for each pair, dark where the softmax is frozen, with the predicted boundary over them."""

from isotherm.language import Language
from isotherm.record import Heatmap
from isotherm.report import digits
from isotherm.report.draw import palette
from isotherm.report.draw.axes import Axis, boundary, label, make, value_axis
from isotherm.report.draw.frame import BOTTOM, GLYPH, TOP, Frame, said, thinned, titles, word
from isotherm.report.draw.frame import WIDTH as NARROW
from isotherm.report.markup import Html, join, tag

WIDTH = 760
"""The width of a picture that stands alone."""
ROW, LEAST, MOST = 34, 140, 430
"""The height of a row of cells, as long as all rows together stay between these."""
BAR = 74
"""Room for the colour bar on the right."""
NAMED = 160
"""Up to this many cells carry their number."""


def frame(heatmap: Heatmap, width: int) -> Frame:
    """The frame of a heat map. Cells are all of one size, whatever their values; labels say which is which."""
    unit = make([0.0, 1.0], log=False)
    height = TOP + BOTTOM + round(min(max(ROW * len(heatmap.ys), LEAST), MOST) * (width / WIDTH) ** 0.5)
    made = Frame(unit, unit, width=width, height=height)
    made.left = 12 + max(len(label(y)) for y in heatmap.ys) * GLYPH
    made.right = width - BAR
    return made


def body(heatmap: Heatmap, frame: Frame, language: Language | None) -> Html:
    """Cells, labels, boundary and colour bar."""
    values = value_axis(heatmap)
    return join(
        _cells(heatmap, frame, values),
        _labels(heatmap, frame),
        titles(frame, heatmap.x, heatmap.y, language),
        _boundary(heatmap, frame),
        _bar(heatmap, frame, values, language),
    )


def thumbnail(heatmap: Heatmap) -> Html:
    """Cells and boundary alone, without a word."""
    bare = frame(heatmap, NARROW)
    bare.left, bare.right, bare.top, bare.bottom = 0, bare.width, 0, bare.height
    drawing = join(_cells(heatmap, bare, value_axis(heatmap), words=False), _boundary(heatmap, bare))
    return tag(
        "svg", drawing, viewBox=f"0 0 {bare.width} {bare.height}", preserveAspectRatio="none", aria_hidden="true"
    )


def _cell_size(heatmap: Heatmap, frame: Frame) -> tuple[float, float]:
    return (frame.right - frame.left) / len(heatmap.xs), (frame.bottom - frame.top) / len(heatmap.ys)


def _cells(heatmap: Heatmap, frame: Frame, values: Axis, *, words: bool = True) -> Html:
    wide, tall = _cell_size(heatmap, frame)
    longest = max(len(digits.number(value, 2)) for row in heatmap.values for value in row)
    named = words and len(heatmap.xs) * len(heatmap.ys) <= NAMED and longest * GLYPH + 3 < wide
    parts = []
    for i, row in enumerate(heatmap.values):
        for j, value in enumerate(row):
            x, y = frame.left + j * wide, frame.bottom - (i + 1) * tall
            part = values.place(value)
            colour = "none" if part is None else palette.ramp_colour(part)
            title = f"{label(heatmap.xs[j])}, {label(heatmap.ys[i])}: {digits.number(value)}"
            parts.append(_rect((x, y, wide + 0.4, tall + 0.4), colour, tag("title", title) if words else None))
            if named and part is not None:
                ink = "cell-dark" if palette.ink_on(colour) == palette.ON_PALE else "cell-light"
                parts.append(word(digits.number(value, 2), x + wide / 2, y + tall / 2 + 4, "middle", ink))
    return join(*parts)


def _rect(place: tuple[float, float, float, float], colour: str, title: Html | None = None) -> Html:
    x, y, width, height = (f"{length:.1f}" for length in place)
    return tag("rect", title, fill=colour, x=x, y=y, width=width, height=height)


def _labels(heatmap: Heatmap, frame: Frame) -> Html:
    wide, tall = _cell_size(heatmap, frame)
    every = max(1, -(-16 // int(tall))) if tall >= 1 else 16
    across = thinned([(frame.left + (j + 0.5) * wide, label(x)) for j, x in enumerate(heatmap.xs)])
    upward = [(frame.bottom - (i + 0.5) * tall + 4, label(y)) for i, y in enumerate(heatmap.ys) if i % every == 0]
    return join(
        *(word(text, x, frame.bottom + 16, "middle") for x, text in across),
        *(word(text, frame.left - 6, y, "end") for y, text in upward),
    )


def _boundary(heatmap: Heatmap, frame: Frame) -> Html | None:
    """The predicted curve: white with a dark edge, so that it shows on any colour."""
    wide, tall = _cell_size(heatmap, frame)
    points = [
        f"{frame.left + (column + 0.5) * wide:.1f} {frame.bottom - (row + 0.5) * tall:.1f}"
        for column, row in boundary(heatmap)
    ]
    return _edged("M" + "L".join(points)) if len(points) > 1 else None


def boundary_sign() -> Html:
    """The boundary's sign in a legend."""
    return _edged("M0 7h26")


def _edged(path: str) -> Html:
    return join(tag("path", d=path, class_="edge"), tag("path", d=path, class_="boundary"))


def _bar(heatmap: Heatmap, frame: Frame, values: Axis, language: Language | None) -> Html:
    left, steps = frame.right + 16, 48
    tall = (frame.bottom - frame.top) / steps
    parts = []
    for step in range(steps):
        place = (left, frame.bottom - (step + 1) * tall, 12, tall + 0.4)
        parts.append(_rect(place, palette.ramp_colour(step / (steps - 1))))
    for tick in values.ticks:
        part = values.place(tick)
        if part is not None:
            parts.append(word(values.label(tick), left + 17, frame.bottom - part * (frame.bottom - frame.top) + 4))
    return join(*parts, said(heatmap.value, language, x=frame.width - 2, y=13, text_anchor="end", class_="loud"))
