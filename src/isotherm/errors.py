"""What can go wrong, and how it is said.

IsothermError
├── ArgumentError     a call was made with something it cannot take; names the argument
├── InputError        a model, text or file that cannot be read; names it
└── UnsupportedError  a named implementation does not do what was asked; names both

All of them end a command with exit code 2 and one line on standard error, never a traceback.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import log10
from pathlib import Path

from isotherm.language import LANGUAGES, Language, Text, current


class IsothermError(Exception):
    """Base of every error raised on purpose; `text` holds the message in both languages."""

    def __init__(self, text: Text) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return str(self.text)


class ArgumentError(IsothermError, ValueError):
    """An argument that cannot be taken.

    >>> str(ArgumentError("rows", Text("a positive number", "正数"), got=-1))
    'rows: expected a positive number, got -1'
    """

    def __init__(self, argument: str, expected: Text, *, got: object) -> None:
        self.argument, self.expected, self.got = argument, expected, got
        template = Text("{argument}: expected {expected}, got {got}", "{argument}：应为{expected}，实为 {got}")
        super().__init__(template.format(argument=argument, expected=expected, got=got))


class InputError(IsothermError):
    """Something to be read that cannot be.

    >>> str(InputError("notes.txt", Text("not UTF-8", "不是 UTF-8 文本")))
    'notes.txt: not UTF-8'
    """

    def __init__(self, what: object, why: Text) -> None:
        super().__init__(Text("{what}: {why}", "{what}：{why}").format(what=what, why=why))


class UnsupportedError(IsothermError, NotImplementedError):
    """An implementation asked for by name cannot do this; nothing else is run in its place."""

    def __init__(self, implementation: str, what: Text) -> None:
        self.implementation = implementation
        template = Text(
            "impl={implementation!r} does not support {what}; impl='auto' picks one that does",
            "impl={implementation!r} 不支持{what}；impl='auto' 会另选可用的实现",
        )
        super().__init__(template.format(implementation=implementation, what=what))


def shown(value: object) -> str:
    """repr(value). Python prints no whole number of more than 4300 digits; of such a number, its length."""
    try:
        return repr(value)
    except ValueError:
        digits = int(value.bit_length() * log10(2)) + 1 if isinstance(value, int) else 0
        return str(Text("a number of {n} digits", "一个 {n} 位数").format(n=digits))


def as_path(path: object) -> Path:
    """The path to write to."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError("path", Text("a path", "一个路径"), got=shown(path))
    return Path(path)


def as_language(language: object) -> Language:
    """The language to write in; None means the current one."""
    if language is not None and language not in LANGUAGES:
        raise ArgumentError("language", Text('"en", "zh" or None', '"en"、"zh" 或 None'), got=shown(language))
    return language or current()


@contextmanager
def named(**names: str) -> Iterator[None]:
    """In this block an error about an argument calls it what a person wrote: `named(scale="model.rule")`."""
    try:
        yield
    except ArgumentError as error:
        if error.argument not in names:
            raise
        raise ArgumentError(names[error.argument], error.expected, got=error.got) from error
