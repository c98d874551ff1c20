import errno
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from isotherm.errors import IsothermError
from isotherm.report import files
from isotherm.report.files import write_atomically


def test_it_writes_utf8_and_replaces(tmp_path):
    path = tmp_path / "报告.html"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o640)
    write_atomically(path, "新\n")
    assert path.read_bytes() == "新\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_keeps_its_owner(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    os.chown(path, 1234, 2345)
    write_atomically(path, "new")
    assert (path.read_text(), path.stat().st_uid, path.stat().st_gid) == ("new", 1234, 2345)


def test_a_new_file_has_the_usual_mode(tmp_path):
    (tmp_path / "plain").write_text("")
    write_atomically(str(tmp_path / "new"), "x")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(
    ("call", "code", "english", "chinese"),
    [
        ("fsync", errno.ENOSPC, "no space is left", "磁盘空间不足"),
        ("replace", errno.EACCES, "no permission", "没有写入"),
        ("fsync", errno.EIO, os.strerror(errno.EIO), os.strerror(errno.EIO)),
    ],
)
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call, code, english, chinese):
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")

    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(*(("os.fsync", fail) if call == "fsync" else (Path, "replace", fail)))
    with pytest.raises(IsothermError) as caught:
        write_atomically(path, "new")
    assert str(path) in caught.value.text.en
    assert english in caught.value.text.en
    assert chinese in caught.value.text.zh
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_through_a_chain_of_symlinks_to_the_file_at_its_end(tmp_path):
    (tmp_path / "real").mkdir()
    end, middle, start = tmp_path / "real" / "end.html", tmp_path / "middle", tmp_path / "start"
    end.write_text("old")
    end.chmod(0o604)
    middle.symlink_to("real/end.html")
    start.symlink_to(middle)
    write_atomically(start, "new")
    assert (start.is_symlink(), middle.is_symlink()) == (True, True)
    assert end.read_text() == "new"
    assert stat.S_IMODE(end.stat().st_mode) == 0o604
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["end.html"]


def test_a_dangling_symlink_creates_its_target(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("later.html")
    write_atomically(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "later.html").read_text() == "new"


def test_a_symlinked_folder_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link" / "report.html", "new")
    assert (tmp_path / "real" / "report.html").read_text() == "new"


@pytest.mark.parametrize(
    ("target", "why"), [("loop", "circle"), ("none/report.html", "does not exist"), ("folder", "is a folder")]
)
def test_symlinks_that_lead_nowhere_stay_as_they_are(tmp_path, target, why):
    (tmp_path / "folder").mkdir()
    link = tmp_path / "loop"
    link.symlink_to(target)
    with pytest.raises(IsothermError, match=why):
        write_atomically(link, "new")
    assert os.readlink(link) == target
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_gets_the_text_and_stays_a_pipe(tmp_path, linked):
    pipe, path = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    path.symlink_to("pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    write_atomically(path if linked else pipe, "新" * 100_000)
    reader.join(20)
    assert got == ["新" * 100_000]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "pipe"]


def test_a_pipe_that_nobody_reads_is_an_error_and_no_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(IsothermError, match="nobody reads"):
        write_atomically(tmp_path / "pipe", "x")
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)


def test_a_reader_that_leaves_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["head", "-c", "1", tmp_path / "pipe"], stdout=subprocess.DEVNULL)
    with pytest.raises(IsothermError, match="closed"):
        write_atomically(tmp_path / "pipe", "x" * 10_000_000)
    reader.wait(20)


def device(path, kind, major, minor):
    """A device node of the test's own: a broken writer that runs as root would destroy the machine's."""
    try:
        os.mknod(path, 0o666 | kind, os.makedev(major, minor))
    except PermissionError:
        pytest.skip("no device nodes can be made here")
    return path


def test_a_device_is_written_to_and_left(tmp_path):
    null, full = device(tmp_path / "null", stat.S_IFCHR, 1, 3), device(tmp_path / "full", stat.S_IFCHR, 1, 7)
    (tmp_path / "link").symlink_to("full")
    write_atomically(null, "x")
    for path in (full, tmp_path / "link"):
        with pytest.raises(IsothermError, match="no space is left"):
            write_atomically(path, "x")
    assert all(stat.S_ISCHR(path.lstat().st_mode) for path in (null, full))
    assert os.readlink(tmp_path / "link") == "full"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_disk_is_refused(tmp_path):
    disk = device(tmp_path / "disk", stat.S_IFBLK, 250, 99)
    with pytest.raises(IsothermError, match="is a disk"):
        write_atomically(disk, "x")
    assert stat.S_ISBLK(disk.lstat().st_mode)


WRITES = (
    "from isotherm.report.files import write_atomically; print('before'); "
    "write_atomically({path!r}, 'page\\n'); print('after')"
)


@pytest.mark.parametrize("path", ["stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_standard_output_keeps_everything_in_order(tmp_path, tmp_path_factory, path, kind):
    """`stdout` is a link as /dev/stdout is, but one that a broken writer may destroy."""
    own = tmp_path_factory.mktemp("dev") / "stdout"
    own.symlink_to("/proc/self/fd/1")
    command = [sys.executable, "-c", WRITES.format(path=str(own) if path == "stdout" else path)]
    if kind == "pipe":
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    else:
        with (tmp_path / "out").open("w") as out:
            subprocess.run(command, stdout=out, check=True)
        said = (tmp_path / "out").read_text()
        assert [one.name for one in tmp_path.iterdir()] == ["out"]
    assert said == "before\npage\nafter\n"
    assert own.is_symlink()


def test_half_characters_are_written_as_json_escapes_them(tmp_path):
    write_atomically(tmp_path / "a.json", json.dumps({"name": "half \ud800"}, ensure_ascii=False))
    assert json.loads((tmp_path / "a.json").read_bytes()) == {"name": "half \ud800"}


def test_bytes_are_written_as_they_are(tmp_path):
    write_atomically(tmp_path / "a.png", b"\x89PNG\r\n")
    assert (tmp_path / "a.png").read_bytes() == b"\x89PNG\r\n"


@pytest.mark.parametrize("name", ["a\0b", "half \ud800"])
def test_a_name_that_no_file_can_have(tmp_path, name):
    with pytest.raises(IsothermError, match="not a possible file name") as caught:
        write_atomically(tmp_path / name, "x")
    assert "□" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_file_stays(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(IsothermError, match="read-only"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("place", "why"),
    [("missing/report.html", "does not exist"), ("file/report.html", "not a folder"), ("folder", "is a folder")],
)
def test_impossible_places(tmp_path, place, why):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(IsothermError, match=why):
        write_atomically(tmp_path / place, "x")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(IsothermError, match="no permission"):
        write_atomically(tmp_path / "report.html", "x")


def test_an_interruption_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "report.html", "x")
    assert list(tmp_path.iterdir()) == []
