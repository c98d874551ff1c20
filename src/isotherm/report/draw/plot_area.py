"""What every SVG drawing is made of: an area with axes, words, markers, and a legend below.

Inside a page a drawing has both languages, and the page shows one; a file has one language, its own colours and a legend.
"""

from collections.abc import Sequence
from math import inf

from rich.cells import cell_len

from isotherm.language import LANGUAGES, Language, Text
from isotherm.printable import printable
from isotherm.report.draw import palette
from isotherm.report.draw.axes import Axis
from isotherm.report.markup import Html, drawn, html, join, tag

WIDTH, HEIGHT = 480, 300
TOP, RIGHT, BOTTOM = 32, 14, 48
LETTER = 5.9
"""The width of a letter of a file's legend, roughly."""
GLYPH = 9.3
"""Room for a letter of an axis, roughly: on a phone, where a drawing is narrow, the page sets letters a third larger."""

Point = tuple[float, float]


class PlotArea:
    """A rectangle to draw in; `x` and `y` say where values lie in it."""

    def __init__(self, across: Axis, upward: Axis, *, width: int = WIDTH, height: int = HEIGHT) -> None:
        self.across, self.upward = across, upward
        widest = max((len(upward.label(tick)) for tick in upward.ticks), default=1)
        self.left, self.right = 10 + widest * GLYPH, width - RIGHT
        self.top, self.bottom = TOP, height - BOTTOM
        self.width, self.height = width, height

    def x(self, value: float | None) -> float | None:
        """The horizontal place of a value."""
        part = self.across.place(value)
        return None if part is None else self.left + part * (self.right - self.left)

    def y(self, value: float | None) -> float | None:
        """The vertical place of a value."""
        part = self.upward.place(value)
        return None if part is None else self.bottom - part * (self.bottom - self.top)


def page_part(body: Html, area: PlotArea, name: str) -> Html:
    """A drawing inside a page, which has the style and the caption `name`-caption."""
    return tag("svg", body, viewBox=f"0 0 {area.width} {area.height}", role="img", aria_labelledby=f"{name}-caption")


def file(
    body: Html, size: tuple[int, int], caption: Text, language: Language, entries: Sequence[tuple[Html, Text]]
) -> Html:
    """A drawing as a file, with its style, paper, caption and legend."""
    width, height = size
    key, more = _legend(entries, width, language)
    return tag(
        "svg",
        tag("title", caption.to(language)),
        Html(f"<style>{palette.file_style()}</style>"),
        tag("rect", width=width, height=height + more, class_="paper"),
        body,
        moved(key, 0, height),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height + more}",
        width=width,
        height=height + more,
        role="img",
        lang="zh-CN" if language == "zh" else "en",
    )


def _legend(entries: Sequence[tuple[Html, Text]], width: int, language: Language) -> tuple[Html, int]:
    """Each sign with its name, in as many lines as it takes, and the height of all."""
    parts, x, y = [], 12.0, 0
    for sign, text in entries:
        name = printable(text.to(language), 96)
        room = 50 + cell_len(name) * (LETTER + 0.3)
        if x > 12 and x + room > width:
            x, y = 12.0, y + 18
        parts.append(moved(join(sign, tag("text", drawn(name), x=33, y=11, class_="loud")), x, y))
        x += room
    return join(*parts), y + 26 if parts else 0


def moved(body: Html, x: float, y: float) -> Html:
    """The same drawing elsewhere."""
    return tag("g", body, transform=f"translate({fixed(x)} {fixed(y)})")


def word(text: str, x: float, y: float, anchor: str | None = None, kind: str = "word") -> Html:
    """A label at a place."""
    return tag("text", text, x=fixed(x), y=fixed(y), text_anchor=anchor, class_=kind)


def said(text: Text, language: Language | None, **attributes: object) -> Html:
    """A `<text>` in one language or in both; once where both say the same."""
    if language is not None or text.en == text.zh:
        return tag("text", drawn(text.to(language or "en")), **attributes)
    names = {"en": "en", "zh": "zh-CN"}
    return join(*(tag("text", drawn(text.to(code)), lang=names[code], **attributes) for code in LANGUAGES))


def titles(area: PlotArea, x: Text, y: Text, language: Language | None) -> Html:
    """The names of the axes: y lies flat above its axis, x below its own."""
    return join(
        said(y, language, x=2, y=15, class_="loud"),
        said(x, language, x=fixed(area.right), y=fixed(area.height - 7), text_anchor="end", class_="loud"),
    )


def within(place: float, label: str, width: float) -> float:
    """Where the middle of a tick's label stands: at its tick, or as far left of it as the drawing asks."""
    return min(place, width - len(label) * GLYPH / 2 - 2)


def thinned(ticks: Sequence[tuple[float, str]], width: float = inf) -> list[tuple[float, str]]:
    """The ticks whose labels, kept within this width, do not run into one another."""
    kept: list[tuple[float, str]] = []
    for place, label in sorted(ticks):
        if not kept or within(place, label, width) - kept[-1][0] > (len(label) + len(kept[-1][1])) / 2 * GLYPH + 5:
            kept.append((place, label))
    return kept


def fixed(value: float) -> Html:
    """A length, with one decimal at most."""
    return html(f"{value:.1f}".removesuffix(".0"))
