"""Readings and events of one run in one SQLite file: one writer, any number of readers, whoever is killed when.

The file is in WAL mode with `synchronous=NORMAL`: what was committed survives the death of the process; a power failure may
take the last seconds, never the file. A writer whose disk is full or whose file is locked keeps the latest readings in memory
and tries again. When it gets through, it records which readings it had to let go. Such trouble never raises an error once the
store is open.
"""

import json
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text
from isotherm.monitor import database, ownership, rows
from isotherm.monitor.database import connect, explained, look, refuse_strangers
from isotherm.record.versions import versions
from isotherm.record.watch import WATCH_SCHEMA, Event, Reading, WatchedLayer, WatchRecord

KEPT = 100
"""Readings that wait in memory while the file cannot be written; the oldest is let go first. As many events wait too."""
RETRY = 5.0
"""Seconds between attempts to write to a file that could not be written."""
PATIENCE = 0.2
"""Seconds that a write waits for a lock, and training with it."""
OTHER_LAYERS = Text(
    "holds a run whose attention layers are others; give this run a store of its own",
    "其中是另一组注意力层的训练；请为本次训练另选读数库",
)
DELETED = Text("the file was deleted or replaced", "文件已被删除或替换")
LOST_READINGS = Text(
    "{readings} readings from step {first} to step {last} could not be written ({why})",
    "第 {first} 步到第 {last} 步的 {readings} 条读数未能写入（{why}）",
)
LOST_BOTH = Text(
    "{readings} readings (from step {first} to step {last}) and {events} events could not be written ({why})",
    "{readings} 条读数（第 {first} 步到第 {last} 步）与 {events} 个事件未能写入（{why}）",
)
LOST_EVENTS = Text("{events} events could not be written ({why})", "{events} 个事件未能写入（{why}）")
_WRITES: dict[str, Callable[[sqlite3.Connection, Any], None]] = {
    "layers": rows.insert_layers,
    "reading": rows.insert_reading,
    "event": rows.insert_event,
    "resume": rows.set_aside,
}


class Writer:
    """Writes one run to a store. Opening creates the file, or continues the run in it.

    A reading whose step is before the last one means that the run went back, as if `resume` had been called.
    """

    def __init__(self, path: str | os.PathLike[str], *, model: str, every: int, rows: int | None) -> None:
        self.path = Path(os.path.abspath(path))
        self.trouble: Text | None = None
        """Why the last attempt to write failed; None if it did not."""
        self._lock, self._process, self._retry_at = threading.RLock(), os.getpid(), 0.0
        self._waiting: deque[tuple[str, Any]] = deque()
        self._lost: list[int] = []
        self._lost_events = 0
        self._connection, self._layers, self._last = _opened(self.path, model, every, rows)
        self._file = self.path.stat()
        self._finish = weakref.finalize(self, _finish, self._connection, self.path, self._process)

    @property
    def known(self) -> tuple[WatchedLayer, ...]:
        """The layers that the store holds."""
        return self._layers

    def layers(self, layers: Sequence[WatchedLayer]) -> None:
        """Say what the readings are of. Later ones may be appended; an `InputError` if the store holds other layers."""
        given, known = tuple(layers), self._layers
        if given[: len(known)] != known:
            raise InputError(self.path, OTHER_LAYERS)
        self._layers = given
        self._write("layers", given[len(known) :])

    def resume(self, step: int) -> None:
        """Go on after this step: later readings and events are set aside, so that no step is in the series twice."""
        self._write("resume", (int(step), time.time()))
        self._last = step

    def reading(self, reading: Reading) -> None:
        """Append a reading. One of the same step as the last (an optimizer's step that was skipped) replaces it."""
        try:
            row = rows.reading_row(reading, self._layers)
        except ValueError as error:
            expected = Text("{heads} heads in {layers} layers", "{layers} 层共 {heads} 个头")
            heads = sum(layer.heads for layer in self._layers)
            raise ArgumentError("reading", expected.format(heads=heads, layers=len(self._layers)), got=error) from error
        if self._last is not None and reading.step < self._last:
            self.resume(reading.step - 1)
        self._last = reading.step
        self._write("reading", row)

    def event(self, event: Event) -> None:
        """Append an event."""
        self._write("event", rows.event_row(event))

    def close(self) -> None:
        """Write what waits, if that is possible now, and close the file. Closing twice is no error."""
        if self._finish.alive and self._process == os.getpid():
            with self._lock:
                self._flush()
                self._finish()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, what: str, row: Any) -> None:
        if not self._finish.alive or self._process != os.getpid():  # a data loader's forked worker has no part in it
            return
        with self._lock:
            self._waiting.append((what, row))
            if time.monotonic() >= self._retry_at:
                self._flush()
            self._let_go("reading")
            self._let_go("event")

    def _flush(self) -> None:
        """Write everything that waits in one transaction."""
        connection = self._connection
        try:
            self._still_there()
            connection.execute("BEGIN IMMEDIATE")
            if self._lost or self._lost_events:
                rows.insert_event(connection, rows.event_row(self._gap()))
            for what, row in self._waiting:
                _WRITES[what](connection, row)
            connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            _roll_back(connection)
            self.trouble = DELETED if isinstance(error, OSError) else Text(str(error), str(error))
            self._retry_at = time.monotonic() + RETRY
        else:
            self._waiting.clear()
            self._lost.clear()
            self._lost_events = 0
            self.trouble, self._retry_at = None, 0.0

    def _still_there(self) -> None:
        """An `OSError` if the file was deleted or replaced: what is written to it then would be lost with it."""
        if not os.path.samestat(self.path.stat(), self._file):
            raise FileNotFoundError(self.path)

    def _let_go(self, kind: str) -> None:
        """Keep the latest rows of a kind, and remember what is let go."""
        places = [place for place, (what, _) in enumerate(self._waiting) if what == kind]
        for place in reversed(places[: max(len(places) - KEPT, 0)]):
            if kind == "reading":
                self._lost.append(self._waiting[place][1][0])
            else:
                self._lost_events += 1
            del self._waiting[place]

    def _gap(self) -> Event:
        """What was let go since the last time that something could be written."""
        steps, events = self._lost or [self._last or 0], self._lost_events
        counts = {"readings": len(self._lost), "events": events, "first": min(steps), "last": max(steps)}
        text = LOST_READINGS if not events else LOST_BOTH if self._lost else LOST_EVENTS
        message = text.format(**counts, why=self.trouble or Text("", ""))
        numbers = {key: float(value) for key, value in counts.items()}
        return Event(counts["last"], time.time(), "gap", "store", None, None, message, numbers)


def read(path: str | os.PathLike[str], *, after: int | None = None) -> WatchRecord:
    """The run in a store, or its readings after a step, as it is at this moment. Writes nothing and blocks no writer."""
    path = Path(path)
    with explained(path):
        if not look(path, writing=False):
            raise InputError(path, database.NOT_SQLITE)
        way = _way(path)
        record = _read(path, way, after)
        return record if _way(path) == way else _read(path, _way(path), after)


def follow(path: str | os.PathLike[str], record: WatchRecord) -> WatchRecord:
    """The run as it is now, of which an earlier `record` is known: only later readings are read, unless the run went back."""
    if not record.readings:
        return read(path)
    new = read(path, after=record.readings[-1].step - 1)  # the last may have been replaced
    if new.superseded != record.superseded or new.layers != record.layers or new.created != record.created:
        return read(path)
    return replace(new, readings=(*record.readings[:-1], *new.readings))


def is_written(path: str | os.PathLike[str]) -> bool:
    """Whether a process of this machine writes a store now."""
    path = Path(path)
    with explained(path):
        look(path, writing=False)
        connection = connect(path, _way(path))
        try:
            refuse_strangers(connection, path)
            return ownership.owner(connection) is not None
        finally:
            connection.close()


def _opened(
    path: Path, model: str, every: int, rows_of_a_head: int | None
) -> tuple[sqlite3.Connection, tuple[WatchedLayer, ...], int | None]:
    """A connection for the writer, with the layers and the last step that the store holds."""
    meta = {"every": json.dumps(every), "rows": json.dumps(rows_of_a_head)}
    with explained(path):
        if look(path, writing=True):
            looking = connect(path, _way(path))  # before anything is written
            try:
                refuse_strangers(looking, path)
            finally:
                looking.close()
        else:
            made = {"schema": WATCH_SCHEMA, "model": model, "created": repr(time.time())}
            database.create(path, made | meta | {"versions": json.dumps(versions("torch"))})
        connection = connect(path, "mode=rw")
    try:
        with explained(path):
            refuse_strangers(connection, path)
            ownership.take(connection, path)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executemany(
                "UPDATE meta SET value = :value WHERE key = :key", [{"key": key, "value": meta[key]} for key in meta]
            )
            connection.execute(f"PRAGMA busy_timeout = {round(PATIENCE * 1000)}")
            last = connection.execute("SELECT max(step) FROM reading").fetchone()[0]
            return connection, rows.layers_in(connection), last
    except BaseException:
        connection.close()
        raise


def _way(path: Path) -> str:
    """How SQLite should open a store to read it. Without a journal beside it nobody writes it: SQLite may then take it for a
    file that cannot change, leaves nothing beside it, and needs no permission to write there."""
    return "mode=ro" if Path(f"{os.path.realpath(path)}-wal").exists() else "mode=ro&immutable=1"


def _read(path: Path, how: str, after: int | None) -> WatchRecord:
    connection = connect(path, how)
    try:
        refuse_strangers(connection, path)
        connection.execute("BEGIN")
        return rows.record_in(connection, after)
    finally:
        connection.close()


def _finish(connection: sqlite3.Connection, path: Path, process: int) -> None:
    """Close the file. Unless someone reads it now, SQLite moves its journal into it, and one file is left."""
    if process == os.getpid():
        ownership.release(connection, path)
        connection.close()


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # after some errors SQLite has rolled back by itself
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error:
            return
