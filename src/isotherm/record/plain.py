"""Convert records to JSON's types and back."""

import dataclasses
import types
import typing
from math import isfinite
from typing import Any, Literal, TypeVar, get_args, get_origin

from isotherm.errors import ArgumentError
from isotherm.language import Text

Record = TypeVar("Record")


def to_plain(record: object) -> Any:
    """Turn dataclasses into dicts, tuples into lists, NaN and Inf into None, ready for `json.dumps`."""
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
    return record


def from_plain(kind: type[Record], data: Any, where: str = "report") -> Record:
    """Invert `to_plain`. An `ArgumentError` names the field that does not fit."""
    if kind is Text or dataclasses.is_dataclass(kind):
        if not isinstance(data, dict):
            raise ArgumentError(where, Text("an object", "对象"), got=type(data).__name__)
        hints = typing.get_type_hints(kind)
        values = {}
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]
            if field.name in data:
                values[field.name] = from_plain(hints[field.name], data[field.name], f"{where}.{field.name}")
            elif field.default is dataclasses.MISSING:
                raise ArgumentError(f"{where}.{field.name}", Text("a value", "一个值"), got="nothing")
        return kind(**values)
    return typing.cast(Record, _value(kind, data, where))


def _value(kind: Any, data: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is types.UnionType or origin is typing.Union:
        if data is None and type(None) in arguments:
            return None
        wanted = [argument for argument in arguments if argument is not type(None)]
        if len(wanted) == 1:
            return from_plain(wanted[0], data, where)
        matching = [argument for argument in wanted if _fits(argument, data)]
        if matching:
            return from_plain(matching[0], data, where)
    elif origin is tuple and isinstance(data, list):
        kinds = [arguments[0]] * len(data) if arguments[-1] is Ellipsis else list(arguments)
        if len(kinds) == len(data):
            return tuple(from_plain(kinds[i], value, f"{where}[{i}]") for i, value in enumerate(data))
    elif origin is dict and isinstance(data, dict):
        return {key: from_plain(arguments[1], value, f"{where}.{key}") for key, value in data.items()}
    elif origin is Literal:
        if data in arguments:
            return data
        raise ArgumentError(where, Text(f"one of {arguments}", f"{arguments} 之一"), got=repr(data))
    elif _fits(kind, data):
        return float(data) if kind is float else data
    raise ArgumentError(where, Text(f"{kind}", f"{kind}"), got=repr(data)[:60])


def _fits(kind: Any, data: Any) -> bool:
    if kind is float:
        return isinstance(data, (int, float)) and not isinstance(data, bool)
    return type(data) is kind
