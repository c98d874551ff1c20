"""What a claim says, apart from what it measures: `en.md` and `zh.md` beside the claim's `experiment.py`.

A file of content has these headings, in this order; the last four may be missing:

    # Title
    ## question, ## statement, ## hypothesis       a paragraph each
    ## quotation                                   ### 001:72 for line 72 of document 001; below it the line's own words in
                                                   zh.md, their translation in en.md
    ## derivation                                  numbered sentences; a line $$…$$ below one is its formula in LaTeX
    ## errata                                      ### 001:72, «> what it says», then what is right;
                                                   ### 001:72 remark where it is no error but there is more to say
    ## words                                       ### name, then a sentence that the experiment uses under that name

The words of a document are literal, but for its markup: LaTeX and emphasis are plain text. …… leaves something out, and
〔〕 holds what is supplied, such as a character that our copy of 004 has lost. `tests/lab/test_quotations.py` compares them
with the lines themselves.

Sentences may have fields, such as `{largest:.2f}`, which the experiment fills with what it measured. Both languages have the
same headings, names, fields and formulas: `tests/lab/test_content.py` compares them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from isotherm.lab.claim import Claim
from isotherm.language import LANGUAGES, Text
from isotherm.record import Erratum, ErratumKind, Quotation, Step

PARAGRAPHS = ("title", "question", "statement", "hypothesis")
LISTS = ("quotations", "steps", "errata")
Sections = dict[str, str]
"""Headings of one level with the text below each."""


@dataclass(frozen=True)
class Content:
    """The content of one claim in both languages. `content["name"]` is a sentence of its `words`."""

    title: Text
    question: Text
    statement: Text
    hypothesis: Text
    steps: tuple[Step, ...]
    errata: tuple[Erratum, ...]
    quotations: tuple[Quotation, ...]
    words: Mapping[str, Text]

    def __getitem__(self, name: str) -> Text:
        return self.words[name]

    def claim(self, **measured: Any) -> Claim:
        """The claim: this content, and the experiment's own fields."""
        return Claim(**{name: getattr(self, name) for name in (*PARAGRAPHS, *LISTS)}, **measured)


def read_content(experiment: str | Path) -> Content:
    """Read the content beside an experiment, which passes its `__file__`."""
    one, other = _pages(experiment)
    texts = {name: Text(one.paragraph(name), other.paragraph(name)) for name in PARAGRAPHS}
    steps = zip(one.steps, other.steps, strict=True)
    errata = zip(one.errata, other.errata, strict=True)
    quoted = zip(one.quotations, other.quotations, strict=True)
    return Content(
        **texts,
        steps=tuple(Step(Text(a, b), mathml(latex)) for (a, latex), (b, _) in steps),
        errata=tuple(
            Erratum(a.document, Text(a.wrong, b.wrong), Text(a.right, b.right), a.kind, a.line) for a, b in errata
        ),
        quotations=tuple(Quotation(document, line, Text(a, b)) for (document, line, a), (*_, b) in quoted),
        words=read_words(experiment),
    )


def read_words(module: str | Path) -> dict[str, Text]:
    """The sentences under `words` in the files beside a module, by name. What several claims draw has no other content."""
    one, other = _pages(module)
    return {name: Text(one.words[name], other.words[name]) for name in one.words}


def _pages(module: str | Path) -> "list[_Page]":
    folder = Path(module).parent
    return [_Page((folder / f"{language}.md").read_text(encoding="utf-8")) for language in LANGUAGES]


@dataclass(frozen=True)
class _Erratum:
    """An erratum in one language."""

    document: str
    line: str
    wrong: str
    right: str
    kind: ErratumKind


class _Page:
    """One language's file, taken apart."""

    def __init__(self, text: str) -> None:
        title, _, body = text.removeprefix("# ").partition("\n")
        self.sections: Sections = {"title": title, **dict(_entries(body, "## "))}

    def paragraph(self, name: str) -> str:
        return joined(self.sections[name])

    @cached_property
    def words(self) -> Sections:
        return {name: joined(text) for name, text in _entries(self.sections.get("words", ""))}

    @cached_property
    def steps(self) -> list[tuple[str, str]]:
        return numbered(self.sections.get("derivation", ""))

    @cached_property
    def quotations(self) -> list[tuple[str, str, str]]:
        """Document, line and words of each quotation."""
        found = []
        for head, text in _entries(self.sections.get("quotation", "")):
            document, _, line = head.partition(":")
            found.append((document, line, joined(text)))
        return found

    @cached_property
    def errata(self) -> list[_Erratum]:
        found = []
        for head, text in _entries(self.sections.get("errata", "")):
            place, _, kind = head.partition(" ")
            document, _, line = place.partition(":")
            quoted = [row for row in text.splitlines() if row.startswith(">")]
            plain = [row for row in text.splitlines() if not row.startswith(">")]
            wrong = joined("\n".join(row.removeprefix(">") for row in quoted))
            right = joined("\n".join(plain))
            found.append(_Erratum(document, line, wrong, right, "remark" if kind == "remark" else "error"))
        return found


def joined(text: str) -> str:
    """Wrapped lines as one line. A Chinese paragraph stays on one line: a break would leave a space behind."""
    return " ".join(line.strip() for line in text.strip().splitlines() if line.strip())


def numbered(text: str) -> list[tuple[str, str]]:
    """Each sentence of a numbered list with the formula below it, or with nothing."""
    found = []
    for item in re.split(r"^\d+\. ", text, flags=re.M)[1:]:
        sentence, _, formula = item.partition("$$")
        found.append((joined(sentence), formula.strip().removesuffix("$$").strip()))
    return found


def sections(text: str, mark: str) -> Sections:
    """The text below each heading that begins with the mark."""
    return dict(_entries(text, mark))


def _entries(text: str, mark: str = "### ") -> list[tuple[str, str]]:
    """Each heading of a level with the text below it."""
    pieces = re.split(f"^{mark}", text, flags=re.M)[1:]
    return [(head.strip(), body) for head, _, body in (piece.partition("\n") for piece in pieces)]


def mathml(latex: str) -> str:
    """A formula as MathML without the <math> element; as LaTeX where the library is missing (extra `explain`)."""
    if not latex or find_spec("latex2mathml") is None:
        return latex
    from latex2mathml.converter import convert

    return re.sub(r"^<math[^>]*>|</math>$", "", str(convert(latex, display="block")))
