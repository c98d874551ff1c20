"""The SQLite file behind a store: its tables, and what is refused before anything is written.

Every way to look at a file that is not ours goes through SQLite. Opening and closing the file directly would drop the locks
that SQLite holds on it in this process.
"""

import errno
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from struct import error as StructError
from urllib.parse import quote

from isotherm.errors import InputError
from isotherm.language import Text

APPLICATION = 0x49534F57
"""SQLite's application id of a store: «ISOW»."""
VERSION = 1
"""SQLite's user version of a store: the schema that this code writes."""
TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE layer (place INTEGER PRIMARY KEY, number INTEGER NOT NULL, name TEXT NOT NULL, heads INTEGER NOT NULL)",
    "CREATE TABLE reading (step INTEGER PRIMARY KEY, at REAL NOT NULL, loss REAL, rows INTEGER, seconds REAL,"
    " data BLOB NOT NULL)",
    "CREATE TABLE event (id INTEGER PRIMARY KEY AUTOINCREMENT, step INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL,"
    " rule TEXT NOT NULL, layer INTEGER, head INTEGER, en TEXT NOT NULL, zh TEXT NOT NULL, numbers TEXT NOT NULL)",
    # What a resumed run set aside; `resumed` is the step it went on after.
    "CREATE TABLE superseded_reading (resumed INTEGER NOT NULL, step INTEGER NOT NULL, at REAL NOT NULL, loss REAL,"
    " rows INTEGER, seconds REAL, data BLOB NOT NULL)",
    "CREATE TABLE superseded_event (resumed INTEGER NOT NULL, id INTEGER NOT NULL, step INTEGER NOT NULL, at REAL NOT NULL,"
    " kind TEXT NOT NULL, rule TEXT NOT NULL, layer INTEGER, head INTEGER, en TEXT NOT NULL, zh TEXT NOT NULL,"
    " numbers TEXT NOT NULL)",
)
PATIENCE = 10.0
"""Seconds that opening and reading wait for a lock."""

NOT_OURS = Text("this is a database of another program", "这是其他程序的数据库")
NOT_SQLITE = Text("this is not a store (no SQLite database)", "这不是读数库（不是 SQLite 数据库）")
NEWER = Text(
    "written by a newer Isotherm (schema {found}; this one reads {known})",
    "由更新版本的 Isotherm 写出（格式 {found}；本版本读取 {known}）",
)
DAMAGED = Text("this store is damaged ({why})", "读数库已损坏（{why}）")
CANNOT = Text("cannot be opened ({why})", "无法打开（{why}）")
MISSING = Text("there is no such file", "没有这个文件")
FOLDER = Text("this is a folder; a file is needed", "这是文件夹，需要文件")
NO_FILE = Text("this is no regular file", "这不是普通文件")
NO_PARENT = Text("the folder does not exist", "所在文件夹不存在")
READ_ONLY_FOLDER = Text("its folder is read-only", "所在文件夹为只读")
READ_ONLY = Text("the file is read-only", "文件为只读")
LOOP = Text("its symbolic links lead in a circle", "符号链接形成了循环")


def look(path: Path, *, writing: bool) -> bool:
    """Whether there is a file with something in it that may be read, or written to. An `InputError` if that cannot be."""
    try:
        found = path.stat()
    except FileNotFoundError as error:
        if not writing:
            raise InputError(path, MISSING) from error
        _refuse_parent(path)
        return False
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        loop = getattr(error, "errno", None) == errno.ELOOP
        raise InputError(path, LOOP if loop else CANNOT.format(why=why)) from error
    mode = found.st_mode
    if stat.S_ISDIR(mode):
        raise InputError(path, FOLDER)
    if not stat.S_ISREG(mode):
        raise InputError(path, NO_FILE)
    if 0 < found.st_size < 512:  # SQLite takes so short a file for an empty database, and would write over it
        raise InputError(path, NOT_SQLITE)
    if writing:
        _refuse_parent(path)
        if not mode & 0o222 or not os.access(path, os.W_OK):
            raise InputError(path, READ_ONLY)
    return found.st_size > 0


def _refuse_parent(path: Path) -> None:
    """SQLite keeps its journal beside the file, so the folder must be writable too. Root may write anywhere, but should not
    where the owner took every permission to write away."""
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise InputError(path, NO_PARENT)
    if not folder.stat().st_mode & 0o222 or not os.access(folder, os.W_OK):
        raise InputError(path, READ_ONLY_FOLDER)


def connect(path: Path, how: str) -> sqlite3.Connection:
    """A connection without transactions of Python's own. `how` are the parameters of SQLite's URI."""
    uri = f"file:{quote(os.fsencode(path.absolute()))}?{how}"
    return sqlite3.connect(uri, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False)


def refuse_strangers(connection: sqlite3.Connection, path: Path) -> None:
    """Raise an `InputError` unless this is a store of ours that this version can read."""
    with explained(path):
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise InputError(path, NOT_OURS)
    if version > VERSION:
        raise InputError(path, NEWER.format(found=version, known=VERSION))


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """In this block an error of SQLite's, or of what it returned, is an `InputError` that names the file."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # none where text is not UTF-8
        whole = isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR
        why = NOT_SQLITE if code == sqlite3.SQLITE_NOTADB else CANNOT if whole else DAMAGED
        raise InputError(path, why.format(why=error)) from error
    except OSError as error:
        raise InputError(path, CANNOT.format(why=error.strerror or error)) from error
    except (ValueError, TypeError, LookupError, StructError) as error:
        raise InputError(path, DAMAGED.format(why=error)) from error


def create(path: Path, meta: Mapping[str, str]) -> None:
    """Make a new store beside the path and move it there whole.

    So a process killed meanwhile leaves no half-made store, and no journal that a reader would have to roll back. An empty
    file at the path is replaced; one that appeared meanwhile is not.
    """
    target = Path(os.path.realpath(path))
    temporary = target.parent / f".isotherm-{token_hex(8)}"
    try:
        connection = connect(temporary, "mode=rwc")
        try:
            _fill(connection, meta)
        finally:
            connection.close()
        if target.exists():
            temporary.replace(target)
        else:
            _appear(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _fill(connection: sqlite3.Connection, meta: Mapping[str, str]) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    for table in TABLES:
        connection.execute(table)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.executemany("INSERT INTO meta VALUES (?, ?)", list(meta.items()))


def _appear(temporary: Path, target: Path) -> None:
    """Give the file its name, unless another file has it by now."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        temporary.replace(target)
