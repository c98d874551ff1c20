"""One writer: a store remembers which process writes it, and another one is refused while that process lives."""

import json
import os
import socket
import sqlite3
from pathlib import Path

from isotherm.errors import InputError
from isotherm.language import Text

WRITTEN = Text(
    "process {pid} is writing to it; a store has one writer", "进程 {pid} 正在写入；一个读数库只能有一个写入者"
)

_HELD: set[str] = set()
"""Stores that this process writes. One that could not be marked as free, on a full disk, is missing here."""


def take(connection: sqlite3.Connection, path: Path) -> None:
    """Become the writer. An `InputError` if another one is alive on this machine, in this process or another."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        pid = owner(connection)
        if pid is not None and not (pid == os.getpid() and os.path.realpath(path) not in _HELD):
            raise InputError(path, WRITTEN.format(pid=pid))
        me = {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid())}
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('writer', ?)", (json.dumps(me),))
    except BaseException:
        if connection.in_transaction:  # after some errors SQLite has rolled back by itself
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    _HELD.add(os.path.realpath(path))


def owner(connection: sqlite3.Connection) -> int | None:
    """The process of this machine that writes the store, if it lives."""
    found = connection.execute("SELECT value FROM meta WHERE key = 'writer'").fetchone()
    given = json.loads(found[0]) if found else None
    if given is None or given["host"] != socket.gethostname() or not _lives(int(given["pid"]), given["started"]):
        return None
    return int(given["pid"])


def release(connection: sqlite3.Connection, path: Path) -> None:
    """Let another writer have it."""
    _HELD.discard(os.path.realpath(path))
    try:
        connection.execute("DELETE FROM meta WHERE key = 'writer'")
    except sqlite3.Error:  # the disk is full
        return


def _lives(pid: int, started: str | None) -> bool:
    """Whether a process with this number is there and, where the system tells, is still the same one."""
    if os.name != "posix":
        return pid == os.getpid()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _started(pid) == started


def _started(pid: int) -> str | None:
    """When a process started, in Linux's ticks since boot, with the boot's id; None if it is dead or nobody tells."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"
