"""A number for each pair as SVG: the ramp of the whole project, dark where the softmax is frozen, and the boundary on it."""

from bisect import bisect_right
from collections.abc import Sequence
from math import log

from isotherm.language import Language
from isotherm.record import Heatmap
from isotherm.report import digits, glyphs
from isotherm.report.explain.axes import Axis, make
from isotherm.report.explain.markup import Html, join, tag
from isotherm.report.explain.svg import BOTTOM, GLYPH, TOP, Frame, said, thinned, titles, whole

WIDTH, NARROW = 760, 480
"""A picture of its own, and one among others."""
ROW, LEAST, MOST = 34, 140, 430
"""How tall a row of cells is, as long as all of them stay between these."""
BAR = 74
"""Room for the colour bar on the right."""
NAMED = 160
"""Up to this many cells carry their number."""


def value_axis(heatmap: Heatmap) -> Axis:
    """From the least value to the largest; 0 to 1 where they lie in there."""
    known = [value for row in heatmap.values for value in row if value is not None]
    if known and min(known) >= 0 and max(known) <= 1:
        return make([0.0, 1.0], log=False)
    return make(known, log=False)


def draw(heatmap: Heatmap, language: Language | None = None, *, width: int = WIDTH) -> Html:
    """A heat map. Without a language: a part of the page, both languages in it. With one: a file."""
    frame = _frame(heatmap, width)
    values = value_axis(heatmap)
    body = join(
        _cells(heatmap, frame, values),
        _labels(heatmap, frame),
        titles(frame, heatmap.x, heatmap.y, language),
        _boundary(heatmap, frame),
        _bar(heatmap, frame, values, language),
    )
    return whole(body, frame, heatmap.id, heatmap.caption, language, _legend(heatmap, language) if language else None)


def thumbnail(heatmap: Heatmap) -> Html:
    """The picture alone, without a word."""
    frame = _frame(heatmap, NARROW)
    frame.left, frame.right, frame.top, frame.bottom = 0, frame.width, 0, frame.height
    body = join(_cells(heatmap, frame, value_axis(heatmap), words=False), _boundary(heatmap, frame))
    return tag("svg", body, viewBox=f"0 0 {frame.width} {frame.height}", preserveAspectRatio="none", aria_hidden="true")


def _frame(heatmap: Heatmap, width: int) -> Frame:
    """Cells stand one beside another whatever their values; labels say which is which."""
    upward = make([0.0, 1.0], log=False)
    tall = TOP + BOTTOM + round(min(max(ROW * len(heatmap.ys), LEAST), MOST) * (width / WIDTH) ** 0.5)
    frame = Frame(upward, upward, width=width, height=tall)
    plain = Axis(0, 1, False, ())
    frame.left = 12 + max(len(plain.label(y)) for y in heatmap.ys) * GLYPH
    frame.right = width - BAR
    return frame


def _cells(heatmap: Heatmap, frame: Frame, values: Axis, *, words: bool = True) -> Html:
    wide = (frame.right - frame.left) / len(heatmap.xs)
    tall = (frame.bottom - frame.top) / len(heatmap.ys)
    longest = max(len(digits.number(value, 2)) for row in heatmap.values for value in row)
    named = words and len(heatmap.xs) * len(heatmap.ys) <= NAMED and longest * GLYPH + 3 < wide
    plain = Axis(0, 1, False, ())
    parts = []
    for i, row in enumerate(heatmap.values):
        for j, value in enumerate(row):
            x, y = frame.left + j * wide, frame.bottom - (i + 1) * tall
            part = values.place(value)
            colour = "none" if part is None else glyphs.ramp_colour(part)
            pair = f"{plain.label(heatmap.xs[j])}, {plain.label(heatmap.ys[i])}: {digits.number(value)}"
            at = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{wide + 0.4:.1f}", "height": f"{tall + 0.4:.1f}"}
            parts.append(tag("rect", tag("title", pair) if words else None, fill=colour, **at))
            if named and part is not None:
                ink = "cell-dark" if glyphs.ink_on(colour) == "#111111" else "cell-light"
                middle = {"x": f"{x + wide / 2:.1f}", "y": f"{y + tall / 2 + 4:.1f}", "text_anchor": "middle"}
                parts.append(tag("text", digits.number(value, 2), class_=ink, **middle))
    return join(*parts)


def _labels(heatmap: Heatmap, frame: Frame) -> Html:
    plain = Axis(0, 1, False, ())
    wide = (frame.right - frame.left) / len(heatmap.xs)
    tall = (frame.bottom - frame.top) / len(heatmap.ys)
    every = max(1, -(-16 // int(tall))) if tall >= 1 else 16
    across = [(frame.left + (j + 0.5) * wide, plain.label(x)) for j, x in enumerate(heatmap.xs)]
    parts = []
    for x, label in thinned(across):
        parts.append(
            tag("text", label, x=f"{x:.1f}", y=f"{frame.bottom + 16:.1f}", text_anchor="middle", class_="word")
        )
    for i, y in enumerate(heatmap.ys):
        if i % every == 0:
            place = frame.bottom - (i + 0.5) * tall + 4
            at = {"x": f"{frame.left - 6:.1f}", "y": f"{place:.1f}", "text_anchor": "end"}
            parts.append(tag("text", plain.label(y), class_="word", **at))
    return join(*parts)


def _boundary(heatmap: Heatmap, frame: Frame) -> Html | None:
    """The predicted curve, between the middles of cells: white with a dark edge, to be seen on any colour."""
    line = heatmap.boundary
    if line is None:
        return None
    wide = (frame.right - frame.left) / len(heatmap.xs)
    tall = (frame.bottom - frame.top) / len(heatmap.ys)
    points = []
    for x, y in zip(line.x, line.y, strict=True):
        i, j = (None if y is None else rank(heatmap.ys, y)), rank(heatmap.xs, x)
        if i is not None and j is not None:
            points.append(f"{frame.left + (j + 0.5) * wide:.1f} {frame.bottom - (i + 0.5) * tall:.1f}")
    if len(points) < 2:
        return None
    path = "M" + "L".join(points)
    return join(tag("path", d=path, class_="edge"), tag("path", d=path, class_="boundary"))


def rank(marks: Sequence[float], value: float) -> float | None:
    """Where a value stands among the marks, counted from 0, between them by proportion; None outside.

    >>> rank((16, 32, 64), 32), rank((1, 10), 1e3) is None
    (1.0, True)
    """
    powers = all(mark > 0 for mark in marks) and value > 0
    scale = [log(mark) if powers else mark for mark in marks]
    at = log(value) if powers else value
    if len(scale) < 2:
        return None
    low = min(max(bisect_right(scale, at) - 1, 0), len(scale) - 2)
    place = low + (at - scale[low]) / (scale[low + 1] - scale[low])
    return place if -0.5 <= place <= len(scale) - 0.5 else None


def _bar(heatmap: Heatmap, frame: Frame, values: Axis, language: Language | None) -> Html:
    left, steps = frame.right + 16, 48
    tall = (frame.bottom - frame.top) / steps
    parts = []
    for step in range(steps):
        colour = glyphs.ramp_colour(step / (steps - 1))
        y = frame.bottom - (step + 1) * tall
        parts.append(tag("rect", x=f"{left:.1f}", y=f"{y:.1f}", width=12, height=f"{tall + 0.4:.1f}", fill=colour))
    for tick in values.ticks:
        part = values.place(tick)
        if part is not None:
            y = frame.bottom - part * (frame.bottom - frame.top)
            parts.append(tag("text", values.label(tick), x=f"{left + 17:.1f}", y=f"{y + 4:.1f}", class_="word"))
    at = {"x": frame.width - 2, "y": 13, "text_anchor": "end", "class_": "loud"}
    return join(*parts, said(heatmap.value, language, **at))


def _legend(heatmap: Heatmap, language: Language) -> tuple[Html, int]:
    if heatmap.boundary is None:
        return Html(""), 0
    label = tag("text", heatmap.boundary.name.to(language), x=45, y=11, class_="loud")
    return join(sign(), label), 26


def sign() -> Html:
    """The boundary's sign in a legend."""
    return join(tag("path", d="M0 7h26", class_="edge"), tag("path", d="M0 7h26", class_="boundary"))
