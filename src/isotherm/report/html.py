"""One HTML file with everything in it: opens from a disk, asks the network for nothing, stays under 500 kB.

The record travels as JSON in a block that no browser runs; the page's own script reads it and builds the document from
text, never from markup. A content security policy lets only that script and style in, by their hashes.
"""

import json
from os import PathLike
from typing import Any

from isotherm.language import Language, current
from isotherm.printable import printable
from isotherm.record import CheckRecord
from isotherm.report import glyphs, shell, words
from isotherm.report.files import write_atomically
from isotherm.report.page_words import PAGE
from isotherm.report.payload import ALPHABET, payload, size_of

LIMIT = 500_000
_SCRIPTS = (
    "core.js",
    "charts.js",
    "heatmap.js",
    "detail.js",
    "findings.js",
    "layers.js",
    "whatif.js",
    "downloads.js",
    "main.js",
)
_STYLES = ("page.css", "parts.css", "print.css")
_ESCAPES = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


def to_html(record: CheckRecord, language: Language | None = None) -> str:
    """The page as text; it opens in `language` and can be switched to the other."""
    opening = language or current()
    title = f"{printable(record.model.name, 80)} · isotherm"
    fixed = _vocabulary() | {"language": opening}
    empty = shell.fill(
        "page/page.html",
        style="\n".join(shell.asset(f"page/{name}") for name in _STYLES),
        script=shell.script([shell.asset(f"page/{name}") for name in _SCRIPTS]),
        title=title,
        language=opening,
    )
    room = LIMIT - len(empty.encode()) - size_of(fixed) - 4000
    for _ in range(12):
        page = empty.replace(shell.MARK, _embedded(fixed | payload(record, room)))
        if len(page.encode()) <= LIMIT:
            break
        room = room * 3 // 4
    return page


def write_html(record: CheckRecord, path: str | PathLike[str], language: Language | None = None) -> None:
    """Write the page: whole or not at all."""
    write_atomically(path, to_html(record, language))


def _embedded(data: dict[str, Any]) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)
    return text.encode("utf-8", "replace").decode("utf-8")


def _vocabulary() -> dict[str, Any]:
    """Words, signs and colours: defined in Python, once, for every view."""
    states = {
        state: {"glyph": glyphs.STATE_GLYPHS[state], "colour": glyphs.STATE_COLOURS[state], "name": [text.en, text.zh]}
        for state, text in words.STATES.items()
    }
    statistics = [
        {
            "key": it.key,
            "name": [it.name.en, it.name.zh],
            "caption": [it.caption.en, it.caption.zh],
            "sharp_high": it.sharp_high,
            "unit_interval": it.unit_interval,
        }
        for it in words.STATISTICS
    ]
    severities = {
        severity: {"glyph": glyphs.SEVERITY_GLYPHS[severity], "name": [text.en, text.zh]}
        for severity, text in words.SEVERITIES.items()
    }
    return {
        "words": {key: [text.en, text.zh] for key, text in PAGE.items()},
        "state_kinds": states,
        "statistics": statistics,
        "severities": severities,
        "ramp": glyphs.RAMP,
        "alphabet": ALPHABET,
    }
