"""The lesson as HTML: it follows the contract with the page's script, and lets nothing through that could act."""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from isotherm.lab.claims import CLAIMS
from isotherm.lab.story import story
from isotherm.language import Text
from isotherm.record.story import TERM
from isotherm.report.explain import terminal
from isotherm.report.explain.story import render
from tests.report.claims import ATTACK, book, record, timed

STORY = story()
VOID = {"input"}


class Elements(HTMLParser):
    """Every element with its attributes; complains where one is not closed in order."""

    def __init__(self, markup):
        super().__init__()
        self.found, self.open = [], []
        self.feed(markup)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def of(self, tag, **wanted):
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in wanted.items()}
        return [attrs for name, attrs in self.found if name == tag and wanted.items() <= attrs.items()]


def whole(claims=CLAIMS, told=STORY):
    pieces = render(told, set(claims))
    return Elements("".join([pieces.hero, pieces.steps, pieces.sides, pieces.glossary]))


def test_each_picture_has_its_place():
    page = whole()
    pictures = [figure["data-picture"] for figure in page.of("figure", class_="living")]
    assert pictures == ["finding", *(step.id for step in STORY.words.steps)]
    assert [section["id"] for section in page.of("section", class_="step")] == [f"step-{name}" for name in pictures[1:]]


def test_ids_are_unique_and_every_term_opens_something():
    page = whole()
    ids = [attrs["id"] for _, attrs in page.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    buttons = page.of("button", class_="term", type="button")
    assert buttons
    popovers = {attrs["id"] for name, attrs in page.found if "popover" in attrs}
    assert {button["popovertarget"] for button in buttons} <= popovers
    assert popovers == {TERM + term.id for term in STORY.words.glossary}


def test_a_sentence_links_only_to_claims_on_the_page():
    targets = {link["href"] for link in whole().of("a", class_="evidence")}
    assert targets == {f"#{claim}" for claim in CLAIMS}
    assert {link["href"] for link in whole(["freezing"]).of("a")} == {"#freezing"}
    assert whole([]).of("a") == []


def test_a_question_holds_its_answer_closed():
    page = whole()
    forms = page.of("form", class_="predict")
    assert [form["data-answer"] for form in forms] == [str(step.predict.answer) for step in STORY.words.steps]
    radios = page.of("input", type="radio")
    assert [radio["value"] for radio in radios] == ["0", "1", "2"] * len(forms)
    assert len({radio["name"] for radio in radios}) == len(forms)
    assert len(page.of("div", class_="see", hidden="")) == len(forms)


def test_formulas_are_mathml_and_marks_are_gone():
    pieces = render(STORY, set(CLAIMS))
    formulas = [STORY.words.formula, *(it for step in STORY.words.steps for it in step.derivation if it.math)]
    everything = pieces.hero + pieces.steps + pieces.sides + pieces.glossary
    assert everything.count("<math ") == len(formulas)
    text = re.sub("<[^>]+>", "", everything)
    assert not re.search(r"\*\*|`|\]\(#|\$\$|[{}]", text)
    assert '<code translate="no">isotherm check --json</code>' in everything


@pytest.mark.parametrize("field", ["title", "lead", "seen"])
def test_what_a_record_says_is_shown_and_not_run(field):
    hostile = replace(STORY.words.steps[0], **{field: Text(ATTACK, ATTACK)})
    told = replace(STORY, words=replace(STORY.words, steps=(hostile,)))
    names = {name for name, _ in whole(told=told).found}
    assert not names & {"script", "img"}


def test_a_link_to_no_word_and_no_claim_is_plain_text():
    lead = Text("[x](#term-nothing) [y](#nothing)", "[x](#term-nothing) [y](#nothing)")
    told = replace(STORY, words=replace(STORY.words, steps=(replace(STORY.words.steps[0], lead=lead),)))
    markup = render(told, set(CLAIMS)).steps
    assert '<p lang="en" class="lead">x y</p>' in markup


@pytest.mark.parametrize(("language", "words"), [("en", "Why not d_k?"), ("zh", "为什么不是 d_k？")])
def test_the_terminal_begins_with_the_short_answer(language, words):
    out = io.StringIO()
    terminal.show(book(timed(), story=STORY), Console(file=out, width=80), language)
    text = out.getvalue()
    told = text[: text.index(STORY.words.answer[2].to(language)[2:8])]
    assert "softmax(" in told
    assert words in told
    assert text.index(words) < text.index(record().title.to(language))
    assert "](#" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_claim_asked_for_by_name_comes_without_the_short_answer():
    out = io.StringIO()
    terminal.show(book(timed(), story=STORY), Console(file=out, width=80), "en", derive=True)
    assert "Why not d_k?" not in out.getvalue()
