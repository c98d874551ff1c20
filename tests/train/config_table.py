"""Every key of a configuration, as a document should list it."""

from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from isotherm.train.config import Config


def keys() -> list[tuple[str, str, str, str]]:
    """Every key: its section, its name, its default and its choices, as a document's table shows them."""
    return [
        (section, item.name, _default(item.default), _choices(get_type_hints(kind)[item.name]))
        for section, kind in get_type_hints(Config).items()
        for item in fields(kind)
    ]


def _default(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value}`"


def _choices(hint: Any) -> str:
    if isinstance(hint, UnionType):
        hint = next(kind for kind in get_args(hint) if kind is not NoneType)
    return f" ({', '.join(f'`{name}`' for name in get_args(hint))})" if get_origin(hint) is Literal else ""
