"""Colours, dashes and markers of everything drawn.

Lines have Okabe and Ito's colours, which every colour vision tells apart, in an order for light and for dark paper, and two
more for figures with many lines.
Colour never stands alone: measured lines differ by marker, predicted ones by dash, and a document's numbers are hollow.

Statistics share one ramp: dark indigo is a sharp, frozen softmax, pale straw an open one. Its lightness rises evenly
(OKLCH 0.28 to 0.93), so that it reads in grey and with any colour vision.
"""

from typing import Final, Literal

from isotherm.record import State

Theme = Literal["light", "dark"]
SERIES: Final[dict[Theme, tuple[str, ...]]] = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#b8860b", "#56b4e9", "#5b5f66", "#5a3d99", "#7d4b32"),
    "dark": ("#56b4e9", "#e69f00", "#2bbf94", "#f0e442", "#d55e00", "#b9bdc4", "#a996ee", "#c9a287"),
}
DOCUMENT: Final[dict[Theme, str]] = {"light": "#a8467f", "dark": "#cc79a7"}
INK: Final[dict[Theme, str]] = {"light": "#1b1d22", "dark": "#e9e9ea"}
QUIET: Final[dict[Theme, str]] = {"light": "#5d626c", "dark": "#a0a5af"}
RULE: Final[dict[Theme, str]] = {"light": "#dfe2e7", "dark": "#31353d"}
PAPER: Final[dict[Theme, str]] = {"light": "#ffffff", "dark": "#14161a"}
DASHES: Final[tuple[str, ...]] = ("7 4", "2 3", "9 3 2 3", "12 4", "4 2 1 2 1 2", "3 6")
MARKERS: Final[tuple[str, ...]] = ("circle", "square", "triangle", "diamond", "wedge", "cross")
DOTTED: Final = "1 4"
ON_PALE, ON_DEEP = "#17181c", "#ffffff"
"""Letters on a pale and on a deep colour."""
RAMP: Final = ("#261c59", "#2d3478", "#315290", "#37719f", "#3f8fa6", "#5baba6", "#8dc498", "#cfd587", "#fae996")
STATE_COLOURS: Final[dict[State, str]] = {
    "balanced": "#92bfb6",
    "saturated": "#2f2a66",
    "diffuse": "#efdf9b",
    "sink": "#a486b8",
    "invalid": "#c4442f",
    "empty": "#9aa0a6",
}


def ramp_colour(fraction: float) -> str:
    """The ramp's colour from 0 (sharp) to 1 (open), interpolated between its stops.

    >>> ramp_colour(0.0) == RAMP[0], ramp_colour(1.0) == RAMP[-1]
    (True, True)
    """
    place = min(max(fraction, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(place), len(RAMP) - 2)
    start, end = _channels(RAMP[low]), _channels(RAMP[low + 1])
    mixed = (round(a + (b - a) * (place - low)) for a, b in zip(start, end, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def ink_on(colour: str) -> str:
    """The colour of letters that can be read on this one."""
    red, green, blue = _channels(colour)
    return ON_PALE if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else ON_DEEP


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _colours(theme: Theme, scope: str = "") -> str:
    """CSS of one theme; `scope` is put before each selector."""
    named = {f".c{number}": colour for number, colour in enumerate(SERIES[theme])}
    named |= {".c-doc": DOCUMENT[theme], ".c-ink": INK[theme]}
    rules = [
        f"{scope}{name}.stroke{{stroke:{colour}}}{scope}{name}.solid{{fill:{colour}}}" for name, colour in named.items()
    ]
    rules.append(f"{scope}.tick{{stroke:{RULE[theme]}}}{scope}.frame{{stroke:{QUIET[theme]}}}")
    rules.append(f"{scope}.paper{{fill:{PAPER[theme]}}}{scope}.word{{fill:{QUIET[theme]}}}")
    rules.append(f"{scope}.loud{{fill:{INK[theme]}}}")
    return "".join(rules)


_SHAPES: Final = (
    ".stroke,.tick,.frame{fill:none}.curve{stroke-width:1.9;stroke-linejoin:round;stroke-linecap:round}"
    ".dashed{stroke-width:1.7;stroke-linecap:butt}.band{fill-opacity:.16}.hollow{stroke-width:1.6}"
    ".title{font-weight:600}.bar{stroke-width:1.3}.whisker{stroke-width:1.3}.tick{stroke-width:1}.frame{stroke-width:1}"
    f"text.cell-dark{{fill:{ON_PALE}}}text.cell-light{{fill:{ON_DEEP}}}"
    f"tspan.small{{font-size:.77em}}.edge{{stroke:{ON_PALE};stroke-width:5;fill:none}}"
    f".boundary{{stroke:{ON_DEEP};stroke-width:2.4;stroke-dasharray:7 4;fill:none}}"
)


def page_style() -> str:
    """The style of drawings inside a page: its theme is an attribute of the root, and paper is always light."""
    dark = _colours("dark", '[data-theme="dark"] ')
    return f"{_SHAPES}{_colours('light')}{dark}@media print{{{_colours('light', ':root ')}}}"


def file_style() -> str:
    """The style of a drawing in a file of its own: light, or dark where the reader's system is."""
    fonts = (
        "system-ui,-apple-system,'Segoe UI','Noto Sans','PingFang SC','Microsoft YaHei','Noto Sans CJK SC',sans-serif"
    )
    text = f"text{{font:11px {fonts}}}"
    return f"{text}{_SHAPES}{_colours('light')}@media(prefers-color-scheme:dark){{{_colours('dark')}}}"
