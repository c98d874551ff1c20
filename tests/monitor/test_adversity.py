"""A store when things go wrong: killed writers, full disks, locked files, many readers, and files that are not stores."""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
import traceback
from pathlib import Path

import pytest

from isotherm.errors import InputError
from isotherm.monitor import database, store
from isotherm.monitor.monitor import watch
from isotherm.monitor.store import Writer, read
from tests.monitor.loops import build, train
from tests.monitor.runs import LAYERS, reading
from tests.monitor.test_store import ALERT, opened, same, steps


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


@pytest.fixture
def at_once(monkeypatch):
    """A writer that could not write tries again with every reading."""
    monkeypatch.setattr(store, "RETRY", 0.0)


def write_until_killed(path, after, attempt, told):
    """Go on after a step and write, telling after each call what is committed. Runs in a process of its own."""
    writer = opened(path)
    writer.resume(after)
    os.write(told, b"resumed\n")
    for step in range(after + 1, after + 10_000):
        writer.reading(reading(step, seed=attempt, at=float(attempt)))
        os.write(told, f"{step}\n".encode())


def killed(path, after, attempt, lines, pause):
    """What a writer had said was committed when it was killed: a moment after it had said so many lines."""
    end, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_until_killed(path, after, attempt, told)
        except BaseException:
            os.write(told, traceback.format_exc().encode())
        finally:
            os._exit(1)
    os.close(told)
    said = b""
    while said.count(b"\n") < lines and (piece := os.read(end, 4096)):
        said += piece
    time.sleep(pause)
    os.kill(child, signal.SIGKILL)
    ended = os.waitpid(child, 0)[1]
    with os.fdopen(end, "rb") as file:
        said += file.read()
    assert os.WIFSIGNALED(ended), said.decode()
    return said.decode().split()


def as_written(one):
    return same(one, reading(one.step, seed=int(one.at), at=one.at))


@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_whatever_was_committed_survives_kill_9(path, kills):
    chance = random.Random(kills)
    opened(path).close()
    before, written = {}, 0
    for attempt in range(kills):
        after = max(before, default=0) // 10 * 10  # a checkpoint every ten steps
        lines = 0 if attempt % 2 else chance.randrange(2, 60)  # every other one dies as it opens, or soon after
        told = killed(path, after, attempt, lines, chance.uniform(0, 0.03 if lines == 0 else 0.002))
        record = read(path)
        found = {one.step: int(one.at) for one in record.readings}
        kept = {step: who for step, who in before.items() if step <= after}
        said = {int(step): attempt for step in told[1:]}
        if told:
            last = max(said, default=after)
            assert found in (kept | said, kept | said | {last + 1: attempt})
        else:
            assert found in (before, kept, kept | {after + 1: attempt})
        assert all(as_written(one) for one in record.readings[len(kept) :])
        before, written = found, written + len(said)
    assert written > 2 * kills
    assert all(as_written(one) for one in record.readings)
    assert list(before) == list(range(1, len(before) + 1))
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def write_through(writer, give_way):
    """Write 300 readings, the second hundred and more of them to a full disk; `give_way` makes room."""
    slowest = 0.0
    for step in range(100, 300):
        started = time.perf_counter()
        writer.reading(reading(step))
        slowest = max(slowest, time.perf_counter() - started)
    assert "full" in str(writer.trouble)
    assert len(writer._waiting) == store.KEPT
    give_way()
    writer.reading(reading(300))
    assert writer.trouble is None
    assert slowest < 1


def check_gap(path, first):
    """The store says what it lacks: from `first` on, until the readings that still waited in memory."""
    record = read(path)
    (event,) = record.events
    numbers = {key: int(value) for key, value in event.numbers.items()}
    assert event.kind == "gap"
    assert numbers["first"] == first
    missing = set(range(301)) - set(steps(record))
    assert missing == set(range(first, numbers["last"] + 1))
    assert len(missing) == numbers["readings"] == 201 - store.KEPT - (first - 100) - 1
    wanted = f"{len(missing)} readings from step {first} to step {numbers['last']} could not be written"
    assert str(event.message) == f"{wanted} (database or disk is full)"


def test_a_file_that_may_not_grow_loses_readings_and_says_which(path, at_once):
    with opened(path) as writer:
        for step in range(100):
            writer.reading(reading(step))
        writer._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = writer._connection.execute("PRAGMA page_count").fetchone()[0]
        writer._connection.execute(f"PRAGMA max_page_count = {pages}")
        write_through(writer, lambda: writer._connection.execute("PRAGMA max_page_count = 1000000"))
    record = read(path)
    check_gap(path, min(set(range(301)) - set(steps(record))))


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk is mounted by root only")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    """A file that takes every byte there is."""
    with (folder / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return folder / "ballast"


def test_on_a_full_disk_training_goes_on_and_the_store_says_what_it_lacks(small_disk, at_once):
    path = small_disk / "run.db"
    with opened(path) as writer:
        for step in range(100):
            writer.reading(reading(step))
        ballast = fill(small_disk)
        write_through(writer, ballast.unlink)
        first = min(set(range(301)) - set(steps(read(path))))
        writer.reading(reading(301))
    check_gap(path, first)


def test_closing_on_a_full_disk_leaves_a_store_that_can_be_read_and_continued(small_disk):
    path = small_disk / "run.db"
    writer = opened(path)
    for step in range(100):
        writer.reading(reading(step))
    ballast = fill(small_disk)
    for step in range(100, 200):
        writer.reading(reading(step))
    writer.close()
    there = steps(read(path))
    assert there == list(range(len(there)))
    assert 100 <= len(there) < 200
    ballast.unlink()
    with opened(path) as writer:
        writer.reading(reading(200))
    assert steps(read(path)) == [*there, 200]


def test_a_read_only_disk_is_read(small_disk):
    path = small_disk / "run.db"
    with opened(path) as writer:
        writer.reading(reading(0))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert steps(read(path)) == [0]
    with pytest.raises(InputError, match=r"run\.db: its folder is read-only"):
        opened(path)


def test_a_locked_file_delays_readings_and_loses_none(path, monkeypatch):
    monkeypatch.setattr(store, "RETRY", 0.01)
    with opened(path) as writer:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        writer.reading(reading(0))
        writer.event(ALERT)
        assert "locked" in str(writer.trouble)
        other.execute("ROLLBACK")
        other.close()
        time.sleep(0.02)
        writer.reading(reading(50))
        assert writer.trouble is None
    assert steps(read(path)) == [0, 50]
    assert [event.kind for event in read(path).events] == ["alert"]


def test_events_that_had_to_be_let_go_are_counted(path, at_once):
    with opened(path) as writer:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        writer._connection.execute("PRAGMA busy_timeout = 0")
        for _ in range(store.KEPT + 7):
            writer.event(ALERT)
        other.execute("ROLLBACK")
        other.close()
    gap, *alerts = read(path).events
    assert (gap.numbers["readings"], gap.numbers["events"], len(alerts)) == (0, 7, store.KEPT)
    assert str(gap.message) == "7 events could not be written (database is locked)"


def test_two_readers_follow_while_a_writer_writes(path):
    failures, seen, done = [], [[], []], threading.Event()

    def follow(number):
        record = read(path)
        try:
            while not done.is_set():
                record = store.follow(path, record)
                assert steps(record) == list(range(len(record.readings)))
                seen[number].append(len(record.readings))
        except Exception as error:
            failures.append(error)

    with opened(path) as writer:
        readers = [threading.Thread(target=follow, args=(number,)) for number in range(2)]
        for reader in readers:
            reader.start()
        for step in range(400):
            writer.reading(reading(step))
            assert writer.trouble is None
            while step % 100 == 99 and any(not counts or counts[-1] <= step for counts in seen) and not failures:
                time.sleep(0.01)
        done.set()
        for reader in readers:
            reader.join()
    assert failures == []
    assert all(len(set(counts)) > 3 for counts in seen)


def test_a_second_writer_is_refused_while_the_first_lives(path):
    with opened(path) as writer:
        with pytest.raises(
            InputError, match=rf"run\.db: process {os.getpid()} is writing to it; a store has one writer"
        ):
            opened(path)
        writer.reading(reading(0))
    opened(path).close()
    del writer
    forgotten = opened(path)
    del forgotten  # never closed
    opened(path).close()


def test_a_forked_process_writes_nothing_and_closes_nothing(path):
    with opened(path) as writer:
        child = os.fork()
        if child == 0:
            writer.reading(reading(0))
            writer.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert steps(read(path)) == []
        writer.reading(reading(50))
        assert writer.trouble is None
    assert steps(read(path)) == [50]


def foreign(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.execute("INSERT INTO mine VALUES (1)")
    connection.commit()
    connection.close()


def newer(path):
    opened(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {database.VERSION + 1}")
    connection.close()


def damaged(path):
    with opened(path) as writer:
        for step in range(100):
            writer.reading(reading(step))
    data = bytearray(path.read_bytes())
    data[4096:20000] = os.urandom(20000 - 4096)
    path.write_bytes(data)


def linked(path):
    path.with_name("notes").write_text("my notes\n" * 1000)
    path.symlink_to(path.with_name("notes"))


def looped(path):
    path.symlink_to(path)


REFUSED = {
    "text": (lambda path: path.write_text("my notes\n" * 1000), r"this is not a store \(no SQLite database\)"),
    "short text": (lambda path: path.write_text("x"), r"this is not a store \(no SQLite database\)"),
    "another program's": (foreign, "this is a database of another program"),
    "newer": (newer, r"written by a newer Isotherm \(schema 2; this one reads 1\)"),
    "folder": (lambda path: path.mkdir(), "this is a folder; a file is needed"),
    "pipe": (os.mkfifo, "this is no regular file"),
    "link": (linked, r"this is not a store \(no SQLite database\)"),
    "loop": (looped, "its symbolic links lead in a circle"),
    "damaged": (damaged, "this store is damaged"),
}


def state(folder):
    return {one.name: one.read_bytes() if one.is_file() else one.lstat().st_mode for one in folder.iterdir()}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_store_is_refused_and_left_as_it_is(path, what):
    make, why = REFUSED[what]
    make(path)
    before = state(path.parent)
    with pytest.raises(InputError, match=rf"run\.db: {why}"):
        read(path)
    with pytest.raises(InputError, match=rf"run\.db: {why}"):
        opened(path)
    assert state(path.parent) == before


def test_what_cannot_be_written_to_is_refused_at_opening(path):
    opened(path).close()
    path.chmod(0o444)
    with pytest.raises(InputError, match=r"run\.db: the file is read-only"):
        opened(path)
    path.parent.chmod(0o555)
    try:
        with pytest.raises(InputError, match=r"new\.db: its folder is read-only"):
            opened(path.with_name("new.db"))
        assert read(path).readings == ()
    finally:
        path.parent.chmod(0o755)
    with pytest.raises(InputError, match=r"new\.db: the folder does not exist"):
        opened(path.parent / "none" / "new.db")
    with pytest.raises(InputError, match=r"cannot be opened"):
        opened(f"{path}\0")


def test_an_empty_file_is_a_new_store_to_a_writer_and_none_to_a_reader(path):
    path.touch()
    with pytest.raises(InputError, match="this is not a store"):
        read(path)
    opened(path).close()
    assert read(path).layers == LAYERS


def test_a_link_leads_to_its_store(path):
    path.symlink_to(path.with_name("target.db"))
    with opened(path) as writer:
        writer.reading(reading(0))
    assert path.is_symlink()
    assert steps(read(path)) == steps(read(path.with_name("target.db"))) == [0]


def test_any_name_can_be_a_store_s(path):
    path = path.with_name("a?b#c%20 猫.db")
    opened(path).close()
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert read(path).model == "tiny"


MADE_UP = [
    "UPDATE reading SET data = x'00'",
    "UPDATE reading SET data = x'FFFFFFFFFFFFFFFF'",
    "UPDATE reading SET data = 'text'",
    "UPDATE reading SET at = 'noon'",
    "UPDATE reading SET loss = 'much'",
    "UPDATE event SET kind = 'party'",
    "UPDATE event SET step = 'first'",
    "UPDATE event SET numbers = '[1'",
    "UPDATE event SET numbers = '[1]'",
    "UPDATE layer SET heads = 'many'",
    "UPDATE layer SET heads = -4",
    "UPDATE layer SET heads = 4000000000000",
    "DELETE FROM meta",
    "UPDATE meta SET value = 'x'",
    "DROP TABLE event",
]


@pytest.mark.parametrize("change", MADE_UP)
def test_a_store_that_was_made_up_is_one_clear_error(path, change):
    with opened(path) as writer:
        writer.reading(reading(0))
        writer.event(ALERT)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(change)
    connection.close()
    with pytest.raises(InputError, match=r"run\.db: this store is damaged"):
        read(path)


def test_the_owner_of_a_store_is_forgotten_when_it_is_dead(path):
    opened(path).close()
    connection = sqlite3.connect(path, isolation_level=None)
    owner = {"host": os.uname().nodename, "pid": os.getpid(), "started": "another boot:1"}
    connection.execute("INSERT INTO meta VALUES ('writer', ?)", (json.dumps(owner),))
    connection.close()
    opened(path).close()


def test_training_never_waits_long_for_a_store(path):
    with Writer(path, model="x", every=1, rows=None) as writer:
        writer.layers(LAYERS)
        ready = [reading(step) for step in range(200)]
        started = time.perf_counter()
        for one in ready:
            writer.reading(one)
        assert (time.perf_counter() - started) / len(ready) < 0.02


def test_a_file_that_is_deleted_or_replaced_meanwhile_is_told(path):
    """SQLite would go on writing to what nobody can open any more."""
    with opened(path) as writer:
        writer.reading(reading(0))
        path.rename(path.with_name("moved.db"))
        writer.reading(reading(1))
        assert str(writer.trouble) == "the file was deleted or replaced"
        path.with_name("moved.db").rename(path)
        writer._retry_at = 0.0
        writer.reading(reading(2))
        assert writer.trouble is None
    assert steps(read(path)) == [0, 1, 2]


def test_a_store_that_cannot_be_written_is_told_once_while_training_goes_on(tmp_path):
    model, where = build(), tmp_path / "run.db"
    with watch(model, every=1, store=where) as monitor:
        train(model, 2)
        where.unlink()
        with pytest.warns(RuntimeWarning, match=r"run.db cannot be written now \(the file was deleted") as told:
            train(model, 4)
    assert len(told) == 1
    assert monitor.latest.step == 5


def test_a_program_may_go_to_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with opened(Path("run.db")) as writer:
        writer.reading(reading(0))
        monkeypatch.chdir("/")
        writer.reading(reading(1))
        assert writer.trouble is None
    opened(tmp_path / "run.db").close()
    assert steps(read(tmp_path / "run.db")) == [0, 1]
