"""The lesson as HTML: first screen, seven steps, side chapters, glossary. The page's script brings its pictures to life."""

import re
from collections.abc import Set
from dataclasses import dataclass

from isotherm.language import LANGUAGES, Text
from isotherm.record.claim import Step
from isotherm.record.story import LINK, TERM, Predict, SideChapter, Story, StoryStep, StoryWords, Term, Worked
from isotherm.report.explain import mathml, words
from isotherm.report.markup import Html, both, html, join, tag, typeset

PICTURE_OF_FIRST_SCREEN = "finding"
_TAGS = {"en": "en", "zh": "zh-CN"}


@dataclass(frozen=True)
class StoryPieces:
    """What the page puts in its places."""

    hero: Html
    steps: Html
    sides: Html
    glossary: Html


def render(story: Story, claims: Set[str]) -> StoryPieces:
    """The pieces of the lesson; a sentence links to the claim that supports it if that is among `claims`."""
    told = story.words
    page = _Page(told, claims)
    return StoryPieces(
        hero=page.hero(),
        steps=join(*(page.step(number, step) for number, step in enumerate(told.steps, 1))),
        sides=join(*map(page.side, told.sides)),
        glossary=page.glossary(),
    )


class _Page:
    def __init__(self, told: StoryWords, claims: Set[str]) -> None:
        self.told, self.claims = told, claims
        self.terms = {term.id for term in told.glossary}

    def said(self, text: Text, name: str = "span", **attributes: object) -> Html:
        """A sentence in both languages, its marks turned into markup."""
        return join(*(tag(name, self._inline(text.to(it)), lang=_TAGS[it], **attributes) for it in LANGUAGES))

    def _inline(self, sentence: str) -> Html:
        """Bold and code, which do not nest; links may stand within bold."""
        made = []
        for piece in re.split(r"(\*\*.+?\*\*|`.+?`)", sentence):
            if piece.startswith("`"):
                made.append(tag("code", piece.strip("`"), translate="no"))
            else:
                bold = piece.startswith("**")
                made.append(tag("b", self._linked(piece.strip("*"))) if bold else self._linked(piece))
        return join(*made)

    def _linked(self, sentence: str) -> Html:
        made, end = [], 0
        for found in LINK.finditer(sentence):
            made += [typeset(sentence[end : found.start()]), self._link(typeset(found[1]), found[2])]
            end = found.end()
        return join(*made, typeset(sentence[end:]))

    def _link(self, shown: Html, target: str) -> Html:
        if target.removeprefix(TERM) in self.terms and target.startswith(TERM):
            return tag("button", shown, type="button", class_="term", popovertarget=target)
        return tag("a", shown, href=f"#{target}", class_="evidence") if target in self.claims else shown

    def hero(self) -> Html:
        """The first screen: question, formula, three answers, one row, and a real model."""
        told = self.told
        answers = tag("ol", *(tag("li", self.said(it)) for it in told.answer), class_="answers")
        return join(
            self.said(told.question, "p", class_="asked"),
            tag("div", _formula(told.formula), self.said(told.formula.sentence, "p"), class_="attention"),
            answers,
            tag("section", tag("h2", both(words.WORKED)), *self._worked(told.row), class_="worked"),
            tag("section", tag("h2", both(words.BEFORE_AFTER)), *self._before_after(), class_="before-after"),
        )

    def _worked(self, row: Worked) -> tuple[Html, ...]:
        heads = tag("tr", *(tag("th", self.said(it), scope="col") for it in row.table.heads))
        rows = [
            tag("tr", tag("th", self.said(first), scope="row"), *(tag("td", self.said(it)) for it in rest))
            for first, *rest in row.table.rows
        ]
        caption = tag("caption", both(words.WORKED), class_="unseen")
        table = tag("table", caption, tag("thead", heads), tag("tbody", *rows))
        return (
            self.said(row.lead, "p"),
            tag("div", table, class_="scroll", tabindex="0"),
            self.said(row.shows, "p"),
        )

    def _before_after(self) -> tuple[Html, ...]:
        seen, *more = self.told.before_after
        return self._living(PICTURE_OF_FIRST_SCREEN, seen), *(self.said(it, "p") for it in more)

    def _living(self, picture: str, seen: Text) -> Html:
        return tag("figure", tag("figcaption", self.said(seen)), class_="living", data_picture=picture)

    def step(self, number: int, step: StoryStep) -> Html:
        """A step: lead, picture, derivation beside what supports it, question."""
        derivation = [
            tag("li", self.said(it.sentence, "p"), _formula(it) if it.math else None) for it in step.derivation
        ]
        points = tag("ul", *(tag("li", self.said(it)) for it in step.points), class_="points")
        return tag(
            "section",
            tag("h2", tag("span", number, class_="count"), self.said(step.title)),
            self.said(step.lead, "p", class_="lead"),
            self._living(step.id, step.seen),
            tag(
                "div",
                tag("div", tag("h3", both(words.DERIVATION)), tag("ol", *derivation, class_="steps"), class_="theory"),
                tag("div", tag("h3", both(words.SUPPORTED)), points, self._predict(step.id, step.predict)),
                class_="two",
            ),
            id=f"step-{step.id}",
            class_="step",
        )

    def _predict(self, name: str, predict: Predict) -> Html:
        choices = [
            tag("label", Html(f'<input type="radio" name="predict-{html(name)}" value="{place}">'), self.said(choice))
            for place, choice in enumerate(predict.choices)
        ]
        fields = tag("fieldset", tag("legend", both(words.PREDICT), self.said(predict.question)), *choices)
        right = tag("p", tag("b", self.said(predict.choices[predict.answer])))
        see = tag("div", right, self.said(predict.why, "p"), class_="see", hidden="")
        return tag("form", fields, see, class_="predict", data_answer=predict.answer)

    def side(self, side: SideChapter) -> Html:
        """A side chapter."""
        return tag(
            "section",
            tag("h3", self.said(side.title)),
            *(self.said(it, "p") for it in side.paragraphs),
            id=f"side-{side.id}",
            class_="side",
        )

    def glossary(self) -> Html:
        """Every word in a list, and once more as what opens where it is used."""
        listed = [
            tag("div", tag("dt", self.said(term.name)), tag("dd", self.said(term.meaning)))
            for term in self.told.glossary
        ]
        return join(tag("dl", *listed, class_="glossary"), *map(self._popover, self.told.glossary))

    def _popover(self, term: Term) -> Html:
        name = tag("b", self.said(term.name))
        return tag(
            "div", tag("p", name), self.said(term.meaning, "p"), popover="", id=f"{TERM}{term.id}", class_="meaning"
        )


def _formula(step: Step) -> Html:
    return tag("div", Html(mathml.to_html(step.math)), class_="formula")
