"""Read text files: UTF-8, line by line, and TOML."""

import tomllib
from pathlib import Path
from typing import Any

from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.record.files import read_bytes


def lines(path: str | Path) -> list[str]:
    r"""A file's lines without their ends. Only \n and \r\n end a line, since U+2028 and its like occur within sentences."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The decoder may have skipped a byte-order mark, so lines are counted in what it saw.
        number = error.object[: error.start].count(b"\n") + 1
        why = Text("line {number} is not UTF-8 text", "第 {number} 行不是 UTF-8 文本")
        raise InputError(path, why.format(number=number)) from error
    if not text.strip():
        raise InputError(path, Text("the file is empty", "文件是空的"))
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_toml(path: str | Path) -> tuple[dict[str, Any], str]:
    """The table in a TOML file, and the file's text."""
    text = "\n".join(lines(path)) + "\n"
    try:
        return tomllib.loads(text), text
    except (ValueError, RecursionError) as error:  # also whole numbers of thousands of digits
        why = Text("not TOML ({why})", "不是 TOML（{why}）").format(why=error)
        raise InputError(path, why) from error
