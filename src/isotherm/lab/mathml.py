"""Formulas as MathML, written nearly as one would say them.

A string is words between spaces: numbers, names and signs are told apart, and `_` and `^` hang an index or an exponent on
a word. Everything else is a function around such strings, or around what another function gave.

>>> row("p_i ( 1 − p_i )")
'<mrow><msub><mi>p</mi><mi>i</mi></msub><mo>(</mo><mn>1</mn><mo>−</mo><msub><mi>p</mi><mi>i</mi></msub><mo>)</mo></mrow>'
"""

import re
from html import escape

_WORD = re.compile(r"([^_^]+)(?:_([^_^]+))?(?:\^([^_^]+))?")
_NUMBER = re.compile(r"\d+(\.\d+)?")
_NAMES = {"∞", "…"}
_FUNCTION = re.compile(r"<mi>[^\W\d_]{2,}</mi>")
_THIN = '<mspace width="0.17em"/>'


def mi(name: str) -> str:
    """A name: one letter is set in italics, several upright, as in ln."""
    return f"<mi>{escape(name, quote=False)}</mi>"


def mn(number: object) -> str:
    """A number."""
    return f"<mn>{number}</mn>"


def mo(sign: str) -> str:
    """An operator, a relation or a bracket."""
    return f"<mo>{escape(sign, quote=False)}</mo>"


def row(*parts: str) -> str:
    """Parts side by side, as one.

    >>> row("2 ln n")
    '<mrow><mn>2</mn><mspace width="0.17em"/><mi>ln</mi><mspace width="0.17em"/><mi>n</mi></mrow>'
    """
    pieces: list[str] = []
    for part in parts:
        for piece in [part] if _is_mathml(part) else map(_word, part.split()):
            if pieces and _needs_gap(pieces[-1], piece):
                pieces.append(_THIN)
            pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else f"<mrow>{''.join(pieces)}</mrow>"


def frac(above: str, below: str) -> str:
    """A fraction.

    >>> frac("1", root("d"))
    '<mfrac><mn>1</mn><msqrt><mi>d</mi></msqrt></mfrac>'
    """
    return f"<mfrac>{row(above)}{row(below)}</mfrac>"


def root(inside: str) -> str:
    """A square root."""
    return f"<msqrt>{row(inside)}</msqrt>"


def sup(base: str, exponent: str) -> str:
    """A power: `sup("e", "− x")`."""
    return f"<msup>{row(base)}{row(exponent)}</msup>"


def sub(base: str, index: str) -> str:
    """An index."""
    return f"<msub>{row(base)}{row(index)}</msub>"


def total(index: str, last: str = "") -> str:
    """A sum sign over an index, up to `last` where one is given: `total("i = 1", "d")`."""
    if not last:
        return f"<munder>{mo('∑')}{row(index)}</munder>"
    return f"<munderover>{mo('∑')}{row(index)}{row(last)}</munderover>"


def bracket(*parts: str, left: str = "(", right: str = ")") -> str:
    """Parts in brackets that grow with them."""
    return row(mo(left), row(*parts), mo(right))


def equation(*sides: str, sign: str = "=") -> str:
    """Sides joined by a sign: `equation("σ", root("d"))`."""
    joined = [row(sides[0])]
    for side in sides[1:]:
        joined += [mo(sign), row(side)]
    return row(*joined)


def _is_mathml(part: str) -> bool:
    return part.startswith("<m")


def _needs_gap(before: str, after: str) -> bool:
    """Whether a thin space is needed: browsers set «ln» without one, and operators bring their own."""
    named = _FUNCTION.fullmatch(before) or _FUNCTION.fullmatch(after)
    return bool(named) and not before.startswith("<mo>") and not after.startswith("<mo>")


def _word(word: str) -> str:
    match = _WORD.fullmatch(word)
    if match is None:
        return mo(word)
    base, index, exponent = (None if piece is None else _leaf(piece) for piece in match.groups())
    if index and exponent:
        return f"<msubsup>{base}{index}{exponent}</msubsup>"
    if index or exponent:
        kind = "msub" if index else "msup"
        return f"<{kind}>{base}{index or exponent}</{kind}>"
    return base or ""


def _leaf(piece: str) -> str:
    if _NUMBER.fullmatch(piece):
        return mn(piece)
    return mi(piece) if piece.isalpha() or piece in _NAMES else mo(piece)
