"""Reading text: UTF-8, line by line, and a clear word about what is wrong with it otherwise."""

from pathlib import Path

from isotherm.errors import InputError
from isotherm.language import Text


def lines(path: str | Path) -> list[str]:
    r"""A file's lines, without their ends; only \n and \r\n end a line, since U+2028 and its like occur within sentences."""
    data = read(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The decoder may have skipped the mark at the start, so the place is counted in what it saw.
        number = error.object[: error.start].count(b"\n") + 1
        why = Text("line {number} is not UTF-8 text", "第 {number} 行不是 UTF-8 文本")
        raise InputError(path, why.format(number=number)) from error
    if not text.strip():
        raise InputError(path, Text("the file is empty", "文件是空的"))
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read(path: str | Path) -> bytes:
    """A file's bytes."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise InputError(path, Text("there is no such file", "没有这个文件")) from error
    except IsADirectoryError as error:
        raise InputError(path, Text("this is a folder; a file is needed", "这是文件夹，需要文件")) from error
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(path, Text("cannot be read ({why})", "无法读取（{why}）").format(why=why)) from error
