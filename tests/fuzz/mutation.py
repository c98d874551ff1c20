"""Random changes to bytes and to trees of plain values. The same `Random` gives the same changes."""

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

ESCAPES = ("\x1b]0;title\x07", "\x1b[31m", "\x9b2J", "\u202e", "\u2028", "\r", "\t", "\n")
TEXTS = (
    *("", " ", ".", "..", "-", "--", "~", "/", "a/b", "None", "null", "true", "{}", "[]", "{0}", "{x}", "%s", "'", '"'),
    *(
        "0",
        "-1",
        "1e400",
        "nan",
        "1_0",
        "٣",
        "９",
        "½",
        "x" * 300,
        "é" * 130,
        "温度",
        "🌡️",
        "a\u0301",
        "\ud800",
        "\udcff",
    ),
    *ESCAPES,
)
NUMBERS = (0, -1, 1, 2, 3, 7, 2**31, 2**63, 2**64, -(2**63), 10**20, 10**400, 0.0, -0.0, 0.5, 1e-320, 1e308)
STRANGE = (float("nan"), float("inf"), float("-inf"))
PIECES = (
    *(
        b"",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\r\n",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"=",
    ),
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-5", b"9" * 5000, b"[" * 5000, b'{"a":' * 3000, b"\\ud800"),
    *(b"\x1b]0;t\x07", b"[x]", b"[[x]]", b"a.b.c = 1\n", b"1979-05-27", b"0xff", b"inf", b"'''", b'"""', b"#"),
)
DEEP = "\ue000deep"
"""Stands in a tree for thousands of nested lists, which Python could not write out by itself."""


def value(random: Random) -> Any:
    """A value that a reader may not expect."""
    kinds: list[Callable[[], Any]] = [
        lambda: random.choice(TEXTS),
        lambda: random.choice(NUMBERS),
        lambda: random.choice(STRANGE),
        lambda: random.choice([None, True, False, [], {}, [[]], {"": None}, [None], [1, "a"], {"a": {"b": []}}]),
        lambda: DEEP,
    ]
    return random.choices(kinds, weights=[5, 5, 1, 5, 0.3])[0]()


def like(old: Any, random: Random) -> Any:
    """Another value of the same type, which a reader may accept."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return random.choice([number for number in NUMBERS if isinstance(number, int)])
    if isinstance(old, float):
        return random.choice([float(number) for number in NUMBERS if number < 1e300] + [*STRANGE])
    if isinstance(old, str):
        return random.choice(TEXTS)
    if isinstance(old, list):
        return random.choice([[], old[:-1], old + old, old[::-1], old * 50])
    return {} if isinstance(old, dict) else value(random)


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree of dicts and lists."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            found.append((node, key))
            if isinstance(child, dict | list):
                waiting.append(child)
    return found


def change_tree(tree: Any, random: Random) -> Any:
    """A copy of the tree with one to three random changes."""
    tree = copy.deepcopy(tree)
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        if not isinstance(tree, dict | list) or not (found := places(tree)) or random.random() < 0.01:
            return value(random)
        node, key = random.choice(found)
        if random.random() < 0.4:
            node[key] = like(node[key], random)
            continue
        match random.randrange(6):
            case 0:
                del node[key]
            case 1 if isinstance(node, dict):
                node[random.choice(TEXTS)] = value(random)
            case 1:
                node.insert(key, value(random))
            case 2:
                other, elsewhere = random.choice(found)
                node[key] = copy.deepcopy(other[elsewhere]) if _has(other, elsewhere) else None
            case 3 if isinstance(node[key], int | float) and abs(node[key]) < 1e300:
                node[key] = random.choice(
                    [-node[key], node[key] * 10**6, str(node[key]), float(node[key]), [node[key]]]
                )
            case _:
                node[key] = value(random)
    return tree


def _has(node: Any, key: Any) -> bool:
    return key in node if isinstance(node, dict) else key < len(node)


def change_bytes(data: bytes, random: Random, pieces: tuple[bytes, ...] = PIECES) -> bytes:
    """The bytes with one to four random changes."""
    for _ in range(random.randint(1, 4)):
        start = random.randrange(len(data) + 1)
        end = min(len(data), start + random.choice([0, 1, 2, 8, 64, len(data)]))
        match random.randrange(5):
            case 0:
                data = data[:start] + data[end:]
            case 1:
                data = data[:start]
            case 2:
                data = data[:start] + data[start:end] * 2 + data[end:]
            case 3:
                data = data[:start] + random.randbytes(random.choice([1, 1, 2, 4, 8])) + data[end:]
            case _:
                data = data[:start] + random.choice(pieces) + data[end:]
    return data


def as_json(tree: Any) -> bytes:
    """The tree as JSON, lone surrogates and nested thousands included."""
    deep = "[" * 20000 + "]" * 20000
    return json.dumps(tree).replace(json.dumps(DEEP), deep).encode()


def as_toml(tree: Any) -> bytes:
    """The tree as TOML, as far as TOML can say it."""
    if not isinstance(tree, dict):
        return b"x = " + _toml(tree).encode("utf-8", "surrogatepass")
    plain = {key: child for key, child in tree.items() if not isinstance(child, dict)}
    text = "".join(f"{_key(key)} = {_toml(child)}\n" for key, child in plain.items())
    for name, table in tree.items():
        if isinstance(table, dict):
            text += f"[{_key(name)}]\n" + "".join(f"{_key(key)} = {_toml(child)}\n" for key, child in table.items())
    return text.encode("utf-8", "surrogatepass")


def _key(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else json.dumps(name, ensure_ascii=name.isascii())


def _toml(child: Any) -> str:
    if child == DEEP:
        return "[" * 5000 + "]" * 5000
    if isinstance(child, dict):
        return "{" + ", ".join(f"{_key(key)} = {_toml(value)}" for key, value in child.items()) + "}"
    if isinstance(child, list):
        return "[" + ", ".join(map(_toml, child)) + "]"
    return json.dumps(child).replace("NaN", "nan").replace("Infinity", "inf")
