"""A run that is watched as one HTML file that works without a network and stays under 2 MB.

The readings are embedded as series over at most `MOST_STRETCHES` stretches of time: by layer, and by head for as many heads as
fit, those with the largest logits first. A run that goes on is followed by writing the page again.
"""

import json
from datetime import UTC, datetime
from math import isfinite
from os import PathLike
from statistics import median
from typing import Any

import numpy as np

from isotherm.errors import as_language
from isotherm.language import Language, Text
from isotherm.printable import printable
from isotherm.record.watch import GRADIENTS, Event, WatchRecord
from isotherm.report import shell
from isotherm.report.digits import compact, number, thousands
from isotherm.report.draw import palette
from isotherm.report.files import write_atomically
from isotherm.report.payload import ALPHABET, pack
from isotherm.report.shell import embedded
from isotherm.report.watch import series

ROOM = 1_400_000
"""Bytes for the series of heads."""
MOST_STRETCHES, FEWEST_STRETCHES = 300, 60
MOST_EVENTS = 400
_SCRIPTS = (
    "core.js",
    "bar.js",
    "charts.js",
    *(f"watch/{name}.js" for name in ("state", "time", "map", "lines", "main")),
)
FACTS = {
    "shape": Text("Layers, heads", "层数、头数"),
    "step": Text("Steps", "步数"),
    "readings": Text("Readings", "读数"),
    "rows": Text("Rows measured", "测量的行"),
    "loss": Text("Loss now", "当前损失"),
    "cost": Text("Cost of a reading", "每条读数的开销"),
    "started": Text("Began", "开始于"),
    "written": Text("Last reading", "最近读数"),
}
EVERY = Text("{n}, one every {every} steps", "{n} 条，每 {every} 步一条")
SET_ASIDE = Text("{text}; {n} set aside", "{text}；搁置 {n} 条")
ALL_ROWS, SOME_ROWS = Text("all", "全部"), Text("{rows} of each head, sampled", "每头抽样 {rows} 行")
MILLISECONDS = Text("{ms} ms (median)", "{ms} 毫秒（中位数）")


def to_html(record: WatchRecord, language: Language | None = None) -> str:
    """The page as text; it opens in `language` and can be switched to the other."""
    opening = as_language(language)
    data = {**_vocabulary(), "language": opening, **payload(record)}
    return shell.fill(
        shell.filled("check.html", data=embedded(data)),
        styles=["watch/watch.css"],
        scripts=_SCRIPTS,
        wait=True,
        title=f"{printable(record.model, 80)} · isotherm watch",
        language=opening,
    )


def write_html(record: WatchRecord, path: str | PathLike[str], language: Language | None = None) -> None:
    """Write the page."""
    write_atomically(path, to_html(record, language))


def payload(record: WatchRecord) -> dict[str, Any]:
    """Everything that the page shows of this run."""
    keys = [one.key for one in series.SHOWN]
    heads = sum(layer.heads for layer in record.layers)
    most = min(max(ROOM // max(2 * len(keys) * heads, 1), FEWEST_STRETCHES), MOST_STRETCHES)
    parts = series.stretches(record, most)
    kept = sorted(series.worst_heads(record, ROOM // max(2 * len(keys) * len(parts), 1)))
    verdict = series.verdict(record)
    return {
        "model": printable(record.model, 120),
        "facts": _facts(record),
        "verdict": [verdict.en, verdict.zh],
        "layers": [[layer.number, printable(layer.name, 80), layer.heads] for layer in record.layers],
        "first": [part.first for part in parts],
        "last": [part.last for part in parts],
        "together": max((part.end - part.start for part in parts), default=1),
        "loss": [compact(value) for value in series.over(_losses(record), parts, "mean").tolist()],
        "by_layer": {key: _packed(parts, key, series.by_layer(record, key)) for key in keys},
        "heads": {key: _packed(parts, key, series.heads(record, key)[:, kept]) for key in keys},
        "kept": None if len(kept) == heads else kept,
        "gradients": {name: _gradients(record, parts, name) for name in GRADIENTS},
        "events": [_event(record, event) for event in series.latest(record, MOST_EVENTS)],
        "left_events": max(len(record.events) - MOST_EVENTS, 0),
        "worst": series.worst_heads(record, 1)[0] if series.worst_heads(record, 1) else None,
    }


def _vocabulary() -> dict[str, Any]:
    statistics = [
        {
            "key": one.key,
            "name": [one.name.en, one.name.zh],
            "caption": [one.caption.en, one.caption.zh],
            "sharp_high": one.sharp_high,
            "unit_interval": one.unit_interval,
        }
        for one in series.SHOWN
    ]
    shared = json.loads(shell.asset("words.json"))["words"]
    own = json.loads(shell.asset("watch/words.json"))
    return {
        "words": {key: shared[key] for key in own["shared"]} | own["words"],
        "statistics": statistics,
        "kinds": {
            kind: {"name": [name.en, name.zh], "glyph": series.GLYPHS[kind]} for kind, name in series.KINDS.items()
        },
        "ramp": palette.RAMP,
        "ink": [palette.ON_PALE, palette.ON_DEEP],
        "alphabet": ALPHABET,
    }


def _facts(record: WatchRecord) -> list[list[Any]]:
    """Labels with what they say, both in both languages."""
    rows = ALL_ROWS if record.rows is None else SOME_ROWS.format(rows=record.rows)
    readings = EVERY.format(n=thousands(len(record.readings)), every=thousands(record.every))
    if record.superseded:
        readings = SET_ASIDE.format(text=readings, n=record.superseded)
    heads = sum(layer.heads for layer in record.layers)
    said: dict[str, Text | str] = {
        "shape": f"{len(record.layers)}, {thousands(heads)}",
        "readings": readings,
        "rows": rows,
        "started": _moment(record.created),
    }
    if record.readings:
        last = record.readings[-1]
        took = [one.seconds for one in record.readings if one.seconds is not None and isfinite(one.seconds)]
        said |= {"step": thousands(last.step), "written": _moment(last.at)}
        if last.loss is not None:
            said["loss"] = number(last.loss) if isfinite(last.loss) else "NaN"
        if took:
            said["cost"] = MILLISECONDS.format(ms=number(1000 * median(took), 2))
    pairs = ((name, said[key]) for key, name in FACTS.items() if key in said)
    return [[[name.en, name.zh], [text.en, text.zh] if isinstance(text, Text) else [text] * 2] for name, text in pairs]


def _moment(seconds: float) -> str:
    """A time in UTC; a dash for one that no calendar has."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return "–"


def _losses(record: WatchRecord) -> series.Values:
    return np.array([np.nan if one.loss is None else one.loss for one in record.readings], float)


def _packed(parts: list[series.Stretch], key: str, values: series.Values) -> dict[str, Any]:
    """Columns one after another: every stretch of the first layer or head, then of the second."""
    return pack(_plain(series.over(values, parts, series.statistic(key).of_several).T))


def _gradients(record: WatchRecord, parts: list[series.Stretch], name: str) -> dict[str, Any]:
    rows = [one.gradients[name] for one in record.readings]
    values = np.array(rows, float).reshape(len(rows), len(record.layers))
    return pack(_plain(series.over(values, parts, "mean").T))


def _plain(values: series.Values) -> list[float | None]:
    return [value if isfinite(value) else None for value in values.ravel().tolist()]


def _event(record: WatchRecord, event: Event) -> list[Any]:
    """[step, kind, rule, row of the layer or None, head or None, message]."""
    rows = {layer.number: row for row, layer in enumerate(record.layers)}
    row = None if event.layer is None else rows.get(event.layer)
    head = (
        event.head
        if row is not None and event.head is not None and 0 <= event.head < record.layers[row].heads
        else None
    )
    message = [printable(text, 400) for text in (event.message.en, event.message.zh)]
    return [event.step, event.kind, printable(event.rule, 60), row, head, message]
