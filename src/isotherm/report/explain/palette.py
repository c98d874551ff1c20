"""The colours of curves: Okabe and Ito's set, which every colour vision tells apart, in an order for light and for dark.

Colour never stands alone: measured curves differ by marker, predicted ones by dash, and a document's numbers are hollow.
"""

from typing import Final, Literal

Theme = Literal["light", "dark"]
SERIES: Final[dict[Theme, tuple[str, ...]]] = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#b8860b", "#56b4e9", "#5b5f66"),
    "dark": ("#56b4e9", "#e69f00", "#2bbf94", "#f0e442", "#d55e00", "#b9bdc4"),
}
DOCUMENT: Final[dict[Theme, str]] = {"light": "#a8467f", "dark": "#cc79a7"}
INK: Final[dict[Theme, str]] = {"light": "#1b1d22", "dark": "#e9e9ea"}
QUIET: Final[dict[Theme, str]] = {"light": "#5d626c", "dark": "#a0a5af"}
RULE: Final[dict[Theme, str]] = {"light": "#dfe2e7", "dark": "#31353d"}
PAPER: Final[dict[Theme, str]] = {"light": "#ffffff", "dark": "#14161a"}
DASHES: Final[tuple[str, ...]] = ("7 4", "2 3", "9 3 2 3", "12 4", "4 2 1 2 1 2", "3 6")
MARKERS: Final[tuple[str, ...]] = ("circle", "square", "triangle", "diamond", "wedge", "cross")
DOTTED: Final = "1 4"


def colours(theme: Theme, scope: str = "") -> str:
    """Style rules of one theme for everything drawn; `scope` is put before each."""
    named = {f".c{number}": colour for number, colour in enumerate(SERIES[theme])}
    named |= {".c-doc": DOCUMENT[theme], ".c-ink": INK[theme]}
    rules = []
    for name, colour in named.items():
        rules.append(f"{scope}{name}.stroke{{stroke:{colour}}}{scope}{name}.solid{{fill:{colour}}}")
    rules.append(f"{scope}.tick{{stroke:{RULE[theme]}}}{scope}.frame{{stroke:{QUIET[theme]}}}")
    rules.append(f"{scope}.paper{{fill:{PAPER[theme]}}}{scope}.word{{fill:{QUIET[theme]}}}")
    rules.append(f"{scope}.loud{{fill:{INK[theme]}}}")
    return "".join(rules)


SHAPES: Final = (
    ".stroke,.tick,.frame{fill:none}.curve{stroke-width:1.9;stroke-linejoin:round;stroke-linecap:round}"
    ".dashed{stroke-width:1.7;stroke-linecap:butt}.band{fill-opacity:.16}.hollow{stroke-width:1.6}"
    ".bar{stroke-width:1.3}.whisker{stroke-width:1.3}.tick{stroke-width:1}.frame{stroke-width:1}"
    "text.cell-dark{fill:#111111;font-size:10.5px}text.cell-light{fill:#ffffff;font-size:10.5px}"
    ".small{font-size:8.5px}.edge{stroke:#17181c;stroke-width:5;fill:none}"
    ".boundary{stroke:#ffffff;stroke-width:2.4;stroke-dasharray:7 4;fill:none}"
)
"""What both themes share."""


def standalone() -> str:
    """The style of a drawing in a file of its own: light, or dark where the reader's system is."""
    fonts = (
        "system-ui,-apple-system,'Segoe UI','Noto Sans','PingFang SC','Microsoft YaHei','Noto Sans CJK SC',sans-serif"
    )
    text = f"text{{font:11px {fonts}}}"
    return f"{text}{SHAPES}{colours('light')}@media(prefers-color-scheme:dark){{{colours('dark')}}}"
