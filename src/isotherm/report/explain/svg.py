"""What every drawing is made of: a frame with axes, words, markers, legends. Small, plain SVG.

Inside the page both languages are drawn and the page shows one; a file has one language, its own colours and a legend.
"""

from collections.abc import Sequence

from rich.cells import cell_len

from isotherm.language import LANGUAGES, Language, Text
from isotherm.printable import printable
from isotherm.record import Figure
from isotherm.report.explain import palette
from isotherm.report.explain.axes import Axis
from isotherm.report.explain.markup import Html, drawn, html, join, tag
from isotherm.report.explain.series import PREDICTED, Series, is_paired, series

WIDTH, HEIGHT = 480, 300
TOP, RIGHT, BOTTOM = 30, 14, 44
GLYPH = 5.9
"""How wide a letter of the axis is, about."""

Point = tuple[float, float]


class Frame:
    """A rectangle to draw in, and where values stand in it."""

    def __init__(self, across: Axis, upward: Axis, *, width: int = WIDTH, height: int = HEIGHT) -> None:
        self.across, self.upward = across, upward
        widest = max((len(upward.label(tick)) for tick in upward.ticks), default=1)
        self.left, self.right = 12 + widest * GLYPH, width - RIGHT
        self.top, self.bottom = TOP, height - BOTTOM
        self.width, self.height = width, height

    def x(self, value: float | None) -> float | None:
        """The place of an x."""
        part = self.across.place(value)
        return None if part is None else self.left + part * (self.right - self.left)

    def y(self, value: float | None) -> float | None:
        """The place of a y."""
        part = self.upward.place(value)
        return None if part is None else self.bottom - part * (self.bottom - self.top)


def whole(
    body: Html, frame: Frame, name: str, caption: Text, language: Language | None, key: tuple[Html, int] | None = None
) -> Html:
    """The `<svg>` element around a drawing; a file's has its style, its paper and its caption with it."""
    if language is None:
        return tag(
            "svg", body, viewBox=f"0 0 {frame.width} {frame.height}", role="img", aria_labelledby=f"{name}-caption"
        )
    rows, more = key or (Html(""), 0)
    height = frame.height + more
    return tag(
        "svg",
        tag("title", caption.to(language)),
        Html(f"<style>{palette.standalone()}</style>"),
        tag("rect", width=frame.width, height=height, class_="paper"),
        body,
        Html(f'<g transform="translate(0 {frame.height})">{rows}</g>'),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {frame.width} {height}",
        width=frame.width,
        height=height,
        role="img",
        lang="zh-CN" if language == "zh" else "en",
    )


def said(text: Text, language: Language | None, **attributes: object) -> Html:
    """A `<text>`, in one language or in both; once where both say the same."""
    if language is not None or text.en == text.zh:
        return tag("text", drawn(text.to(language or "en")), **attributes)
    names = {"en": "en", "zh": "zh-CN"}
    return join(*(tag("text", drawn(text.to(code)), lang=names[code], **attributes) for code in LANGUAGES))


def titles(frame: Frame, x: Text, y: Text, language: Language | None) -> Html:
    """What the axes are: y above its axis, where it can be read without turning one's head, x below its own."""
    return join(
        said(y, language, x=2, y=13, class_="loud"),
        said(x, language, x=fixed(frame.right), y=fixed(frame.height - 7), text_anchor="end", class_="loud"),
    )


def thinned(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Ticks whose labels do not run into one another."""
    kept: list[tuple[float, str]] = []
    for place, label in sorted(ticks):
        if not kept or place - kept[-1][0] > (len(label) + len(kept[-1][1])) / 2 * GLYPH + 5:
            kept.append((place, label))
    return kept


def colour_class(look: Series) -> str:
    """The class that gives a curve its colour."""
    return f"c{look.colour}" if look.colour.isdigit() else f"c-{look.colour}"


def mark(marker: str, place: Point, colour: str, *, hollow: bool = False, title: str = "") -> Html:
    """One marker; hollow for numbers of a document."""
    x, y = place
    shapes = {
        "square": "M{0} {1}h6v6h-6z",
        "triangle": "M{2} {3}l4 7h-8z",
        "diamond": "M{2} {4}l4.4 4.4l-4.4 4.4l-4.4 -4.4z",
        "wedge": "M{2} {5}l4 -7h-8z",
        "cross": "M{6} {7}l6 6m0 -6l-6 6",
    }
    kind = f"{colour} {'stroke hollow' if hollow or marker == 'cross' else 'solid'}"
    inner = tag("title", title) if title else None
    if marker == "circle":
        return tag("circle", inner, cx=fixed(x), cy=fixed(y), r="3.2", class_=kind)
    path = shapes[marker].format(*map(fixed, (x - 3, y - 3, x, y - 4.4, y - 4.4, y + 4.4, x - 3, y - 3)))
    return tag("path", inner, d=path, class_=kind)


def swatch(look: Series, bars: bool = False) -> Html:
    """A curve's sign in a legend."""
    colour = colour_class(look)
    if bars:
        kind = "solid" if look.line.source == "measured" else "stroke bar"
        return tag("rect", x=6, y=2, width=13, height=10, class_=f"{colour} {kind}", stroke_dasharray=look.dash)
    stem = tag("path", d="M0 7h26", class_=f"{colour} stroke curve", stroke_dasharray=look.dash)
    dot = mark(look.marker, (13, 7), colour, hollow=look.line.source != "measured") if look.marker else None
    return join(stem, dot)


def legend(figure: Figure, language: Language) -> tuple[Html, int]:
    """The legend of a file, and how tall it is."""
    looks = [look for look in series(figure) if look.name is not None]
    rows = [(swatch(look, figure.bars), look.name.to(language)) for look in looks if look.name is not None]
    if is_paired(figure):
        rows.append((paired_sign(), PREDICTED.to(language)))
    lines = [(sign, printable(name, 96)) for sign, name in rows]
    parts, x, y = [], 12.0, 0
    for sign, name in lines:
        room = 50 + cell_len(name) * (GLYPH + 0.3)
        if x > 12 and x + room > WIDTH:
            x, y = 12.0, y + 18
        label = tag("text", drawn(name), x=33, y=11, class_="loud")
        parts.append(Html(f'<g transform="translate({fixed(x)} {y})">{sign}{label}</g>'))
        x += room
    return join(*parts), y + 26


def paired_sign() -> Html:
    """The sign of «dashed is predicted»."""
    return tag("path", d="M0 7h26", class_="c-ink stroke curve", stroke_dasharray=palette.DASHES[0])


def fixed(value: float) -> Html:
    """A length as written: tenths are enough."""
    return html(f"{value:.1f}".removesuffix(".0"))
