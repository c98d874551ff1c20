"""The lesson's places on the page: its text, its table of contents, and the data and words that its script reads."""

import json
from collections.abc import Iterator
from typing import Any

from isotherm.language import Text
from isotherm.record import to_plain
from isotherm.record.story import Story
from isotherm.report import shell
from isotherm.report.explain import words
from isotherm.report.explain.book import Book
from isotherm.report.explain.story import StoryPieces, render
from isotherm.report.markup import Html, both, join, tag

ENTRY = "lesson/start.js"
WORDS = ("lesson/words.json", "lesson/pictures/words.json")


def pieces(book: Book) -> StoryPieces | None:
    """The text of the lesson; its sentences link to the claims that the book has."""
    claims = {timed.record.id for timed in book.claims()}
    return None if book.story is None else render(book.story, claims)


def body(told: StoryPieces | None) -> Html:
    """The steps, the side chapters and the glossary."""
    if told is None:
        return Html("")
    sides = tag("section", tag("h2", both(words.SIDES)), told.sides, id="sides")
    glossary = tag("section", tag("h2", both(words.GLOSSARY)), told.glossary, id="glossary")
    return join(tag("div", told.steps, id="steps"), sides, glossary)


def contents(book: Book) -> Html:
    """A compact table of contents: steps, side chapters, free play, appendix."""
    places = (("play", words.FREE_PLAY), ("run", words.TRAINING_RUN), ("evidence", words.EVIDENCE))
    lines = [*_of_story(book.story), *((name, title, None) for name, title in places)]
    if any(True for _ in book.claims()):
        lines.append(("contents", words.CONTENTS, None))
    lines += [("errata", words.ERRATA, None), ("method", words.METHOD, None)]
    listed = (
        tag("li", tag("a", tag("span", number or "", class_="count"), both(title), href=f"#{name}"))
        for name, title, number in lines
    )
    return tag("ol", *listed)


def _of_story(story: Story | None) -> Iterator[tuple[str, Text, int | None]]:
    if story is None:
        return
    for number, step in enumerate(story.words.steps, 1):
        yield f"step-{step.id}", step.title, number
    yield "sides", words.SIDES, None
    yield "glossary", words.GLOSSARY, None


def data(story: Story | None) -> str:
    """What the script reads, as JSON that a page can hold."""
    said: dict[str, Any] = {}
    for name in WORDS:
        said |= json.loads(shell.asset(name))
    told = {} if story is None else {name: to_plain(getattr(story, name)) for name in ("finding", "model", "run")}
    return shell.embedded({"words": said, **told})
