"""A check-up as one HTML file that works without a network and stays under 500 kB.

The record is embedded as JSON, which browsers do not run; the page's script reads it and builds the document from text,
never from markup. A content security policy allows only this script and style, by their hashes.
"""

import json
from os import PathLike
from typing import Any

from isotherm.errors import as_language
from isotherm.language import Language
from isotherm.printable import printable
from isotherm.record import CheckRecord
from isotherm.report import shell, vocabulary
from isotherm.report.draw import palette
from isotherm.report.files import write_atomically
from isotherm.report.payload import ALPHABET, GRADIENT, payload, size_of

LIMIT = 500_000
_SCRIPTS = (
    "core.js",
    "heads.js",
    "bar.js",
    "charts.js",
    "heatmap.js",
    "curve.js",
    "detail.js",
    "findings.js",
    "layers.js",
    "whatif.js",
    "downloads.js",
    "main.js",
)


def to_html(record: CheckRecord, language: Language | None = None) -> str:
    """The page as text; it opens in `language` and can be switched to the other."""
    opening = as_language(language)
    fixed = _vocabulary(record) | {"language": opening}
    room = LIMIT - len(_page(record, "", opening).encode()) - size_of(fixed) - 4000
    for _ in range(12):
        page = _page(record, shell.embedded(fixed | payload(record, room)), opening)
        if len(page.encode()) <= LIMIT:
            break
        room = room * 3 // 4
    return page


def _page(record: CheckRecord, data: str, opening: Language) -> str:
    return shell.fill(
        shell.filled("check.html", data=data),
        scripts=_SCRIPTS,
        wait=True,
        title=f"{printable(record.model.name, 80)} · isotherm",
        language=opening,
    )


def write_html(record: CheckRecord, path: str | PathLike[str], language: Language | None = None) -> None:
    """Write the page."""
    write_atomically(path, to_html(record, language))


def _vocabulary(record: CheckRecord) -> dict[str, Any]:
    """Words, signs and colours. Those that only the page shows are in `page/words.json`: [English, Chinese]."""
    states = {
        state: {
            "glyph": vocabulary.STATE_GLYPHS[state],
            "colour": palette.STATE_COLOURS[state],
            "name": [text.en, text.zh],
        }
        for state, text in vocabulary.STATES.items()
    }
    severities = {
        severity: {"glyph": vocabulary.SEVERITY_GLYPHS[severity], "name": [text.en, text.zh]}
        for severity, text in vocabulary.SEVERITIES.items()
    }
    words = json.loads(shell.asset("words.json"))
    if record.temperature_gradient is None:
        words["statistics"] = [one for one in words["statistics"] if one["key"] != GRADIENT]
    return {
        **words,
        "state_kinds": states,
        "severities": severities,
        "ramp": palette.RAMP,
        "dashes": palette.DASHES,
        "colours": len(palette.SERIES["light"]),
        "ink": [palette.ON_PALE, palette.ON_DEEP],
        "alphabet": ALPHABET,
    }
