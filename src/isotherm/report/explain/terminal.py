"""The lab in a terminal: each claim with its picture, numbers and verdict, then all of them in a table.

It fits 80 columns and needs no colour: every verdict has a sign and a word.
"""

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text as Styled

from isotherm.language import Language, Text
from isotherm.printable import printable
from isotherm.record import ClaimRecord, Figure, Measured, Timed, Verdict
from isotherm.record.story import Story, plain
from isotherm.report.digits import NOTHING
from isotherm.report.draw import terminal as drawing
from isotherm.report.explain import mathml, words
from isotherm.report.explain.book import Book, drawings, numbers
from isotherm.report.layout import indented, table
from isotherm.report.line_breaks import lines

WIDEST = 96
FEW, MANY = 8, 20
"""Numbers shown of each claim when all claims are, and when it was asked for by name."""
_MORE = Text("… more numbers ({n}): --json or --out has all", "…… 另有 {n} 个数：见 --json 或 --out")
_MORE_PICTURES = Text("… and {n} more pictures: --out has all", "…… 另有 {n} 幅图：见 --out")
_SUMMARY = Text("Summary", "总览")


def show(book: Book, console: Console, language: Language, *, derive: bool = False) -> None:
    """Print a run, all of it after the short answer; `derive` shows each claim closely: the documents' words, the derivation,
    every curve and more numbers."""
    if book.story is not None and not derive:
        short_answer(book.story, console, language)
    for chapter in book.chapters:
        if chapter.claims:
            console.print()
            console.rule(Styled(f" {_plain(chapter.title, language)} ", style="bold"), align="left", style="dim")
        for timed in chapter.claims:
            _claim(timed, console, language, derive)
    summary(book, console, language)


def short_answer(story: Story, console: Console, language: Language) -> None:
    """Print the question, the formula and the answer in three sentences."""
    told = story.words
    console.print()
    console.print(Styled(plain(_plain(told.title, language)), style="bold"))
    _paragraph(console, Styled(printable(mathml.to_text(told.formula.math), 400), style="italic"), by=5)
    for sentence in told.answer:
        _paragraph(console, Styled(plain(_plain(sentence, language))))


def badge(verdict: Verdict, language: Language) -> Styled:
    """A verdict with its sign: ✔ confirmed."""
    return Styled(
        f"{words.GLYPHS[verdict]} {words.VERDICTS[verdict].to(language)}", style=f"bold {words.STYLES[verdict]}"
    )


def _claim(timed: Timed, console: Console, language: Language, derive: bool) -> None:
    record = timed.record
    console.print()
    console.print(
        Styled.assemble((printable(record.title.to(language), 200), "bold"), (f"  {printable(record.id, 80)}", "dim"))
    )
    _paragraph(console, Styled(_plain(record.question, language), style="dim"))
    console.print()
    source = Text("  ({it})", "（{it}）").format(it=words.sources(record.sources)).to(language)
    _paragraph(console, Styled.assemble(_plain(record.statement, language), (printable(source, 200), "dim")))
    if derive:
        _quotations(record, console, language)
    _paragraph(console, _labelled(words.HYPOTHESIS, record.hypothesis, language, "dim"))
    if derive:
        _derivation(record, console, language)
    _pictures(timed, console, language, derive)
    console.print()
    _outcome(timed, console, language)
    _table(timed, console, language, derive)
    _errata(record, console, language)


def _quotations(record: ClaimRecord, console: Console, language: Language) -> None:
    """The documents' own words, in English with a translation below."""
    for quotation in record.quotations:
        place = words.place(printable(quotation.document, 40), printable(quotation.line, 40)).to(language)
        own = printable(quotation.words.zh, 1200)
        _paragraph(console, Styled.assemble(f"「{own}」", (f"  {place}", "dim")), by=4)
        if language == "en" and quotation.words.en != quotation.words.zh:
            _paragraph(console, Styled(_plain(quotation.words, language), style="dim"), by=6)


def _derivation(record: ClaimRecord, console: Console, language: Language) -> None:
    if not record.steps:
        return
    console.print()
    _paragraph(console, Styled(words.DERIVATION.to(language), style="dim"))
    for number, step in enumerate(record.steps, 1):
        _paragraph(console, Styled(f"{number}. {_plain(step.sentence, language)}"), hang=3)
        for line in mathml.to_lines(step.math) if step.math else ():
            _paragraph(console, Styled(printable(line, 400), style="italic"), by=5)


def _pictures(timed: Timed, console: Console, language: Language, derive: bool) -> None:
    """The main picture; for a closer look its caption and every curve as well."""
    pictures = drawings(timed)
    main, others = pictures[:1], pictures[1:]
    shown = [*main, *(it for it in others if isinstance(it, Figure))] if derive else main
    for picture in shown:
        console.print()
        for line in drawing.draw(picture, language, min(console.width, WIDEST) - 4):
            console.print(Padding(line, (0, 0, 0, 2), expand=False), no_wrap=True, crop=True)
        if derive:
            _paragraph(console, Styled(_plain(picture.caption, language), style="dim"))
    if derive and len(shown) < len(pictures):
        _paragraph(console, Styled(_MORE_PICTURES.format(n=len(pictures) - len(shown)).to(language), style="dim"))


def _outcome(timed: Timed, console: Console, language: Language) -> None:
    record = timed.record
    verdict = badge(record.verdict, language)
    if record.verdict != timed.expected:
        told = words.CHANGED.format(verdict=words.VERDICTS[timed.expected]).to(language)
        verdict.append(f"  ({told})", style="bold red")
    _paragraph(console, Styled.assemble(verdict, "  ", _plain(record.sentence, language)))
    if record.condition is not None:
        _paragraph(console, _labelled(words.CONDITION, record.condition, language, "yellow"))
    for sentence in record.recorded:
        _paragraph(console, Styled(_plain(sentence, language), style="dim"))


def _table(timed: Timed, console: Console, language: Language, derive: bool) -> None:
    measured = numbers(timed)
    few = MANY if derive else FEW
    if measured:
        console.print()
        console.print(Padding(_numbers(measured, few, language), (0, 0, 0, 2), expand=False))
    if len(measured) > few:
        _paragraph(console, Styled(_MORE.format(n=len(measured) - few).to(language), style="dim"))


def _errata(record: ClaimRecord, console: Console, language: Language) -> None:
    if record.errata:
        console.print()
    for erratum in record.errata:
        wrong, right = _plain(erratum.wrong, language), _plain(erratum.right, language)
        place = words.place(printable(erratum.document, 40), printable(erratum.line, 40)).to(language)
        label = words.REMARK if erratum.kind == "remark" else words.ERRATUM
        said = f"「{wrong}」" if language == "zh" else f"“{wrong}”"
        head = f"{label.to(language)}{'，' if language == 'zh' else ', '}{place}{'：' if language == 'zh' else ': '}"
        _paragraph(console, Styled.assemble((head, "dim"), (said, "dim"), f" → {right}"))


def _numbers(measured: tuple[Measured, ...], few: int, language: Language) -> Table:
    """Measured, predicted and the document's numbers: the few that matter most to the claim, in its order."""
    ordered = sorted(measured, key=lambda it: (it.document is None, it.holds is None, it.predicted is None))[:few]
    columns = words.columns(ordered)
    made = table([words.QUANTITY, *columns.values(), Text("", "")], language, left={0})
    made.columns[0].overflow = "fold"
    for it in [number for number in measured if number in ordered]:
        cells = [Styled(words.cell(it, field), style="bold" if field == "value" else "") for field in columns]
        made.add_row(Styled(_plain(it.name, language)), *cells, _held(it.holds))
    return made


def _held(holds: bool | None) -> Styled:
    if holds is None:
        return Styled("")
    return Styled("✔", style="green") if holds else Styled("✖", style="red")


def summary(book: Book, console: Console, language: Language) -> None:
    """Print all verdicts, the claims that have none, and the number of errata."""
    console.print()
    console.rule(Styled(f" {_SUMMARY.to(language)} ", style="bold"), align="left", style="dim")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for name in (words.CLAIM, words.VERDICT, words.SECONDS):
        table.add_column(name.to(language), header_style="dim", justify="right" if name is words.SECONDS else "left")
    for timed in book.claims():
        verdict = badge(timed.record.verdict, language)
        if timed.record.verdict != timed.expected:
            verdict.append(f" ← {words.VERDICTS[timed.expected].to(language)}", style="bold red")
        table.add_row(Styled(_plain(timed.record.title, language)), verdict, f"{timed.seconds:.1f}")
    for state, group, style in ((words.FAILED, book.failed, "bold red"), (words.NOT_RUN, book.skipped, "yellow")):
        for missing in group:
            table.add_row(Styled(printable(missing.id, 80)), Styled(f"? {state.to(language)}", style=style), NOTHING)
    console.print(table)
    counts = "  ".join(f"{words.GLYPHS[it]} {n} {words.VERDICTS[it].to(language)}" for it, n in book.verdicts().items())
    errata = words.ERRATA_COUNT.format(n=len(book.errata())).to(language)
    console.print(Styled(f"{counts}  ·  {errata}", style="bold"))


def _labelled(label: Text, text: Text, language: Language, style: str) -> Styled:
    colon = "：" if language == "zh" else ": "
    return Styled.assemble((f"{label.to(language)}{colon}", style), _plain(text, language))


def _plain(text: Text, language: Language) -> str:
    return printable(text.to(language), 1200)


def _paragraph(console: Console, paragraph: Styled, by: int = 2, hang: int = 0) -> None:
    """A paragraph `by` columns from the left; its second and later lines `hang` further."""
    for number, line in enumerate(lines(paragraph, min(console.width, WIDEST) - by, hang)):
        indented(console, line, by + hang if number else by)
