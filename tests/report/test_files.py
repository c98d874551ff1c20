import errno
import os
import stat
from pathlib import Path

import pytest

from isotherm.errors import IsothermError
from isotherm.report.files import write_atomically


def test_it_writes_utf8_and_replaces(tmp_path):
    path = tmp_path / "报告.html"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o640)
    write_atomically(path, "新\n")
    assert path.read_bytes() == "新\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_for_real(tmp_path, monkeypatch):
    """/dev/full answers every write with ENOSPC; a temporary file stands in for it only by name."""
    from isotherm.report import files

    def full(*_, **__):
        file = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115
        (tmp_path / ".isotherm-x").touch()
        wrapped = type("Full", (), {"name": str(tmp_path / ".isotherm-x"), "__enter__": lambda self: self})
        wrapped.__exit__ = lambda self, *_: file.close()
        wrapped.write, wrapped.flush, wrapped.fileno = (
            (lambda _, text: file.write(text)),
            (lambda _: file.flush()),
            None,
        )
        return wrapped()

    monkeypatch.setattr(files, "NamedTemporaryFile", full)
    with pytest.raises(IsothermError, match="no space is left"):
        write_atomically(tmp_path / "report.html", "x" * 100_000)
    assert list(tmp_path.iterdir()) == []


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
