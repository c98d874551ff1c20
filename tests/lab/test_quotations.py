"""What claims quote: every quotation stands, word for word, in the line of the document that it names.

`quoted_lines.txt` has those lines of the documents, each after its place.
"""

import re
from pathlib import Path

import pytest

from isotherm.lab.claims import CLAIMS, load

LINES = dict(
    row.split(" ", 1) for row in (Path(__file__).parent / "quoted_lines.txt").read_text(encoding="utf-8").splitlines()
)
OUR_NOTATION = {"004:41", "004:48"}
"""Errata on formulas that the document has in LaTeX and the claim in the notation of the page."""
PLAIN = {r"\sqrt{d}": "√d", r"\cdot": "·", r"\top": "⊤", r"\operatorname{Softmax}": "Softmax"}


def bare(text: str) -> str:
    """The words of a line, or of a quotation, alone: without markup, spaces, lost and supplied characters."""
    for latex, plain in PLAIN.items():
        text = text.replace(latex, plain)
    return re.sub(r"〔.*?〕|\*\*|[$�\s]", "", text)


def stands_in(quotation: str, line: str) -> bool:
    """Whether the parts of a quotation stand in a line, in order; …… leaves something out."""
    parts = map(re.escape, bare(quotation).split("……"))
    return re.search(".+".join(parts), bare(line)) is not None


def quoted(claim: str) -> list[tuple[str, str]]:
    """Each quotation of a claim and its errata, with its place."""
    loaded = load(claim)
    found = [(f"{it.document}:{it.line}", it.words.zh) for it in loaded.quotations]
    return found + [(f"{it.document}:{it.line}", it.wrong.zh) for it in loaded.errata]


@pytest.mark.parametrize("claim", CLAIMS)
def test_every_quotation_is_literal(claim):
    wrong = [(place, text) for place, text in quoted(claim) if not stands_in(text, LINES[place])]
    assert [place for place, _ in wrong if place not in OUR_NOTATION] == [], wrong


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_quotes_the_documents_it_is_from(claim):
    loaded = load(claim)
    assert bool(loaded.quotations) == bool(loaded.sources)
    assert {it.document for it in loaded.quotations} <= set(loaded.sources)


def test_the_table_has_the_quoted_lines_and_no_others():
    assert set(LINES) == {place for claim in CLAIMS for place, _ in quoted(claim)}


@pytest.mark.parametrize(
    ("quotation", "line", "literal"),
    [
        ("方差为根号d", "所以 qk 的方差为根号d.", True),
        ("方差为 d", "所以 qk 的方差为根号d.", False),
        ("真〔正〕的 √d", r"真�的 $\sqrt{d}$ 项", True),
        ("甲……丁", "甲乙丙丁", True),
        ("丁……甲", "甲乙丙丁", False),
        ("甲……乙", "甲乙", False),
    ],
)
def test_the_comparison_can_fail(quotation, line, literal):
    assert stands_in(quotation, line) == literal
