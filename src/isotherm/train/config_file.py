"""Reading a configuration strictly: a misspelt key or a value of the wrong type is an error that names what was meant."""

import tomllib
from dataclasses import asdict, fields
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from isotherm.errors import ArgumentError, InputError
from isotherm.language import Text
from isotherm.train.config import Config
from isotherm.train.text import lines

_KINDS = {
    bool: Text("true or false", "true 或 false"),
    int: Text("a whole number", "整数"),
    float: Text("a number", "数"),
    str: Text("text in quotes", "带引号的文本"),
    tuple: Text("a list of texts", "文本列表"),
}


def load(path: str | Path) -> Config:
    """The configuration in a TOML file."""
    try:
        table = tomllib.loads("\n".join(lines(path)))
    except tomllib.TOMLDecodeError as error:
        why = Text("not TOML ({why})", "不是 TOML（{why}）").format(why=error)
        raise InputError(path, why) from error
    try:
        return from_plain(table)
    except ArgumentError as error:
        raise InputError(path, error.text) from error


def from_plain(table: dict[str, Any]) -> Config:
    """The configuration in plain tables; what is not given has its default."""
    hints = get_type_hints(Config)
    _known(table, list(hints), "")
    sections = {}
    for name, kind in hints.items():
        given = table.get(name, {})
        if not isinstance(given, dict):
            raise ArgumentError(name, Text("a table [{name}]", "一个表 [{name}]").format(name=name), got=repr(given))
        sections[name] = _section(kind, given, name)
    return Config(**sections)


def to_plain(config: Config) -> dict[str, Any]:
    """The configuration as plain tables, keys without a value left out, for JSON."""
    return {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in asdict(config).items()
    }


def _section(kind: Any, given: dict[str, Any], name: str) -> Any:
    hints = get_type_hints(kind)
    _known(given, list(hints), f"{name}.")
    bounds = {item.name: item.metadata for item in fields(kind)}
    values = {}
    for key, value in given.items():
        where = f"{name}.{key}"
        values[key] = _value(where, value, hints[key])
        low, high = bounds[key]["least"], bounds[key]["most"]
        if low is not None and not low <= values[key] <= (float("inf") if high is None else high):
            between = (
                Text("{low} or more", "不小于 {low}") if high is None else Text("{low} to {high}", "{low} 到 {high}")
            )
            raise ArgumentError(where, between.format(low=low, high=high), got=value)
    return kind(**values)


def _known(given: dict[str, Any], names: list[str], prefix: str) -> None:
    for key in given:
        if key not in names:
            near = get_close_matches(key, names, n=1, cutoff=0.5)
            if near:
                expected = Text("a known key (did you mean {near}?)", "已知的键（是否要用 {near}？）").format(
                    near=near[0]
                )
            else:
                expected = Text("one of {names}", "{names} 之一").format(names=", ".join(names))
            raise ArgumentError(f"{prefix}{key}", expected, got=repr(key))


def _value(where: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value not in choices:
            near = get_close_matches(str(value), choices, n=1)
            hint_text = (
                Text(" (did you mean {near}?)", "（是否要用 {near}？）").format(near=near[0]) if near else Text("", "")
            )
            expected = Text("{choices}{near}", "{choices}{near}").format(choices=" | ".join(choices), near=hint_text)
            raise ArgumentError(where, expected, got=repr(value))
        return value
    if isinstance(hint, UnionType):
        hint = next(kind for kind in get_args(hint) if kind is not NoneType)
    kind = get_origin(hint) or hint
    if kind is tuple and isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        return tuple(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ArgumentError(where, _KINDS[kind], got=repr(value))
    return value
