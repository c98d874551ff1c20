"""HTML and SVG, built so that every text is escaped unless it is already markup.

A page holds both languages, each marked with its `lang`; the style sheet shows the one of the document.
"""

import re
from html import escape

from isotherm.language import Text

_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_INDEX = re.compile(r"((?<![A-Za-z0-9_&])[A-Za-z]|[Α-Ωα-ω])_(?:\{([^{}]{1,12})\}|([A-Za-z0-9]{1,3})(?![A-Za-z0-9_]))")
_POWER = re.compile(
    r"(?<=[A-Za-z0-9)>\u200b])\^(?:\(([^()]*)\)|\{([^{}]*)\}|([+−-]?(?:\d+(?:\.\d+)?|[½¼¾]|[a-zT⊤](?![A-Za-z]))))"
)

_PERCENT = re.compile(r"(?<=\d) %")
_VALUE = re.compile(r"(?<=[A-Za-zα-ω\d]) = (?=[\d√−])")
_ROOT = '<span class="whole">/√</span>'
_LOGARITHM = re.compile(r"(?<=\d) (?=ln\b)|(?<=\bln) (?=[A-Za-z0-9])")
_LEFT = re.compile(r"(?<![\d.,])1 − ")


class Html(str):
    """Markup: already escaped."""

    __slots__ = ()


def html(text: object) -> Html:
    """Anything as markup: text is escaped, markup stays, characters that XML forbids become a box."""
    return text if isinstance(text, Html) else Html(escape(_XML.sub("□", str(text))))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """An element. `class_` is class, `aria_label` is aria-label; None and False are left out.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{given}>{''.join(html(child) for child in children if child is not None)}</{name}>")


def join(*pieces: object) -> Html:
    """Pieces of markup one after another."""
    return Html("".join(html(piece) for piece in pieces if piece is not None))


def both(text: Text, name: str = "span", **attributes: object) -> Html:
    """A sentence in both languages, with indices and powers set as such; one element where the two are the same."""
    if text.en == text.zh:
        return tag(name, typeset(text.en), **attributes)
    return join(
        tag(name, typeset(text.en), lang="en", **attributes), tag(name, typeset(text.zh), lang="zh-CN", **attributes)
    )


def typeset(text: str) -> Html:
    """d_k with its index below, d^2 and e^(−x) with the power above; no line ends within 1/√d.

    >>> typeset("d_k^0.5 < n")
    '<i>d</i><sub>k</sub><sup>0.5</sup> &lt; n'
    """
    low = _INDEX.sub(lambda it: f"<i>{it[1]}</i><sub>{it[2] or it[3]}</sub>", html(_bound(text)))
    return Html(_POWER.sub(lambda it: f"<sup>{_power(it)}</sup>", low).replace("/√", _ROOT))


def _bound(text: str) -> str:
    """With spaces that do not break between a number and its sign, between a quantity and its value, in 1 − y and 2 ln n."""
    if isinstance(text, Html):
        return text
    text = _LOGARITHM.sub("\u00a0", _LEFT.sub("1\u00a0−\u00a0", text))
    return _VALUE.sub("\u00a0=\u00a0", _PERCENT.sub("\u00a0%", text))


def drawn(text: str) -> Html:
    """`typeset` for SVG, which has no `<sub>`: letters are moved down or up, and the next ones moved back."""

    def moved(letters: str, by: int) -> str:
        return f'<tspan class="small" dy="{by}">{letters}</tspan><tspan dy="{-by}">\u200b</tspan>'

    low = _INDEX.sub(lambda it: it[1] + moved(it[2] or it[3], 3), html(text))
    return Html(_POWER.sub(lambda it: moved(_power(it), -4), low))


def _power(found: re.Match[str]) -> str:
    return found[1] or found[2] or found[3] or ""
