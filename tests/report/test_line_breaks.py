"""Where lines end: Chinese fills them, and no line begins or ends with what belongs to its neighbour."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text as Styled

from isotherm.report.line_breaks import NEVER_FIRST, NEVER_LAST, lines

CHINESE = "只要那个高度上还有键，注意力就由许多键分享；一旦它高过最大得分（σ = √(2 ln n)），就归于最顶端的少数几个键。"


@pytest.mark.parametrize("width", range(8, 60))
def test_chinese_fills_its_lines(width):
    found = [line.plain for line in lines(Styled(CHINESE), width)]
    assert "".join(found).replace(" ", "") == CHINESE.replace(" ", "")
    assert all(cell_len(line) <= width for line in found)
    if width > 20:
        assert all(cell_len(line) > width - 10 for line in found[:-1])
    for line in found:
        assert line[0] not in NEVER_FIRST
        assert line[-1] not in NEVER_LAST


def test_a_percentage_and_a_sentence_s_end_stay_on_their_line():
    assert [line.plain for line in lines(Styled("about 95 % of all."), 8)] == ["about", "95 % of", "all."]


def test_later_lines_leave_room_for_their_indent():
    found = [cell_len(line.plain) for line in lines(Styled("a " * 40), 20, hang=6)]
    assert found[0] == 19
    assert set(found[1:-1]) == {13}


@given(st.text(alphabet="ab ，。（）字词%\u00a0", max_size=80), st.integers(1, 30))
def test_nothing_is_lost_and_the_style_stays(text, width):
    found = lines(Styled(text, style="dim"), width)
    assert "".join(line.plain for line in found).replace(" ", "").replace("\u00a0", "") == text.replace(
        " ", ""
    ).replace("\u00a0", "")
    assert {line.style for line in found} == {"dim"}
