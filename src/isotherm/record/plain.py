"""Convert records to JSON's types and back, checking types and bounds on the way in.

A record is a dataclass. Its annotations say what each field may hold; `bounded` adds the least and the most a number may be,
and `read_by` names a function that reads what annotations cannot describe.
Everything that is read from disk, JSON or TOML, comes through `from_plain`.
"""

import dataclasses
import functools
import reprlib
import sys
import types
import typing
from difflib import get_close_matches
from math import isfinite, log10
from typing import Any, Literal, TypeVar, get_args, get_origin

from isotherm.errors import ArgumentError
from isotherm.language import Text

Record = TypeVar("Record")

LARGEST = 2**63 - 1
"""The largest whole number of a field without bounds of its own, either side of 0."""
OPTIONAL_NUMBER = float | None
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60
_WORDS = {
    bool: Text("true or false", "true 或 false"),
    int: Text("a whole number", "整数"),
    float: Text("a number", "数"),
    str: Text("text in quotes", "带引号的文本"),
    dict: Text("an object", "对象"),
    tuple[str, ...]: Text("a list of texts", "文本列表"),
}


def bounded(default: Any, least: float, most: float) -> Any:
    """A field that holds a number from `least` to `most`, or several of them."""
    return dataclasses.field(default=default, metadata={"least": least, "most": most})


def read_by(read: typing.Callable[[Any, str], Any]) -> dict[str, Any]:
    """The metadata of a field that `read` makes from JSON's types; it is given the data and the field's name."""
    return {"read": read}


def to_plain(record: object) -> Any:
    """Turn dataclasses into dicts, tuples and arrays into lists, NaN and Inf into None, ready for `json.dumps`."""
    if isinstance(record, Text):
        return {"en": record.en, "zh": record.zh}
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {field.name: to_plain(getattr(record, field.name)) for field in dataclasses.fields(record)}
    if isinstance(record, dict):
        return {key: to_plain(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [to_plain(value) for value in record]
    if isinstance(record, float) and not isfinite(record):
        return None
    if hasattr(record, "tolist"):  # an array of numpy, which is not imported here
        return to_plain(record.tolist())
    return record


def finite(value: float) -> float | None:
    """The number; None where it is NaN or Inf."""
    return value if isfinite(value) else None


def from_plain(kind: type[Record], data: Any, where: str = "report", *, strict: bool = False) -> Record:
    """Invert `to_plain`. An `ArgumentError` names the field that does not fit; `strict` refuses fields nobody knows."""
    fields = _fields(kind)  # type: ignore[arg-type]
    if fields is None:
        return typing.cast(Record, _value(kind, data, where, strict=strict))
    if not isinstance(data, dict):
        raise ArgumentError(where, Text("a table", "表") if strict else _WORDS[dict], got=short(data))
    if strict:
        known(data, [field.name for field, _ in fields], where)
    values = {}
    for field, hint in fields:
        value = data.get(field.name, dataclasses.MISSING)
        if not field.metadata and _is_obvious(hint, value):
            values[field.name] = value
            continue
        name = f"{where}.{field.name}".lstrip(".")
        if value is not dataclasses.MISSING:
            if type(value) is int:  # too large a number is answered with its bounds
                _check_bounds(name, value, **field.metadata)
            if (read := field.metadata.get("read")) is not None:
                values[field.name] = read(value, name)
                continue
            values[field.name] = from_plain(hint, value, name, strict=strict)
            _check_bounds(name, values[field.name], **field.metadata)
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ArgumentError(name, Text("a value", "一个值"), got=Text("nothing", "空"))
    return kind(**values)


@functools.cache
def _fields(kind: Any) -> list[tuple[dataclasses.Field[Any], Any]] | None:
    """The fields of a record, each with its type; None if this is no record."""
    if not (kind is Text or dataclasses.is_dataclass(kind)):
        return None
    hints = typing.get_type_hints(kind)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]


@functools.cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a type like `tuple[int, ...]` is made of."""
    return get_origin(kind), get_args(kind)


def _is_obvious(kind: Any, data: Any) -> bool:
    """Whether the value is one of those that a large report is full of, and fits without a closer look."""
    if type(data) is float:
        return (kind is float or kind == OPTIONAL_NUMBER) and isfinite(data)
    return type(data) is int and kind is int and abs(data) <= LARGEST


def known(given: typing.Iterable[str], names: typing.Iterable[str], where: str = "") -> None:
    """Refuse a name that is not among `names`, and suggest the nearest."""
    names = list(names)
    for name in given:
        if name in names:
            continue
        near = get_close_matches(name[:100], names, n=1, cutoff=0.5)
        hint = Text("a known key (did you mean {near}?)", "已知的键（是否要用 {near}？）").format(near="".join(near))
        among = Text("one of {names}", "{names} 之一").format(names=", ".join(names))
        raise ArgumentError(f"{where}.{name[:100]}".lstrip("."), hint if near else among, got=short(name))


def one_of(where: str, given: object, choices: typing.Iterable[str], *, when: Text | None = None) -> None:
    """Refuse what is not among `choices`, and suggest the nearest; `when` says under which condition these are the choices."""
    choices = list(choices)
    if given in choices:
        return
    near = get_close_matches(given[:100], choices, n=1) if isinstance(given, str) else []
    hint = Text(" (did you mean {near}?)", "（是否要用 {near}？）").format(near=near[0]) if near else Text("", "")
    expected = Text("{choices}{hint}{when}", "{choices}{hint}{when}")
    raise ArgumentError(
        where, expected.format(choices=" | ".join(choices), hint=hint, when=when or Text("", "")), got=short(given)
    )


def short(data: object) -> str:
    """The value as Python writes it, cut to about 60 characters, however large or deeply nested it is."""
    if isinstance(data, int) and abs(data) > LARGEST:
        return f"{'-' * (data < 0)}10^{int(data.bit_length() * log10(2))}"
    try:
        return _REPR.repr(data)
    except ValueError:  # a list with a whole number of thousands of digits
        return type(data).__name__


def _check_bounds(where: str, value: Any, *, least: float | None = None, most: float = 0.0, **_: Any) -> None:
    for one in value if isinstance(value, tuple) else (value,):
        if least is not None and one is not None and not least <= one <= most:
            between = Text("{least} to {most}", "{least} 到 {most}").format(least=least, most=most)
            raise ArgumentError(where, between, got=short(one))


def _value(kind: Any, data: Any, where: str, *, strict: bool) -> Any:
    origin, arguments = _parts(kind)
    if origin is types.UnionType or origin is typing.Union:
        if type(None) in arguments and (data is None or (isinstance(data, float) and not isfinite(data))):
            return None
        wanted = [argument for argument in arguments if argument is not type(None)]
        matching = [argument for argument in wanted if _fits(argument, data)]
        return from_plain((matching or wanted)[0], data, where, strict=strict)
    if origin is tuple and isinstance(data, (list, tuple)):
        if arguments[-1] is Ellipsis and all(_is_obvious(arguments[0], value) for value in data):
            return tuple(data)
        kinds = [arguments[0]] * len(data) if arguments[-1] is Ellipsis else list(arguments)
        if len(kinds) == len(data):
            return tuple(from_plain(kinds[i], value, f"{where}[{i}]", strict=strict) for i, value in enumerate(data))
    elif origin is dict and isinstance(data, dict):
        return {key: from_plain(arguments[1], value, f"{where}.{key}") for key, value in data.items()}
    elif origin is Literal:
        one_of(where, data, arguments)
        return data
    elif _fits(kind, data):
        return float(data) if kind is float else data
    expected = _WORDS.get(kind, Text("a list", "列表"))
    if kind in (int, float) and type(data) in (int, float) and (kind is float or type(data) is int):
        expected = Text("a number within range", "范围之内的数")
    raise ArgumentError(where, expected, got=short(data))


def _fits(kind: Any, data: Any) -> bool:
    if kind is float:
        return type(data) in (int, float) and abs(data) <= sys.float_info.max
    if type(data) is str and not data.isascii() and data != data.encode(errors="ignore").decode():
        return False  # half of a surrogate pair, which cannot be written
    return kind is Any or (type(data) is kind and (kind is not int or abs(data) <= LARGEST))
