"""Records as rows of a store's tables and back. What is read may be damaged or made up, and is checked on the way in."""

import json
import sqlite3
from collections.abc import Sequence
from math import isnan
from struct import Struct
from typing import Any

import numpy as np

from isotherm.language import Text
from isotherm.record.plain import from_plain
from isotherm.record.watch import GRADIENTS, STATISTICS, Event, Floats, Reading, WatchedLayer, WatchRecord

COUNTS = Struct("<II")
"""A packed reading begins with how many heads and how many layers it has. Little-endian float32 follow: every head's value
of each of `STATISTICS`, then every layer's of each of `GRADIENTS`."""
MOST_HEADS = 2**24
"""Heads of a whole model. A store that names more was made up."""
RESUMED = Text(
    "the run went on after step {step}; {n} later readings were set aside",
    "训练从第 {step} 步之后继续；其后的 {n} 条读数被搁置",
)
BEGUN_ANEW = Text("the run began anew; {n} readings were set aside", "训练重新开始；已有的 {n} 条读数被搁置")


def pack(reading: Reading, heads: int, layers: int) -> bytes:
    """The arrays of a reading as bytes. A statistic that it lacks is NaN."""
    columns = [_column(reading.values.get(name), heads) for name in STATISTICS]
    columns += [_column(reading.gradients.get(name), layers) for name in GRADIENTS]
    return COUNTS.pack(heads, layers) + b"".join(column.tobytes() for column in columns)


def _column(values: Floats | None, length: int) -> Floats:
    if values is None:
        return np.full(length, np.nan, "<f4")
    column = np.asarray(values, "<f4").ravel()
    if len(column) != length:
        raise ValueError(f"{len(column)} ≠ {length}")
    return column


def unpack(data: bytes, heads: int, layers: int) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Invert `pack`. Layers that were added to the run later are NaN."""
    had = COUNTS.unpack_from(data)
    sizes = [had[0]] * len(STATISTICS) + [had[1]] * len(GRADIENTS)
    if len(data) != COUNTS.size + 4 * sum(sizes) or had[0] > heads or had[1] > layers:
        raise ValueError("a reading of the wrong size")
    columns, at = [], COUNTS.size
    for size, whole in zip(sizes, [heads] * len(STATISTICS) + [layers] * len(GRADIENTS), strict=True):
        column = np.full(whole, np.nan, np.float32)
        column[:size] = np.frombuffer(data, "<f4", size, at)
        columns.append(column)
        at += 4 * size
    values = dict(zip(STATISTICS, columns, strict=False))
    return values, dict(zip(GRADIENTS, columns[len(STATISTICS) :], strict=True))


def reading_row(reading: Reading, layers: Sequence[WatchedLayer]) -> tuple[Any, ...]:
    """A reading as a row. SQLite has no NaN and would store nothing, so a loss that is NaN is kept as text."""
    data = pack(reading, sum(layer.heads for layer in layers), len(layers))
    loss, seconds = (None if one is None else float(one) for one in (reading.loss, reading.seconds))
    rows = None if reading.rows is None else int(reading.rows)
    return (
        int(reading.step),
        float(reading.at),
        "NaN" if loss is not None and isnan(loss) else loss,
        rows,
        seconds,
        data,
    )


def event_row(event: Event) -> tuple[Any, ...]:
    """An event as a row."""
    layer, head = (None if one is None else int(one) for one in (event.layer, event.head))
    numbers = json.dumps({name: float(value) for name, value in event.numbers.items()})
    place = (int(event.step), float(event.at), event.kind, event.rule, layer, head)
    return (*place, event.message.en, event.message.zh, numbers)


def insert_layers(connection: sqlite3.Connection, layers: Sequence[WatchedLayer]) -> None:
    """Append layers."""
    rows = [(layer.number, layer.name, layer.heads) for layer in layers]
    connection.executemany("INSERT INTO layer VALUES (NULL, ?, ?, ?)", rows)


def insert_reading(connection: sqlite3.Connection, row: tuple[Any, ...]) -> None:
    """Append a reading, or replace the one of the same step."""
    connection.execute("INSERT OR REPLACE INTO reading VALUES (?, ?, ?, ?, ?, ?)", row)


def insert_event(connection: sqlite3.Connection, row: tuple[Any, ...]) -> None:
    """Append an event."""
    connection.execute("INSERT INTO event VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def set_aside(connection: sqlite3.Connection, row: tuple[int, float]) -> None:
    """Move what came after a step out of the series and record that the run was resumed there. A new store has no before."""
    step, at = row
    if not any(connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in ("reading", "event")):
        return
    for table in ("reading", "event"):
        connection.execute(f"INSERT INTO superseded_{table} SELECT ?, * FROM {table} WHERE step > ?", (step, step))
    connection.execute("DELETE FROM event WHERE step > ?", (step,))
    n = connection.execute("DELETE FROM reading WHERE step > ?", (step,)).rowcount
    message = RESUMED.format(step=step, n=n) if step >= 0 else BEGUN_ANEW.format(n=n)
    numbers = {"set_aside": float(n)}
    insert_event(connection, event_row(Event(max(step, 0), at, "resumed", "store", None, None, message, numbers)))


def layers_in(connection: sqlite3.Connection) -> tuple[WatchedLayer, ...]:
    """The layers, in the order in which readings hold them."""
    rows = connection.execute("SELECT number, name, heads FROM layer ORDER BY place")
    found = tuple(from_plain(WatchedLayer, dict(zip(("number", "name", "heads"), row, strict=True))) for row in rows)
    if any(layer.heads < 0 for layer in found) or sum(layer.heads for layer in found) > MOST_HEADS:
        raise ValueError("too many heads")
    return found


def record_in(connection: sqlite3.Connection, after: int | None) -> WatchRecord:
    """Everything in the store, of readings those after a step."""
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    layers = layers_in(connection)
    superseded = connection.execute("SELECT count(*) FROM superseded_reading").fetchone()[0]
    return WatchRecord(
        schema=meta["schema"],
        model=meta["model"],
        every=int(meta["every"]),
        rows=from_plain(int | None, json.loads(meta["rows"])),  # type: ignore[arg-type]
        created=float(meta["created"]),
        versions=from_plain(dict[str, str], json.loads(meta["versions"])),
        layers=layers,
        readings=_readings(connection, layers, after),
        events=_events(connection),
        superseded=superseded,
    )


def _readings(connection: sqlite3.Connection, layers: Sequence[WatchedLayer], after: int | None) -> tuple[Reading, ...]:
    query = "SELECT step, at, rows, seconds, loss, data FROM reading WHERE step > ? ORDER BY step"
    heads, readings = sum(layer.heads for layer in layers), []
    for step, *others, loss, data in connection.execute(query, (-(2**63) if after is None else after,)):
        at, rows, seconds = from_plain(tuple[float, int | None, float | None], others)
        known = None if loss is None else float(loss)
        readings.append(Reading(step, at, known, rows, seconds, *unpack(data, heads, len(layers))))
    return tuple(readings)


def _events(connection: sqlite3.Connection) -> tuple[Event, ...]:
    columns = ("step", "at", "kind", "rule", "layer", "head")
    found = []
    for *row, en, zh, numbers in connection.execute(
        f"SELECT {', '.join(columns)}, en, zh, numbers FROM event ORDER BY id"
    ):
        plain = dict(zip(columns, row, strict=True))
        event = plain | {"message": {"en": en, "zh": zh}, "numbers": json.loads(numbers)}
        found.append(from_plain(Event, event, where="event"))
    return tuple(found)
