"""The lesson and the lab as one HTML file that works without a network and stays under 1.5 MB.

`page/explain.html` holds what every run says, in both languages, with places for the story and for what this run found.
First comes the lesson, whose pictures the script `page/lesson/start.js` brings to life; the claims are its appendix.
"""

from isotherm.errors import as_language
from isotherm.language import Language
from isotherm.report import shell
from isotherm.report.draw import heatmap
from isotherm.report.explain import lesson, words
from isotherm.report.explain.book import Book, Chapter
from isotherm.report.explain.claim import article
from isotherm.report.explain.method import errata, facts, runs
from isotherm.report.markup import Html, both, join, tag


def to_html(book: Book, language: Language | None = None) -> str:
    """The page as text; it opens in `language` and can be switched to the other."""
    opening = as_language(language)
    told = lesson.pieces(book)
    chapters = [chapter for chapter in book.chapters if chapter.claims]
    body = shell.filled(
        "explain.html",
        in_english="true" if opening == "en" else "false",
        in_chinese="true" if opening == "zh" else "false",
        title_en=words.PAGE_TITLE.en,
        title_zh=words.PAGE_TITLE.zh,
        toc=lesson.contents(book),
        hero=told.hero if told else "",
        lesson=lesson.body(told),
        data=lesson.data(book.story),
        tally=_tally(book),
        cover=_cover(book),
        contents=_contents(chapters),
        claims=join(*(_chapter(number, chapter) for number, chapter in enumerate(chapters, 1))),
        errata=errata(book),
        facts=facts(book),
        runs=runs(book),
    )
    return shell.fill(
        body,
        styles=["explain.css", "lesson.css", "lesson/pictures.css"],
        scripts=["explain.js"],
        module=lesson.ENTRY,
        title=words.PAGE_TITLE.to(opening),
        language="zh-CN" if opening == "zh" else "en",
    )


def _tally(book: Book) -> Html:
    """How many claims have each verdict, in words and as a bar."""
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
    bar = tag("svg", *parts, viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true")
    return join(tag("ul", *tally, class_="tally"), tag("div", bar, class_="share"))


def _cover(book: Book) -> Html:
    """The last heat map with a boundary (the phase diagram), as a link to its claim."""
    for timed in reversed(list(book.claims())):
        for phases in timed.record.heatmaps[:1]:
            if phases.boundary is not None:
                name = tag("span", both(timed.record.title), class_="cover-name")
                return tag("a", heatmap.thumbnail(phases), name, href=f"#{timed.record.id}", class_="cover")
    return Html("")


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
    return tag("ul", *listed, class_="contents")


def _chapter(number: int, chapter: Chapter) -> Html:
    return tag(
        "section",
        tag("h2", tag("span", number, class_="count"), both(chapter.title)),
        both(chapter.lead, "p", class_="lead"),
        *(article(timed, f"{number}.{place}") for place, timed in enumerate(chapter.claims, 1)),
        id=f"chapter-{chapter.id}",
        class_="chapter",
    )
