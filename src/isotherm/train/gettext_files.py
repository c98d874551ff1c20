"""Read gettext catalogues, compiled (.mo) and as written (.po).

Python's own `gettext` looks messages up but does not list them, so both formats are read here; they are small.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.record.files import read_bytes
from isotherm.train.parallel_text import Pair
from isotherm.train.text_files import lines


def messages(path: Path) -> list[Pair]:
    """The finished translations of a catalogue: no header, nothing empty, nothing marked fuzzy or obsolete.

    Of several plural forms, those for many are taken.
    """
    found = _compiled(path) if path.suffix == ".mo" else _written(path)
    return [message for message in found if message.source and message.target]


def _compiled(path: Path) -> Iterator[Pair]:
    """GNU gettext manual, «The Format of GNU MO Files»: two tables of (length, place) after a header of seven words."""
    data = read_bytes(path)
    try:
        order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}[data[:4]]
        count, originals, translations = struct.unpack_from(f"{order}3I", data, 8)
        for index in range(count):
            source = _string(data, order, originals + 8 * index)
            target = _string(data, order, translations + 8 * index)
            yield Pair(_many(source.rpartition("\x04")[2]), _many(target))
    except (KeyError, struct.error, UnicodeDecodeError) as error:
        raise InputError(path, Text("not a whole gettext catalogue", "不是完整的 gettext 目录文件")) from error


def _string(data: bytes, order: str, place: int) -> str:
    length, start = struct.unpack_from(f"{order}2I", data, place)
    if start + length > len(data):
        raise struct.error
    return data[start : start + length].decode()


def _many(forms: str) -> str:
    return forms.rpartition("\0")[2]


@dataclass
class _Entry:
    """One entry of a .po file while it is read: its strings by keyword."""

    fuzzy: bool = False
    strings: dict[str, str] = field(default_factory=dict)

    def message(self) -> Pair:
        """The form for many where there are several."""
        targets = [text for keyword, text in self.strings.items() if keyword.startswith("msgstr")]
        source = self.strings.get("msgid_plural", self.strings.get("msgid", ""))
        return Pair(source, "" if self.fuzzy or not targets else targets[-1])


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_LINE = re.compile(r'(?:(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s+)?("(?:[^"\\]|\\.)*")\s*$')


def _written(path: Path) -> Iterator[Pair]:
    entry, keyword = _Entry(), ""
    for number, line in enumerate(map(str.strip, lines(path)), 1):
        starts = line.startswith(("#", "msgctxt")) or (line.startswith("msgid ") and keyword != "msgctxt")
        if starts and keyword.startswith("msgstr"):
            yield entry.message()
            entry, keyword = _Entry(), ""
        if line.startswith("#,") and "fuzzy" in line:
            entry.fuzzy = True
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None or not (match[1] or keyword):
            raise InputError(
                path, Text("line {number}: not a gettext line", "第 {number} 行：不是 gettext 行").format(number=number)
            )
        keyword = match[1] or keyword
        entry.strings[keyword] = entry.strings.get(keyword, "") + _unescape(match[2][1:-1])
    yield entry.message()


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text)
