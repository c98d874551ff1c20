"""What claims say: both languages have the same parts, names, fields and formulas, and experiments use all of it."""

import re
from pathlib import Path
from string import Formatter

import pytest

from isotherm.lab import claims, content, contest, phase_diagram
from isotherm.lab.claims import CLAIMS
from isotherm.lab.phase import rules
from isotherm.language import Text
from isotherm.report.explain import mathml as shown

FOLDER = Path(claims.__file__).parent
PARTS = ["question", "statement", "hypothesis", "quotation", "derivation", "errata", "words"]


def folder_of(claim: str) -> Path:
    return FOLDER / claim.replace("-", "_")


def page(claim: str, language: str) -> content._Page:
    return content._Page((folder_of(claim) / f"{language}.md").read_text(encoding="utf-8"))


def fields(sentence: str) -> set[str]:
    """The fields of a sentence, each with its format."""
    return {f"{name}:{form}" for _, name, form, _ in Formatter().parse(sentence) if name is not None}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_is_a_folder(claim):
    names = {path.name for path in folder_of(claim).iterdir()} - {"__pycache__"}
    assert names == {"experiment.py", "en.md", "zh.md"}


@pytest.mark.parametrize("claim", CLAIMS)
def test_both_languages_have_the_same_parts_names_fields_and_formulas(claim):
    en, zh = page(claim, "en"), page(claim, "zh")
    assert list(en.sections) == list(zh.sections)
    assert [name for name in en.sections if name != "title"] == [name for name in PARTS if name in en.sections]
    assert list(en.words) == list(zh.words)
    assert {name: fields(text) for name, text in en.words.items()} == {
        name: fields(text) for name, text in zh.words.items()
    }
    assert [formula for _, formula in en.steps] == [formula for _, formula in zh.steps]
    assert [place[:2] for place in en.quotations] == [place[:2] for place in zh.quotations]
    assert [(it.document, it.line, it.kind) for it in en.errata] == [
        (it.document, it.line, it.kind) for it in zh.errata
    ]


@pytest.mark.parametrize("claim", CLAIMS)
def test_nothing_is_empty_and_every_sentence_is_used(claim):
    source = (folder_of(claim) / "experiment.py").read_text(encoding="utf-8")
    for language in ("en", "zh"):
        told = page(claim, language)
        texts = [told.paragraph(name) for name in ("title", "question", "statement", "hypothesis")]
        texts += [*told.words.values(), *(sentence for sentence, _ in told.steps)]
        texts += [text for it in told.errata for text in (it.line, it.wrong, it.right)]
        texts += [text for it in told.quotations for text in it]
        assert all(texts)
    used = set(re.findall(r'SAYS\[f?"([^"]+)"\]', source))
    dynamic = [re.compile(re.sub(r"\\\{.*?\\\}", ".+", re.escape(name))) for name in used if "{" in name]
    unused = [name for name in told.words if name not in used and not any(it.fullmatch(name) for it in dynamic)]
    assert unused == []


@pytest.mark.parametrize("claim", CLAIMS)
def test_every_formula_can_be_shown(claim):
    for step in content.read_content(folder_of(claim) / "experiment.py").steps:
        assert step.math == "" or step.math.startswith("<")
        assert shown.parse(step.math) is not None, step.math
        assert "\\" not in shown.to_text(step.math)


MARKUP = re.compile(r"(?<![\w)*])\*[^*\s][^*]*\*|`[^`]+`|\*\*|\$|\[[^\]]+\]\(|&[a-z]+;|<[a-z/]")
"""Markdown, LaTeX and HTML, which a page and a terminal would show as they are."""


@pytest.mark.parametrize("module", [*CLAIMS, contest, phase_diagram], ids=str)
def test_no_sentence_has_markup(module):
    folder = folder_of(module) if isinstance(module, str) else Path(module.__file__).parent
    for language in ("en", "zh"):
        told = content._Page((folder / f"{language}.md").read_text(encoding="utf-8"))
        said = [told.paragraph(name) for name in content.PARAGRAPHS if name in told.sections]
        said += [sentence for sentence, _ in told.steps] + [text for *_, text in told.quotations]
        said += [text for it in told.errata for text in (it.wrong, it.right)] + list(told.words.values())
        assert [text for text in said if MARKUP.search(text)] == []


@pytest.mark.parametrize("text", ["*efficiency*", "its `width`", "**all**", "$d$", "[a](b)", "&amp;", "<b>x"])
def test_markup_is_noticed(text):
    assert MARKUP.search(text)


def test_a_page_is_taken_apart(tmp_path):
    text = (
        "# T\n\n## question\nq\nr\n\n## statement\ns\n\n## hypothesis\nh\n\n## quotation\n### 002:20\nsaid so\n\n"
        "## derivation\n1. a\n   b\n\n   $$x^2$$\n\n2. c\n\n"
        "## errata\n### 003:7\n> wrong\n\nright\n\n### 001 remark\n> said\n\nmore\n\n## words\n### name\nsaid {n:.2f}\n"
    )
    (tmp_path / "en.md").write_text(text, encoding="utf-8")
    (tmp_path / "zh.md").write_text(text.replace("said", "说"), encoding="utf-8")
    found = content.read_content(tmp_path / "experiment.py")
    assert found.question.en == "q r"
    assert [step.sentence.en for step in found.steps] == ["a b", "c"]
    assert found.steps[0].math.startswith("<mrow><msup>")
    assert found.steps[1].math == ""
    errata = [(it.document, it.line, it.wrong.en, it.right.en, it.kind) for it in found.errata]
    assert errata == [("003", "7", "wrong", "right", "error"), ("001", "", "said", "more", "remark")]
    (quotation,) = found.quotations
    assert (quotation.document, quotation.line, quotation.words) == ("002", "20", Text("said so", "说 so"))
    assert found["name"].format(n=1.234).zh == "说 1.23"


@pytest.mark.parametrize("module", [contest, phase_diagram], ids=lambda module: module.__name__)
def test_words_that_claims_share_are_in_both_languages_and_used(module):
    folder = Path(module.__file__).parent
    en, zh = (content._Page((folder / f"{language}.md").read_text(encoding="utf-8")).words for language in ("en", "zh"))
    assert {name: fields(text) for name, text in en.items()} == {name: fields(text) for name, text in zh.items()}
    assert all(en.values())
    assert not re.search("[\u4e00-\u9fff]", "".join(en.values()))
    source = (folder / "__init__.py").read_text(encoding="utf-8")
    made = {"task-align", "task-translation", *(f"{what} {rule}" for what in ("gate", "entropy") for rule in rules())}
    assert [name for name in en if f'"{name}"' not in source and name not in made] == []


def test_topics_are_told_in_both_languages_in_the_order_of_the_claims():
    assert [topic.id for topic in claims.TOPICS] == list(claims.ORDER)
    assert all(topic.title.en != topic.title.zh and topic.lead.en != topic.lead.zh for topic in claims.TOPICS)
