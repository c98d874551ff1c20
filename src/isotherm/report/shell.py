"""The shell of every page: one file whose policy lets in only its own scripts and style, by their hashes."""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from posixpath import dirname, join, normpath
from typing import Any

from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.report.draw import palette

_IMPORT = re.compile(r'import \{ (?P<names>\w+(?:, \w+)*) \} from "(?P<path>\.[^"]*\.js)";')
_NAMED = re.compile(
    r"(?P<export>export )?(?:const|let|class|(?:async )?function\*?) (?P<name>\w+)(?= =|;|\(| \{| extends)"
)
_AT_TOP = re.compile(r"(?:import|export|const|let|var|class|function|async)\b")
_NEVER = re.compile(r"\bimport\(|\bimport\.meta|</script|<!--", re.IGNORECASE)
_ESCAPES = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


@cache
def asset(name: str) -> str:
    """A file of the folder `page`."""
    return files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def filled(name: str, **values: object) -> str:
    """An asset with its places filled, in one pass: a value is never searched for places."""
    pieces = asset(name).split("%%")
    return "".join(str(values[piece]) if number % 2 else piece for number, piece in enumerate(pieces))


def embedded(data: dict[str, Any]) -> str:
    """Data as JSON for a `<script type="application/json">`, which browsers do not run."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)
    return text.encode("utf-8", "replace").decode("utf-8")


def fill(
    body: str,
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str],
    wait: bool = False,
    module: str | None = None,
    title: str,
    language: str,
) -> str:
    """A page with this body. Its script runs before the body is read or, told to `wait`, after.

    `module` is bundled with all that it imports into a second script, which runs once the body is read.
    """
    style = "\n".join([*map(asset, ("page.css", "parts.css", *styles, "print.css")), palette.page_style()])
    script = _script([asset(name) for name in scripts], wait=wait)
    second = _script([bundle(module)]) if module else ""
    hashes = " ".join(_hash(text) for text in (script, second) if text)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src {_hash(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    values = {"style": style, "script": script, "title": escape(title), "policy": escape(policy)}
    end = f"\n<script>{second}</script>" if second else ""
    return filled("page.html", **values, language=language, body=body, end=end)


def _script(parts: Sequence[str], *, wait: bool = False) -> str:
    start, end = ('addEventListener("DOMContentLoaded", () => {', "});") if wait else ("(() => {", "})();")
    return "\n".join([start, '"use strict";', *parts, end])


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def bundle(entry: str, read: Callable[[str], str] = asset) -> str:
    """One script of the module `entry` (a path within the folder `page`) and all that it imports.

    Each module follows those it imports; its import lines and the word `export` are dropped, so a name at the top of one
    module may not be at the top of another. What this cannot take is refused, with the name of the file.
    """
    modules: dict[str, _Module | None] = {}
    _add(entry, read, modules)
    owners: dict[str, str] = {}
    for path, module in modules.items():
        assert module is not None
        for name in module.names:
            if name in owners:
                why = Text("{name} is also a name at the top of {other}", "{name} 在 {other} 的顶层也有定义")
                raise InputError(path, why.format(name=name, other=owners[name]))
            owners[name] = path
    return "\n".join(module.text for module in modules.values() if module)


@dataclass(frozen=True)
class _Module:
    """A module as the bundle holds it, with the names at its top and, of these, the exported ones."""

    text: str
    names: tuple[str, ...]
    exported: frozenset[str]


def _add(path: str, read: Callable[[str], str], modules: dict[str, _Module | None]) -> None:
    """Put the modules that `path` imports, then `path` itself, into `modules`; None marks one that is being read."""
    modules[path] = None
    lines, names, exported = [], [], set()
    for number, line in enumerate(read(path).splitlines(), 1):
        found = _NAMED.match(line)
        if imported := _IMPORT.fullmatch(line):
            _import(path, imported, read, modules)
        elif (_AT_TOP.match(line) and not found) or _NEVER.search(line):
            why = Text("line {n} has a form that the bundle cannot take: {line}", "第 {n} 行的写法无法合并：{line}")
            raise InputError(path, why.format(n=number, line=line))
        else:
            if found:
                names.append(found["name"])
                exported.update([found["name"]] if found["export"] else [])
            lines.append(line.removeprefix("export ") if found else line)
    del modules[path]  # and in again, now after what it imports
    modules[path] = _Module("\n".join(lines), tuple(names), frozenset(exported))


def _import(path: str, line: re.Match[str], read: Callable[[str], str], modules: dict[str, _Module | None]) -> None:
    target = normpath(join(dirname(path), line["path"]))
    if target.startswith(".."):
        raise InputError(
            path, Text("{target} is outside the page's folder", "{target} 在页面文件夹之外").format(target=target)
        )
    if target not in modules:
        _add(target, read, modules)
    module = modules[target]
    if module is None:
        raise InputError(path, Text("{target} imports it in turn", "{target} 又导入了它").format(target=target))
    for name in line["names"].split(", "):
        if name not in module.exported:
            why = Text("{target} exports no {name}", "{target} 没有导出 {name}").format(target=target, name=name)
            raise InputError(path, why)
