"""Formulas: MathML let through piece by piece, and the same formula as a line of text for a terminal.

A record's formula is markup from outside. Only elements and attributes that MathML knows and that cannot act are let
through; anything else is shown as text.
"""

import re
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
_PAIR = 2


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
    body = ET.tostring(tree, encoding="unicode", short_empty_elements=False)
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">{body}</math>'


def to_text(math: str) -> str:
    """The formula on one line: fractions with a slash, powers with a caret.

    >>> to_text("<msup><mi>x</mi><mn>2</mn></msup><mo>=</mo><mfrac><mi>a</mi><mi>b</mi></mfrac>")
    'x² = a/b'
    """
    tree = parse(math)
    return math if tree is None else re.sub(r"\s+", " ", _line(tree)).strip()


_RAISED = str.maketrans("0123456789+-−nTi", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻ⁿᵀⁱ")
_SPACED = re.compile(r"[=≈≤≥<>≪≫→∼∝∈≠+−±⇒⇔]")


def _line(node: ET.Element) -> str:
    parts = [_line(child) for child in node]
    if not parts:
        text = " " if node.tag == "mspace" else (node.text or "").strip()
        return f" {text} " if node.tag == "mo" and _SPACED.fullmatch(text) else text
    match node.tag:
        case "mfrac":
            return f"{_held(parts[0])}/{_held(parts[1])}"
        case "msqrt":
            return f"√{_held(''.join(parts))}"
        case "mroot":
            return f"{_held(parts[0])}^(1/{parts[1]})"
        case "msup":
            return parts[0] + _raised(parts[1])
        case "msub" | "munder":
            return f"{parts[0]}_{_held(parts[1])}"
        case "msubsup" | "munderover":
            return f"{parts[0]}_{_held(parts[1])}{_raised(parts[2])}"
        case "mtr":
            return ", ".join(parts)
        case "mtable":
            return f"[{'; '.join(parts)}]"
    return "".join(parts)


def _held(text: str) -> str:
    """In brackets, where it is more than one thing."""
    text = text.strip()
    return text if len(text) < _PAIR or re.fullmatch(r"[\w.∞]+|\([^()]*\)", text) else f"({text})"


def _raised(text: str) -> str:
    text = text.replace(" ", "")
    return text.translate(_RAISED) if re.fullmatch(r"[0-9+−nTi-]+", text) else f"^{_held(text)}"
