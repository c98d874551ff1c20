"""Text from outside that is printed steers no terminal and takes no second line."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("encoder.layer.0 注意力 é", "encoder.layer.0 注意力 é"),
        ("a\x1b]0;title\x07b", "a□]0;title□b"),
        ("a\x1b[31mred", "a□[31mred"),
        ("one\ntwo\r\tthree", "one□two□□three"),
        ("nul\x00del\x7fc1\x9b31m", "nul□del□c1□31m"),
        ("\u202eevil\u202c \u2066x\u2069 \u200ey", "□evil□ □x□ □y"),
        ("half \ud800 pair", "half □ pair"),
        ("line\u2028paragraph\u2029", "line□paragraph□"),
        ("", ""),
    ],
)
def test_what_could_steer_a_terminal_is_shown_as_a_box(text, shown):
    assert printable(text) == shown


def test_every_control_format_and_surrogate_character_is_replaced():
    hostile = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in {"Cc", "Cf", "Cs"}]
    assert len(hostile) > 2000
    assert set(printable("".join(hostile))) == {"□"}


@given(st.text(st.characters(), max_size=60), st.integers(1, 30))
def test_the_result_can_be_encoded_and_is_no_longer_than_asked(text, width):
    shown = printable(text, width)
    shown.encode()
    assert len(shown) == min(len(text), width)
    assert printable(shown, width) == shown


@pytest.mark.parametrize(("width", "shown"), [(7, "abc…hij"), (6, "abc…ij"), (1, "…"), (10, "abcdefghij")])
def test_a_long_text_loses_its_middle(width, shown):
    assert printable("abcdefghij", width) == shown
