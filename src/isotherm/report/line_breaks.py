"""Where the lines of a paragraph end: at spaces, and in Chinese between any two characters that may be parted.

Rich breaks at spaces alone, so a clause of Chinese would move to the next line as if it were one long word.
"""

from itertools import pairwise

from rich.cells import cell_len
from rich.text import Text as Styled

FIRST_OF_WIDE = "\u2e80"
NEVER_FIRST = " ，。；：、！？）」』》〉”’…—·％)]},.;:!?%"
"""What no line begins with, so that 5 % stays together."""
NEVER_LAST = "（「『《〈“‘([{"
"""What no line ends with."""


def lines(paragraph: Styled, width: int, hang: int = 0) -> list[Styled]:
    """The paragraph in lines of at most this width, after the first one `hang` less; only a word that is longer passes it."""
    text = paragraph.plain
    ends: list[int] = []
    start = 0
    for place, after in pairwise([*_places(text), len(text)]):
        if cell_len(text[start:after].rstrip()) > width:
            width -= 0 if ends else hang
            ends.append(place)
            start = place
    parts = list(paragraph.divide(ends))
    for part in parts:
        part.rstrip()
    return parts


def _places(text: str) -> list[int]:
    """How many characters may stand before a break."""
    return [place for place in range(1, len(text)) if _may_break(text[place - 1], text[place])]


def _may_break(before: str, after: str) -> bool:
    if before == " ":
        return after not in NEVER_FIRST
    wide = before >= FIRST_OF_WIDE or after >= FIRST_OF_WIDE
    return wide and after not in NEVER_FIRST and before not in NEVER_LAST
