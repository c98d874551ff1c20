"""What a claim says, apart from what it measures: `en.md` and `zh.md` beside the claim's `experiment.py`.

A file of content has these headings, in this order; `derivation`, `errata` and `words` may be missing:

    # Title
    ## question, ## statement, ## hypothesis       a paragraph each
    ## derivation                                  numbered sentences; a line $$…$$ below one is its formula in LaTeX
    ## errata                                      ### 001 for document 001, «> what it says», then what is right;
                                                   ### 001 remark where it is no error but there is more to say
    ## words                                       ### name, then a sentence that the experiment uses under that name

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
from isotherm.record import Erratum, ErratumKind, Step

PARAGRAPHS = ("title", "question", "statement", "hypothesis")
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
    words: Mapping[str, Text]

    def __getitem__(self, name: str) -> Text:
        return self.words[name]

    def claim(self, **measured: Any) -> Claim:
        """The claim: this content, and the experiment's own fields."""
        return Claim(**{name: getattr(self, name) for name in (*PARAGRAPHS, "steps", "errata")}, **measured)


def read_content(experiment: str | Path) -> Content:
    """Read the content beside an experiment, which passes its `__file__`."""
    one, other = _pages(experiment)
    texts = {name: Text(one.paragraph(name), other.paragraph(name)) for name in PARAGRAPHS}
    steps = zip(one.steps, other.steps, strict=True)
    errata = zip(one.errata, other.errata, strict=True)
    return Content(
        **texts,
        steps=tuple(Step(Text(a, b), _mathml(latex)) for (a, latex), (b, _) in steps),
        errata=tuple(Erratum(a[0], Text(a[1], b[1]), Text(a[2], b[2]), a[3]) for a, b in errata),
        words=read_words(experiment),
    )


def read_words(module: str | Path) -> dict[str, Text]:
    """The sentences under `words` in the files beside a module, by name. What several claims draw has no other content."""
    one, other = _pages(module)
    return {name: Text(one.words[name], other.words[name]) for name in one.words}


def _pages(module: str | Path) -> "list[_Page]":
    folder = Path(module).parent
    return [_Page((folder / f"{language}.md").read_text(encoding="utf-8")) for language in LANGUAGES]


class _Page:
    """One language's file, taken apart."""

    def __init__(self, text: str) -> None:
        title, _, body = text.removeprefix("# ").partition("\n")
        self.sections: Sections = {"title": title, **_sections(body, "## ")}

    def paragraph(self, name: str) -> str:
        return _joined(self.sections[name])

    @cached_property
    def words(self) -> Sections:
        named = _sections(self.sections.get("words", ""), "### ")
        return {name: _joined(text) for name, text in named.items()}

    @cached_property
    def steps(self) -> list[tuple[str, str]]:
        """Each sentence of the derivation with its formula, or with nothing."""
        found = []
        for item in re.split(r"^\d+\. ", self.sections.get("derivation", ""), flags=re.M)[1:]:
            sentence, _, formula = item.partition("$$")
            found.append((_joined(sentence), formula.strip().removesuffix("$$").strip()))
        return found

    @cached_property
    def errata(self) -> list[tuple[str, str, str, ErratumKind]]:
        """Document, what it says, what is right, and whether what it says is an error."""
        found: list[tuple[str, str, str, ErratumKind]] = []
        for entry in re.split(r"^### ", self.sections.get("errata", ""), flags=re.M)[1:]:
            head, _, text = entry.partition("\n")
            document, _, kind = head.strip().partition(" ")
            quoted = [line for line in text.splitlines() if line.startswith(">")]
            plain = [line for line in text.splitlines() if not line.startswith(">")]
            wrong = _joined("\n".join(line.removeprefix(">") for line in quoted))
            found.append((document, wrong, _joined("\n".join(plain)), "remark" if kind == "remark" else "error"))
        return found


def _joined(text: str) -> str:
    """Wrapped lines as one line. A Chinese paragraph stays on one line: a break would leave a space behind."""
    return " ".join(line.strip() for line in text.strip().splitlines() if line.strip())


def _sections(text: str, mark: str) -> Sections:
    pieces = re.split(f"^{mark}", text, flags=re.M)[1:]
    return {head.strip(): body for head, _, body in (piece.partition("\n") for piece in pieces)}


def _mathml(latex: str) -> str:
    """A formula as MathML without the <math> element; as LaTeX where the library is missing (extra `explain`)."""
    if not latex or find_spec("latex2mathml") is None:
        return latex
    from latex2mathml.converter import convert

    return re.sub(r"^<math[^>]*>|</math>$", "", str(convert(latex, display="block")))
