"""Signs and colours that mean the same in every view.

One ramp serves all statistics: dark indigo is a sharp, frozen softmax, pale straw an open one. Its lightness rises
evenly (OKLCH 0.28 to 0.93), so that it reads in grey and with any colour vision; states sit on it where they belong,
and each has a sign of its own.
"""

from math import isfinite
from typing import Final

from isotherm.record import Severity, State

STATE_GLYPHS: Final[dict[State, str]] = {
    "balanced": "●",
    "saturated": "▲",
    "diffuse": "≈",
    "sink": "◆",
    "invalid": "✖",
    "empty": "·",
}
STATE_COLOURS: Final[dict[State, str]] = {
    "balanced": "#92bfb6",
    "saturated": "#2f2a66",
    "diffuse": "#efdf9b",
    "sink": "#a486b8",
    "invalid": "#c4442f",
    "empty": "#9aa0a6",
}
SEVERITY_GLYPHS: Final[dict[Severity, str]] = {"error": "✖", "warning": "▲", "note": "•"}
SEVERITY_STYLES: Final[dict[Severity, str]] = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
RAMP: Final[tuple[str, ...]] = (
    "#261c59",
    "#2d3478",
    "#315290",
    "#37719f",
    "#3f8fa6",
    "#5baba6",
    "#8dc498",
    "#cfd587",
    "#fae996",
)
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def ramp_colour(fraction: float) -> str:
    """The ramp's colour at a place from 0 (sharp) to 1 (open), between its stops.

    >>> ramp_colour(0.0) == RAMP[0], ramp_colour(1.0) == RAMP[-1]
    (True, True)
    """
    place = min(max(fraction, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(place), len(RAMP) - 2)
    start, end = _channels(RAMP[low]), _channels(RAMP[low + 1])
    mixed = (round(a + (b - a) * (place - low)) for a, b in zip(start, end, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def ink_on(colour: str) -> str:
    """Black or white, whichever reads on this colour."""
    red, green, blue = _channels(colour)
    return "#111111" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


def bar(fraction: float | None, width: int = 6) -> str:
    """A bar in eighths of a cell, always `width` cells.

    >>> bar(0.5, 4), bar(None, 2)
    ('██  ', '  ')
    """
    if fraction is None or not isfinite(fraction):
        return " " * width
    eighths = round(min(max(fraction, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
