"""The shell of every page: one file whose policy lets in only its own script and style, by their hashes."""

from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files

from isotherm.report.draw import palette


@cache
def asset(name: str) -> str:
    """A file of the folder `page`."""
    return files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def filled(name: str, **values: object) -> str:
    """An asset with its places filled, in one pass: a value is never searched for places."""
    pieces = asset(name).split("%%")
    return "".join(str(values[piece]) if number % 2 else piece for number, piece in enumerate(pieces))


def fill(
    body: str, *, styles: Sequence[str] = (), scripts: Sequence[str], wait: bool = False, title: str, language: str
) -> str:
    """A page with this body. Its script runs before the body is read or, told to `wait`, after."""
    style = "\n".join([*map(asset, ("page.css", "parts.css", *styles, "print.css")), palette.page_style()])
    start, end = ('addEventListener("DOMContentLoaded", () => {', "});") if wait else ("(() => {", "})();")
    script = "\n".join([start, '"use strict";', *map(asset, scripts), end])
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    values = {"style": style, "script": script, "title": escape(title), "policy": escape(policy)}
    return filled("page.html", **values, language=language, body=body)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
