"""One claim on the page: what was asked, why it should be so, what was measured, and what came of it."""

from collections.abc import Iterator
from itertools import count
from string import ascii_lowercase

from isotherm.record import Figure, Heatmap, Measured, Quotation, Timed
from isotherm.report.draw import svg
from isotherm.report.explain import mathml, words
from isotherm.report.explain.book import drawings
from isotherm.report.markup import Html, both, join, tag, typeset

FEW = 12
"""Numbers shown at once; the rest unfold."""


def article(timed: Timed, number: str) -> Html:
    """The claim as an `<article>`; `number` is its number on the page."""
    record = timed.record
    tables = [_numbers(timed, record.measured)]
    if timed.timings:
        tables += [both(words.TIMES, "p", class_="quiet"), _numbers(timed, timed.timings)]
    several = len(drawings(timed)) > 1
    letters = (letter * times for times in count(1) for letter in ascii_lowercase)  # a … z, aa … zz
    labels = (f"{number}{letter if several else ''}" for letter in letters)
    return tag(
        "article",
        _head(timed),
        both(record.question, "p", class_="asked"),
        _statement(timed),
        _answer(timed),
        *(_picture(heatmap, next(labels)) for heatmap in record.heatmaps[:1]),
        *_side_by_side([_picture(heatmap, next(labels), small=True) for heatmap in record.heatmaps[1:]]),
        _beside(timed, labels),
        *tables,
        id=record.id,
        class_=f"claim {record.verdict}",
    )


def _head(timed: Timed) -> Html:
    verdict = timed.record.verdict
    sign = tag("span", words.GLYPHS[verdict], aria_hidden="true")
    badge = tag("span", sign, tag("span", both(words.VERDICTS[verdict])), class_="verdict-badge")
    changed = None
    if verdict != timed.expected:
        changed = both(words.CHANGED.format(verdict=words.VERDICTS[timed.expected]), class_="changed")
    return tag("div", tag("h3", both(timed.record.title)), badge, changed, class_="claim-head")


def _statement(timed: Timed) -> Html:
    """What is put to the test, and the documents' own words for it."""
    record = timed.record
    parts = [tag("h4", both(words.STATEMENT)), both(record.statement, "p", class_="said")]
    parts.append(both(words.sources(record.sources), "p", class_="from"))
    if record.quotations:
        parts += [tag("h4", both(words.QUOTED)), *map(_quotation, record.quotations)]
    return tag("div", *parts, class_="statement")


def _quotation(quotation: Quotation) -> Html:
    """A document's own words in any language of the page; where that is English, with a translation."""
    said = quotation.words
    own = tag("p", typeset(said.zh), lang="zh-CN", class_="original", translate="no")
    translation = None if said.en == said.zh else tag("p", typeset(said.en), lang="en")
    where = both(words.place(quotation.document, quotation.line), "p", class_="from")
    return tag("blockquote", own, translation, where, class_="quotation")


def _answer(timed: Timed) -> Html:
    record = timed.record
    condition = None
    if record.condition is not None:
        condition = tag("p", tag("b", both(words.CONDITION)), " · ", both(record.condition), class_="if")
    recorded = [tag("p", both(line)) for line in record.recorded]
    return tag(
        "div", tag("h4", both(words.ANSWER)), tag("p", both(record.sentence)), condition, *recorded, class_="answer"
    )


def _beside(timed: Timed, labels: Iterator[str]) -> Html:
    """Theory on the left, the first pictures on the right, the others below."""
    record = timed.record
    theory = [tag("h4", both(words.HYPOTHESIS)), tag("p", both(record.hypothesis))]
    if record.steps:
        steps = [
            tag("li", both(step.sentence, "p"), _formula(step.math) if step.math else None) for step in record.steps
        ]
        theory += [tag("h4", both(words.DERIVATION)), tag("ol", *steps, class_="steps")]
    figures = [_picture(figure, next(labels)) for figure in (*record.figures, *timed.timing_figures)]
    if not figures:
        return tag("div", tag("div", *theory, class_="theory"), class_="two alone")
    beside = 2 if record.steps else 1
    shown = tag("div", *figures[:beside], class_="shown")
    return join(tag("div", tag("div", *theory, class_="theory"), shown, class_="two"), *_side_by_side(figures[beside:]))


def _side_by_side(pictures: list[Html]) -> list[Html]:
    return [tag("div", *pictures, class_="two drawn")] if pictures else []


def _formula(math: str) -> Html:
    return tag("div", Html(mathml.to_html(math)), class_="formula")


def _picture(picture: Figure | Heatmap, number: str, *, small: bool = False) -> Html:
    """A picture with its legend and caption: the first heat map of a claim takes the whole width."""
    items = [
        tag("li", tag("svg", sign, viewBox="0 0 28 14", aria_hidden="true"), tag("span", both(name)))
        for sign, name in svg.signs(picture)
    ]
    key = tag("ul", *items, class_="key-list") if items else None
    name, drawing, kind = f"{picture.id}-caption", svg.draw(picture, small=small), None
    if isinstance(picture, Heatmap):
        drawing = tag("div", drawing, class_="scroll", tabindex="0", role="region", aria_labelledby=name)
        kind = "picture small" if small else "picture"
    caption = tag("figcaption", tag("b", both(words.FIGURE.format(n=number))), both(picture.caption), id=name)
    return tag("figure", drawing, key, caption, class_=kind, id=f"figure-{picture.id}")


def _numbers(timed: Timed, measured: tuple[Measured, ...]) -> Html | None:
    """Measured beside predicted beside the document's numbers; those past the first few unfold."""
    if not measured:
        return None
    first = _table(timed, measured, measured[:FEW])
    if len(measured) <= FEW:
        return tag("div", first, class_="numbers")
    more = tag("summary", both(words.MORE_NUMBERS.format(n=len(measured) - FEW)))
    return tag("div", first, tag("details", more, _table(timed, measured, measured[FEW:])), class_="numbers")


def _table(timed: Timed, measured: tuple[Measured, ...], part: tuple[Measured, ...]) -> Html:
    columns, judged = words.columns(measured), any(it.holds is not None for it in measured)
    heads = [tag("th", both(name), scope="col", class_="number") for name in columns.values()]
    heads += [tag("th", both(words.HOLDS), scope="col", class_="held")] if judged else []
    rows = []
    for it in part:
        cells = []
        for field in columns:
            exact = None if field == "low" else getattr(it, field)
            cells.append(tag("td", words.cell(it, field), title=None if exact is None else repr(exact)))
        cells += [tag("td", _held(it.holds), class_="held")] if judged else []
        rows.append(tag("tr", tag("th", both(it.name), scope="row"), *cells))
    head = tag("thead", tag("tr", tag("th", both(words.QUANTITY), scope="col"), *heads))
    caption = tag("caption", both(words.TABLE_LABEL.format(title=timed.record.title)), class_="unseen")
    return tag("div", tag("table", caption, head, tag("tbody", *rows)), class_="scroll", tabindex="0")


def _held(holds: bool | None) -> Html | None:
    if holds is None:
        return None
    word = both(words.YES if holds else words.NO, class_="unseen")
    sign = tag("span", words.GLYPHS["confirmed" if holds else "refuted"], aria_hidden="true")
    return tag("span", sign, word, class_="holds-yes" if holds else "holds-no")
