"""Output goes where it was told: through symbolic links, into pipes and devices, and onto files as a whole or not at all."""

import errno
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from isotherm.errors import IsothermError
from isotherm.language import Text
from isotherm.printable import printable

PATIENCE = 10.0
"""Seconds to wait until someone reads from a pipe."""
_LINKS = 40
"""Symbolic links followed one after another, as many as Linux follows."""
_CANNOT = Text("cannot write {path}: {why}", "无法写入 {path}：{why}")
_WHY: dict[int, Text] = {
    errno.ENOSPC: Text("no space is left on the disk", "磁盘空间不足"),
    errno.EDQUOT: Text("the disk quota is used up", "磁盘配额已用完"),
    errno.EROFS: Text("the file system is read-only", "文件系统为只读"),
    errno.EACCES: Text("no permission to write there", "没有写入权限"),
    errno.EPERM: Text("no permission to write there", "没有写入权限"),
    errno.ENOENT: Text("the folder does not exist", "文件夹不存在"),
    errno.EEXIST: Text("it is a file, not a folder", "它是文件，不是文件夹"),
    errno.ENOTDIR: Text("a part of the path is not a folder", "路径中有一部分不是文件夹"),
    errno.EISDIR: Text("it is a folder", "它是一个文件夹"),
    errno.ENAMETOOLONG: Text("the name is too long", "文件名过长"),
    errno.ELOOP: Text("its symbolic links lead in a circle", "符号链接形成了循环"),
    errno.ENXIO: Text("nobody reads from it", "没有进程在读取它"),
    errno.EPIPE: Text("its reader has closed it", "读取方已将其关闭"),
}
_READ_ONLY = Text("the file is read-only", "文件为只读")
_DISK = Text("it is a disk", "它是一个磁盘设备")
_NO_NAME = Text("this is not a possible file name", "文件名无效")


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write UTF-8 text or bytes to a path.

    Symbolic links lead to their target. A regular file is replaced as a whole and keeps its mode; on failure the old
    one still stands and nothing else is left. Pipes and character devices are written to directly.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    try:
        target = _target(Path(path))
        kind = _kind(target)
        if kind is None or stat.S_ISREG(kind):
            _refuse_read_only(target, kind)
            _replace(target, data)
        elif stat.S_ISDIR(kind):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif stat.S_ISBLK(kind):
            raise write_error(path, _DISK)
        else:
            with _opened(target) as file:
                _write(file, data)
    except OSError as error:
        raise write_error(path, error) from error
    except ValueError as error:  # a NUL or half a surrogate pair in the name
        raise write_error(path, _NO_NAME) from error


def write_error(path: object, why: OSError | Text) -> IsothermError:
    """«cannot write PATH: why», for a reason of the system's or one's own."""
    if isinstance(why, OSError):
        why = _WHY.get(why.errno or 0, Text(why.strerror or str(why), why.strerror or str(why)))
    return IsothermError(_CANNOT.format(path=printable(str(path)), why=why))


def _target(path: Path) -> Path:
    """The end of a chain of symbolic links, there or not; an open file (/dev/stdout, /dev/fd/3) is an end too.

    A link in /proc/self/fd must not be followed by its text: that would replace the file behind standard output.
    """
    for _ in range(_LINKS):
        path = Path(os.path.realpath(path.parent), path.name)
        if _descriptor(path) is not None or not path.is_symlink():
            return path
        path = path.parent / os.readlink(path)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _descriptor(path: Path) -> int | None:
    """The number of the open file of this process that a path names."""
    found = re.fullmatch(rf"(?:/proc/{os.getpid()}(?:/task/\d+)?|/dev)/fd/(\d+)", str(path))
    return int(found[1]) if found else None


def _kind(target: Path) -> int | None:
    """Type and mode of what is there; an open file counts as a device, to be written to where it stands."""
    if (number := _descriptor(target)) is not None:
        os.fstat(number)
        return stat.S_IFCHR
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        return None


def _refuse_read_only(target: Path, kind: int | None) -> None:
    """Renaming replaces a read-only file, and root may write anything: neither is what its owner meant."""
    if kind is not None and (not kind & 0o222 or not os.access(target, os.W_OK)):
        raise write_error(target, _READ_ONLY)


def _replace(target: Path, data: bytes) -> None:
    temporary = target.parent / f".isotherm-{token_hex(8)}"
    try:
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            _write(number, data)
            os.fsync(number)
        finally:
            os.close(number)
        with suppress(FileNotFoundError):
            old = target.stat()
            with suppress(PermissionError, AttributeError):  # only root gives files away, and not on Windows
                os.chown(temporary, old.st_uid, old.st_gid)
            temporary.chmod(stat.S_IMODE(old.st_mode))
        temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def _opened(target: Path) -> Iterator[int]:
    """A pipe, device or open file, ready to be written to."""
    number = _descriptor(target)
    if number is not None:
        for stream in (sys.stdout, sys.stderr):  # what was printed before comes before
            with suppress(AttributeError, ValueError):
                stream.flush()
        number = os.dup(number)
    else:
        number = _patiently(target)
    try:
        os.set_blocking(number, True)
        yield number
    finally:
        os.close(number)


def _patiently(target: Path) -> int:
    """Open without blocking: a pipe that nobody reads would block for ever."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > end:
                raise
        time.sleep(0.02)


def _write(number: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(number, left) :]
