"""Every key of a configuration as a table for a document, in either language."""

from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from isotherm.language import Language, Text
from isotherm.train.config import Config

_HEAD = Text("| key | default | meaning |", "| 键 | 默认 | 含义 |")


def table(language: Language) -> str:
    """A Markdown table for each section, under its name."""
    parts = []
    for name, kind in get_type_hints(Config).items():
        hints = get_type_hints(kind)
        rows = [
            f"| `{item.name}` | {_default(item.default)} | {item.metadata['text'].to(language)}{_choices(hints[item.name])} |"
            for item in fields(kind)
        ]
        parts.append("\n".join([f"### `[{name}]`", _HEAD.to(language), "| --- | --- | --- |", *rows]))
    return "\n\n".join(parts)


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
