"""Parallel text: sentences and their translations, from two files, a table or JSON lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.record.files import parse_json
from isotherm.train.text_files import lines


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence and its translation."""

    source: str
    target: str


def from_files(source: str | Path, target: str | Path) -> list[Pair]:
    """Two files with one sentence a line: the n-th of one translates the n-th of the other."""
    sources, targets = lines(source), lines(target)
    if len(sources) != len(targets):
        why = Text(
            "{a} lines, but {other} has {b}; the n-th line of one must translate the n-th of the other",
            "有 {a} 行，而 {other} 有 {b} 行；两者的第 n 行须互为译文",
        )
        raise InputError(source, why.format(a=len(sources), other=target, b=len(targets)))
    return _whole(source, [Pair(a, b) for a, b in zip(sources, targets, strict=True)])


def from_tsv(path: str | Path, columns: Sequence[str] = ()) -> list[Pair]:
    """Columns between tabs: the only two, or the two named in the first line."""
    rows = [(number, line.split("\t")) for number, line in enumerate(lines(path), 1) if line.strip()]
    first, second = 0, 1
    if columns:
        header = rows.pop(0)[1]
        first, second = (_column(path, header, name) for name in columns)
    pairs = []
    for number, cells in rows:
        if len(cells) <= max(first, second):
            why = Text(
                "line {number}: expected at least {n} columns between tabs, got {got}",
                "第 {number} 行：应至少有 {n} 个以制表符分隔的列，实有 {got} 个",
            )
            raise InputError(path, why.format(number=number, n=max(first, second) + 1, got=len(cells)))
        if len(cells) > 2 and not columns:
            why = Text(
                "line {number}: {got} columns between tabs; name two of the first line with data.columns",
                "第 {number} 行：有 {got} 个以制表符分隔的列；请用 data.columns 指明首行中的两个列名",
            )
            raise InputError(path, why.format(number=number, got=len(cells)))
        pairs.append(Pair(cells[first], cells[second]))
    return _whole(path, pairs)


def from_jsonl(path: str | Path, columns: Sequence[str] = ()) -> list[Pair]:
    """One JSON object a line, with the fields `source` and `target` or the two named."""
    first, second = columns or ("source", "target")
    pairs = []
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        place = Text("{path}: line {number}", "{path}：第 {number} 行").format(path=path, number=number)
        found = parse_json(place, line.encode())
        for name in (first, second):
            if not isinstance(found, dict) or not isinstance(found.get(name), str):
                why = Text(
                    'line {number}: expected an object with text under "{name}"',
                    '第 {number} 行：应为 JSON 对象，且 "{name}" 为文本',
                )
                raise InputError(path, why.format(number=number, name=name))
        pairs.append(Pair(found[first], found[second]))
    return _whole(path, pairs)


def share(text: str) -> float:
    """A number from 0 to 1 that depends on the text alone. Texts below a threshold are held out."""
    return int.from_bytes(sha256(text.encode()).digest()[:8]) / 2**64


def split(pairs: Sequence[Pair], part: float) -> tuple[list[Pair], list[Pair]]:
    """Pairs to learn from and pairs held out, by a hash of the source sentence.

    More data later moves no pair from one side to the other, and a sentence with two translations is never on both sides.
    """
    learn = [pair for pair in pairs if share(pair.source) >= part]
    return learn, [pair for pair in pairs if share(pair.source) < part]


def digest(sentences: Sequence[str]) -> str:
    """A fingerprint of a corpus, in its order."""
    whole = sha256()
    for sentence in sentences:
        whole.update(sentence.encode() + b"\n")
    return whole.hexdigest()


def _column(path: str | Path, header: list[str], name: str) -> int:
    if name in header:
        return header.index(name)
    why = Text("no column {name} in the first line ({names})", "首行没有列 {name}（有 {names}）")
    raise InputError(path, why.format(name=name, names=", ".join(header)))


def _whole(path: str | Path, pairs: list[Pair]) -> list[Pair]:
    """Pairs with something on both sides, each once."""
    kept = list(dict.fromkeys(Pair(pair.source.strip(), pair.target.strip()) for pair in pairs))
    kept = [pair for pair in kept if pair.source and pair.target]
    if not kept:
        raise InputError(path, Text("no pair has text on both sides", "没有两侧都有文本的句对"))
    return kept
