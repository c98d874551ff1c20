"""Read files that may be damaged or made up: an `InputError` names the file and says what is wrong with it."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text
from isotherm.record.plain import Record, from_plain

LARGEST_FILE = 2**29
"""Bytes of the largest file that is read whole."""
DEEPEST = 50
"""Levels of lists and objects within one another. Our own files have fewer than ten."""
SEAL = "seal"
"""The key of a sealed object that holds the hash of the others."""


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """A file's bytes, of which there may be `most`, or `LARGEST_FILE`."""
    most = LARGEST_FILE if most is None else most
    try:
        with Path(path).open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError as error:
        raise InputError(path, Text("there is no such file", "没有这个文件")) from error
    except IsADirectoryError as error:
        raise InputError(path, Text("this is a folder; a file is needed", "这是文件夹，需要文件")) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(path, Text("cannot be read ({why})", "无法读取（{why}）").format(why=why)) from error
    if len(data) > most:
        raise InputError(path, Text("larger than {most} MiB", "大于 {most} MiB").format(most=most >> 20))
    return data


def parse_json(name: object, data: bytes, *, unique: bool = True) -> Any:
    """The value in JSON text; `name` is what an error calls it. If `unique`, no object may have one key twice."""
    try:
        found = json.loads(data, object_pairs_hook=_object if unique else None)
    except RecursionError:
        found, deep = None, True
    except ValueError as error:  # also bytes that are not UTF-8, and whole numbers of thousands of digits
        raise InputError(name, Text("not JSON ({why})", "不是 JSON（{why}）").format(why=error)) from error
    else:
        deep = _is_deep(found)
    if deep:
        raise InputError(name, Text("nested too deeply", "嵌套过深"))
    return found


def read_record(kind: type[Record], path: Path) -> Record:
    """The record in a JSON file."""
    return checked(kind, path, parse_json(path, read_bytes(path)))


def checked(kind: type[Record], name: object, data: Any, *, strict: bool = False) -> Record:
    """`from_plain`, with an error that names the file."""
    try:
        return from_plain(kind, data, where="", strict=strict)
    except ArgumentError as error:
        whole = Text("expected {expected}, got {got}", "应为{expected}，实为 {got}")
        why = error.text if error.argument else whole.format(expected=error.expected, got=error.got)
        raise InputError(name, why) from error


def sealed(plain: dict[str, Any]) -> dict[str, Any]:
    """The object with a hash of its contents, so that a later change by hand is noticed."""
    return {**plain, SEAL: _hash(plain)}


def unsealed(name: object, data: Any) -> Any:
    """What `sealed` was given, if nothing was changed since. What was never sealed comes back as it is."""
    if not isinstance(data, dict) or SEAL not in data:
        return data
    plain = {key: value for key, value in data.items() if key != SEAL}
    if data[SEAL] != _hash(plain):
        why = Text("changed since it was written (its seal differs)", "写出之后被改动过（封印不符）")
        raise InputError(name, why)
    return plain


def _hash(plain: dict[str, Any]) -> str:
    return sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("one key twice in one object")
    return found


def _is_deep(data: Any) -> bool:
    level = [data]
    for _ in range(DEEPEST):
        level = [
            inner
            for one in level
            if isinstance(one, (list, dict))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True
