"""What every page of ours is put into: one file, with a policy that lets in only its own script and style, by their hashes."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files

MARK = "\x00"


@cache
def asset(path: str) -> str:
    """A piece of a page, by its path in this folder."""
    return files(__package__).joinpath(*path.split("/")).read_text(encoding="utf-8")


def script(pieces: list[str]) -> str:
    """Scripts as one, with names of their own."""
    return '(() => {\n"use strict";\n' + "\n".join(pieces) + "\n})();\n"


def fill(template: str, *, style: str, script: str, title: str, language: str, **given: str) -> str:
    """The head all pages share and a template, their places filled, each once and none read again; a mark where none is
    given."""
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    values = {"style": style, "script": script, "title": escape(title), "policy": escape(policy), "language": language}
    values |= given
    pieces = (asset("page/head.html") + asset(template)).split("%%")
    return "".join(values.get(piece, MARK) if number % 2 else piece for number, piece in enumerate(pieces))


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
