"""Formulas: MathML let through piece by piece, and the same formula as a line of text for a terminal.

A record's formula is markup from outside. Only elements and attributes that MathML knows and that cannot act are let
through; anything else is shown as text.
"""

import re
from collections.abc import Iterator
from html import escape
from html.entities import html5
from xml.etree import ElementTree as ET

_ELEMENTS = set(
    re.findall(
        r"\w+",
        "mrow mi mn mo mtext mspace mfrac msqrt mroot msup msub msubsup munder mover munderover "
        "mtable mtr mtd mpadded mphantom mstyle menclose ms",
    )
)
_ATTRIBUTES = set(
    re.findall(
        r"\w+",
        "mathvariant stretchy fence form lspace rspace accent accentunder displaystyle "
        "scriptlevel linethickness width columnalign rowspacing columnspacing minsize maxsize separator largeop movablelimits "
        "symmetric notation",
    )
)
_COUNTS = dict.fromkeys(("mfrac", "mroot", "msup", "msub", "munder", "mover"), 2) | {"msubsup": 3, "munderover": 3}
"""How many parts these have; a space that strayed among them is dropped, for it would be taken for one."""
_OWN = frozenset({"amp", "lt", "gt", "quot", "apos"})


def parse(math: str) -> ET.Element | None:
    """The formula as a tree; None where it is not MathML that may be shown."""
    named = re.sub(r"&(\w+);", lambda it: it[0] if it[1] in _OWN else html5.get(f"{it[1]};", ""), math)
    try:
        tree = ET.fromstring(f"<mrow>{named}</mrow>")
    except ET.ParseError:
        return None
    for node in tree.iter():
        count = _COUNTS.get(node.tag, len(node))
        if len(node) > count:
            for space in node.findall("mspace"):
                node.remove(space)
        if node.tag not in _ELEMENTS or not set(node.attrib) <= _ATTRIBUTES or len(node) != count:
            return None
    return tree


def to_html(math: str) -> str:
    """A `<math>` element, or the source as text."""
    tree = parse(math)
    if tree is None:
        return f"<code>{escape(math)}</code>"
    for node in tree.iter("mo"):
        if len(node.text or "") > 1 and (node.text or "").isalpha():
            node.tag = "mi"  # a function's name such as softmax, which is no operator: no space before its bracket
    body = ET.tostring(tree, encoding="unicode", short_empty_elements=False)
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">{body}</math>'


def to_text(math: str) -> str:
    """The formula on one line: fractions with a slash, powers with a caret.

    >>> to_text("<msup><mi>x</mi><mn>2</mn></msup><mo>=</mo><mfrac><mi>a</mi><mi>b</mi></mfrac>")
    'x² = a/b'
    """
    tree = parse(math)
    return math if tree is None else _tidy(_row(tree))


def to_lines(math: str) -> list[str]:
    """The formula for a terminal: one line, or as many as its matrices have."""
    tree = parse(math)
    if tree is None or tree.find(".//mtable") is None:
        return [to_text(math)]
    while len(tree) == 1 and tree[0].tag == "mrow":
        tree = tree[0]
    blocks = list(_blocks(tree))
    tall = max(map(len, blocks))
    return [line.rstrip() for line in map(" ".join, zip(*(_centred(block, tall) for block in blocks), strict=True))]


_RAISED = str.maketrans("0123456789+-−nTi⊤", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻ⁿᵀⁱᵀ")
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_SPACED = re.compile(r"[=≈≤≥<>≪≫→∼∝∈≠+−±⇒⇔∘]")
_TALL = frozenset({"msup", "msub", "msubsup", "munder", "munderover", "msqrt", "mroot", "mfrac"})
_CLOSING = (")", "]", "|", "‖", "⟩")
_HALVES = {"1/2": "½", "1/4": "¼"}
_ONE_THING = re.compile(r"√?[\w.∞Δ]+[²³ⁿᵀ′]*|√?\([^()]*\)|\w\^(\w|\([^()]*\))|∂[\w′]+")


def _row(node: ET.Element) -> str:
    """What a row says. Two factors have a space between them if one has an index, a power or a root; a fraction beside a
    factor is in brackets."""
    told = ""
    for number, child in enumerate(node):
        before = node[number - 1] if number else None
        after = node[number + 1] if number + 1 < len(node) else None
        text = _line(child)
        if child.tag == "mfrac" and "/" in text and (_is_factor(before) or _is_factor(after)):
            text = f"({text})"
        if before is not None and _is_factor(child):
            tall = _is_factor(before) and {before.tag, child.tag} & _TALL
            text = f" {text}" if tall or before.text == "∑" else text
        told += text
    return told


def _is_factor(node: ET.Element | None) -> bool:
    """Whether a part stands for a number or ends a space: not an operator or a bracket, bare or with a power."""
    return node is not None and node.tag != "mo" and (len(node) == 0 or node[0].text not in _CLOSING)


def _line(node: ET.Element) -> str:
    if len(node) == 0:
        text = " " if node.tag == "mspace" else (node.text or "").strip()
        spaced = node.tag == "mo" and _SPACED.fullmatch(text)
        return f" {text} " if spaced else ", " if text == "," else text
    parts = [_line(child) for child in node]
    match node.tag:
        case "mfrac":
            made = f"{_held(parts[0])}/{_held(parts[1], below=True)}"
            return _HALVES.get(made, made)
        case "msqrt":
            return f"√{_held(_row(node), below=True)}"
        case "mroot":
            return f"{_held(parts[0])}^(1/{parts[1]})"
        case "msup":
            return parts[0] + _raised(parts[1])
        case "msub" | "munder":
            return parts[0] + _lowered(parts[1])
        case "msubsup" | "munderover":
            return parts[0] + _lowered(parts[1]) + _raised(parts[2])
        case "mtr":
            return ", ".join(map(_tidy, parts))
        case "mtable":
            return f"[{'; '.join(parts)}]"
    return _row(node)


def _tidy(text: str) -> str:
    """Single spaces, and none after a minus that is a sign."""
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"(^|[(\[,=≈≤≥∼⇒] ?)− ", r"\1−", text)


def _close(text: str) -> str:
    """Without spaces around operators, as in an index or a power."""
    return re.sub(r" ?([=+−,≠×]) ?", r"\1", _tidy(text))


def _held(text: str, *, below: bool = False) -> str:
    """In brackets, where it is more than one thing; `below` a line also where it is a product such as 2σ²."""
    text = _tidy(text)
    product = below and re.match(r"\d+[^\W\d]", text)
    return text if _ONE_THING.fullmatch(text) and not product else f"({text})"


def _lowered(text: str) -> str:
    text = _close(text)
    return text.translate(_LOWERED) if text.isdigit() else f"_{text}" if text.isalnum() else f"_({text})"


def _raised(text: str) -> str:
    text = _close(text)
    if re.fullmatch(r"[0-9+−nTi⊤-]+", text):
        return text.translate(_RAISED)
    return text if text == "′" else f"^{text}" if len(text) == 1 else f"^({text})"


def _blocks(row: ET.Element) -> Iterator[list[str]]:
    """A row from left to right: each matrix as a block of lines, what lies between two as one line."""
    between = ET.Element("mrow")
    for number, child in enumerate(row):
        beside = [row[place].tag for place in (number - 1, number + 1) if 0 <= place < len(row)]
        if child.tag == "mtable":
            yield from [[_tidy(_row(between))]] if len(between) else []
            yield _matrix(child)
            between = ET.Element("mrow")
        elif "mtable" not in beside or child.text not in ("(", ")"):
            between.append(child)
    yield from [[_tidy(_row(between))]] if len(between) else []


def _matrix(table: ET.Element) -> list[str]:
    rows = [[_tidy(_row(cell)) for cell in row] for row in table]
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.center(width) for cell, width in zip(row, wide, strict=True)) for row in rows]
    left, right = "⎡" + "⎢" * (len(rows) - 2) + "⎣", "⎤" + "⎥" * (len(rows) - 2) + "⎦"
    return (
        [f"{a} {line} {b}" for a, line, b in zip(left, lines, right, strict=True)]
        if len(rows) > 1
        else [f"[{lines[0]}]"]
    )


def _centred(block: list[str], tall: int) -> list[str]:
    """A block as tall as the others, blank above and below."""
    above = (tall - len(block)) // 2
    blank = " " * max(map(len, block))
    return [*[blank] * above, *block, *[blank] * (tall - len(block) - above)]
