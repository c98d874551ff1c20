"""Files that are whole or not there: a reader never sees half a report, whatever goes wrong."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from isotherm.errors import IsothermError
from isotherm.language import Text

_CANNOT = Text("cannot write {path}: {why}", "无法写入 {path}：{why}")
_WHY: dict[int, Text] = {
    errno.ENOSPC: Text("no space is left on the disk", "磁盘空间不足"),
    errno.EDQUOT: Text("the disk quota is used up", "磁盘配额已用完"),
    errno.EROFS: Text("the file system is read-only", "文件系统为只读"),
    errno.EACCES: Text("no permission to write in this folder", "没有写入该文件夹的权限"),
    errno.EPERM: Text("no permission to write in this folder", "没有写入该文件夹的权限"),
    errno.ENOENT: Text("the folder does not exist", "文件夹不存在"),
    errno.ENOTDIR: Text("a part of the path is not a folder", "路径中有一部分不是文件夹"),
    errno.EISDIR: Text("it is a folder", "它是一个文件夹"),
    errno.ENAMETOOLONG: Text("the name is too long", "文件名过长"),
}


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text beside its place and move it there; on failure nothing is left and the old file still stands."""
    target = Path(path)
    temporary: Path | None = None
    try:
        with NamedTemporaryFile(
            "w", encoding="utf-8", newline="\n", dir=target.parent, prefix=".isotherm-", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(_usual_mode(target))
        temporary.replace(target)
    except OSError as error:
        raise write_error(target, error) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_error(path: object, why: OSError | Text) -> IsothermError:
    """«cannot write PATH: why», for a reason of the system's or one's own."""
    if isinstance(why, OSError):
        why = _WHY.get(why.errno or 0, Text(why.strerror or str(why), why.strerror or str(why)))
    return IsothermError(_CANNOT.format(path=path, why=why))


def _usual_mode(target: Path) -> int:
    """The mode the file has, or that a new one would get: temporary files are private, reports are not."""
    with suppress(FileNotFoundError):
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
