"""The lab as one illustrated HTML file that works without a network and stays under 2 MB.

The whole document is written here, in both languages; the page's script only chooses language and theme.
"""

from os import PathLike

from isotherm.language import Language, current
from isotherm.report import shell
from isotherm.report.draw import heatmap
from isotherm.report.explain import words
from isotherm.report.explain.book import Book, Chapter
from isotherm.report.explain.claim import article
from isotherm.report.explain.method import errata, method
from isotherm.report.files import write_atomically
from isotherm.report.markup import Html, both, join, tag

LIMIT = 2_000_000


def to_html(book: Book, language: Language | None = None) -> str:
    """The page as text; it opens in `language` and can be switched to the other."""
    opening = language or current()
    return shell.fill(
        _body(book, opening),
        styles=["explain.css"],
        scripts=["explain.js"],
        title=words.PAGE_TITLE.to(opening),
        language="zh-CN" if opening == "zh" else "en",
    )


def write_html(book: Book, path: str | PathLike[str], language: Language | None = None) -> None:
    """Write the page."""
    write_atomically(path, to_html(book, language))


def _body(book: Book, opening: Language) -> Html:
    chapters = [chapter for chapter in book.chapters if chapter.claims]
    return join(
        both(words.SKIP, "a", class_="skip", href="#claims"),
        _bar(opening),
        tag(
            "main",
            _hero(book),
            _contents(chapters),
            tag("div", *(_chapter(number, chapter) for number, chapter in enumerate(chapters, 1)), id="claims"),
            errata(book),
            method(book),
        ),
        tag("footer", both(words.FOOTER)),
    )


def _bar(opening: Language) -> Html:
    def language(code: Language, name: str, label: str) -> Html:
        pressed = "true" if code == opening else "false"
        return tag("button", name, type="button", id=f"lang-{code}", lang=label, translate="no", aria_pressed=pressed)

    return tag(
        "header",
        tag("a", "isotherm", href="#top", class_="wordmark", translate="no"),
        tag("span", both(words.LANGUAGE), id="language", class_="unseen"),
        tag(
            "div",
            language("en", "English", "en"),
            language("zh", "中文", "zh-CN"),
            class_="buttons",
            role="group",
            aria_labelledby="language",
        ),
        tag(
            "button",
            tag("span", both(words.DARK), class_="to-dark"),
            tag("span", both(words.LIGHT), class_="to-light"),
            type="button",
            id="theme",
        ),
        class_="top",
        id="top",
    )


def _hero(book: Book) -> Html:
    counts, total = book.verdicts(), sum(book.verdicts().values())
    parts, x = [], 0.0
    tally = []
    for verdict, name in words.VERDICTS.items():
        if n := counts[verdict]:
            parts.append(tag("rect", x=f"{x:.2f}", width=f"{100 * n / total - 0.3:.2f}", height=8, class_=verdict))
            x += 100 * n / total
            sign = tag("span", words.GLYPHS[verdict], aria_hidden="true")
            tally.append(tag("li", tag("b", n), tag("span", sign, " ", both(name)), class_=verdict))
    if errors := len(book.errata()):
        tally.append(tag("li", tag("b", errors), tag("a", both(words.ERRATA), href="#errata")))
    told = tag(
        "div",
        both(words.EYEBROW, "p", class_="eyebrow"),
        tag("h1", both(words.TITLE), data_en=words.PAGE_TITLE.en, data_zh=words.PAGE_TITLE.zh),
        both(words.LEAD, "p", class_="lead"),
        tag("ul", *tally, class_="tally"),
        tag(
            "div",
            tag("svg", *parts, viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true"),
            class_="share",
        ),
    )
    return tag("div", told, _cover(book), class_="hero")


def _cover(book: Book) -> Html | None:
    """The last heat map with a boundary (the phase diagram), as a link to its claim."""
    for timed in reversed(list(book.claims())):
        for phases in timed.record.heatmaps[:1]:
            if phases.boundary is not None:
                name = tag("span", both(timed.record.title), class_="cover-name")
                return tag("a", heatmap.thumbnail(phases), name, href=f"#{timed.record.id}", class_="cover")
    return None


def _contents(chapters: list[Chapter]) -> Html:
    listed = []
    for number, chapter in enumerate(chapters, 1):
        lines = []
        for timed in chapter.claims:
            record = timed.record
            line = tag(
                "a",
                tag("span", words.GLYPHS[record.verdict], class_="glyph", aria_hidden="true"),
                tag("span", both(record.title), class_="name"),
                tag("span", both(words.VERDICTS[record.verdict]), class_="word"),
                href=f"#{record.id}",
                class_=record.verdict,
            )
            lines.append(tag("li", line))
        title = tag("h3", tag("a", f"{number} ", both(chapter.title), href=f"#chapter-{chapter.id}"))
        listed.append(tag("li", title, tag("ol", *lines)))
    return tag(
        "section",
        tag("h2", both(words.CONTENTS), id="contents-title"),
        tag("nav", tag("ul", *listed, class_="contents"), aria_labelledby="contents-title"),
        id="contents",
    )


def _chapter(number: int, chapter: Chapter) -> Html:
    return tag(
        "section",
        tag("h2", tag("span", number, class_="count"), both(chapter.title)),
        both(chapter.lead, "p", class_="lead"),
        *(article(timed, f"{number}.{place}") for place, timed in enumerate(chapter.claims, 1)),
        id=f"chapter-{chapter.id}",
        class_="chapter",
    )
