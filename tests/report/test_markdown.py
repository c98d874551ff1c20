import pytest
from markdown_it import MarkdownIt

from isotherm.report.markdown import escaped, to_markdown
from tests.report import records
from tests.report.test_terminal import assert_golden


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    "make", [records.minilm, records.gpt2, records.ugly, records.bare], ids=lambda make: make.__name__
)
def test_golden(make, language):
    assert_golden(f"{make.__name__}.{language}.md", to_markdown(make(), language))


def test_giants_make_a_short_comment():
    assert len(to_markdown(records.giant(), "en")) < 10_000


def test_nothing_in_a_record_becomes_markup():
    page = (
        MarkdownIt("commonmark", {"html": True, "linkify": False})
        .enable("table")
        .render(to_markdown(records.ugly(), "en"))
    )
    assert "<script" not in page
    assert "<img" not in page
    assert "<a " not in page
    assert "<em>" not in page
    assert "onerror=alert(2)&gt;" in page
    assert page.count("<tr>") == 1 + 2 + 1 + 2


@pytest.mark.parametrize("text", ["a|b", "`x`", "<b>", "*x*", "_x_", "[a](b)", "~~x~~", "a\nb", "\\|", "&lt;"])
def test_escaped_text_is_shown_as_it_is(text):
    row = MarkdownIt("commonmark").enable("table").render(f"| {escaped(text)} | end |\n| --- | --- |\n")
    cell = row.split("<th>")[1].split("</th>")[0]
    shown = cell.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").replace("\u200b", "")
    assert shown == text.replace("\n", "□")


def test_mentions_and_links_are_not_live():
    assert "@someone" not in escaped("@someone")
    assert "#12" not in escaped("#12")
    assert "https://" not in escaped("https://example.org")
    assert "www." not in escaped("www.example.org")
