"""Text from a model, a file or a command line, made safe to print.

A name can hold escape sequences that rename a terminal's window or hide what follows, and direction marks that reverse
what is read. Whatever Isotherm prints and did not write itself goes through `printable`.
"""

from unicodedata import category

_STEERING = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
"""Unicode categories: C0 and C1 controls, format characters (bidirectional overrides among them), characters that are not
assigned or for private use (each terminal does with them what it likes), lone surrogates, line and paragraph separators."""


def printable(text: str, width: int | None = None) -> str:
    """The text on one line, each character that could steer a terminal shown as a box.

    A text of more than `width` characters loses its middle.

    >>> printable("a\\x1b[31mred"), printable("encoder.layers.0", 9)
    ('a□[31mred', 'enco…rs.0')
    """
    if width is not None and len(text) > width:
        start, end = width // 2, (width - 1) // 2
        text = f"{text[:start]}…{text[len(text) - end :]}"
    return "".join("□" if category(letter) in _STEERING else letter for letter in text)
