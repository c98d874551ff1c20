"""`isotherm explain`: every claim about √d put to the test, with evidence for and against."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isotherm.cli.command import as_json, command, debug, device, option
from isotherm.cli.output import WROTE, print_json, progress_bar, say, say_trace
from isotherm.errors import ArgumentError, InputError
from isotherm.lab import claims as registry
from isotherm.lab import recorded
from isotherm.lab.runner import ClaimOrder, ClaimOutcome, Listener, Size
from isotherm.lab.runner import run as run_orders
from isotherm.language import Text, current
from isotherm.record import to_plain
from isotherm.report.explain import folder, mathml, terminal, words
from isotherm.report.explain.book import SCHEMA, Book, Chapter, Missing

if TYPE_CHECKING:
    from rich.progress import TaskID

ABOUT = Text(
    "Why does attention divide by √d? Put every claim of the documents to an experiment that could refute it.\n\n"
    "CLAIM names one or more claims; without it, all are tested. Finished claims are kept: after an interruption, the same"
    " command continues.\n\nExit code 0: every verdict is the one on record; 1: a verdict has changed; 2: wrong use, or a"
    " claim failed.",
    "注意力为什么要除以 √d？文档的每条论断都经过一个可能推翻它的实验。\n\n"
    "CLAIM 为一条或多条论断的名称；不给则为全部。已完成的论断会保留：中断后再次运行同一命令会接着做。\n\n"
    "退出码 0：每条结论都与记录一致；1：有结论变了；2：用法有误，或有论断失败。",
)
EXTRAS = {"transformers": "hf", "safetensors": "hf", "tokenizers": "train", "sacrebleu": "train", "matplotlib": "plots"}
NEEDS = Text("needs {names}: pip install 'isotherm[{extra}]'", "需要 {names}：pip install 'isotherm[{extra}]'")
CHANGED = Text("verdict changed: {id}, from {before} to {after}", "结论有变：{id}，由{before}变为{after}")
FAILED = Text("{id} failed: {why}", "{id} 失败：{why}")
AS_LATEX = Text(
    "formulas stay LaTeX: latex2mathml was not installed (pip install 'isotherm[explain]', then once with --fresh)",
    "公式以 LaTeX 显示：运行时未安装 latex2mathml（pip install 'isotherm[explain]'，再以 --fresh 运行一次）",
)
TRACE = Text("--debug shows where", "--debug 可显示位置")
GET_PAGE = Text(
    "isotherm explain --out DIR writes all this as one illustrated page, DIR/index.html, with every figure and record.",
    "isotherm explain --out DIR 会把以上内容写成一个图文网页 DIR/index.html，并附全部图和记录。",
)
ON_RECORD = Text("Verdicts on record: {signs}", "记录在案的结论：{signs}")
STOPPED = Text(
    "interrupted; {n} of {total} claims are finished and kept, and the same command continues from there",
    "已中断；{total} 条论断中 {n} 条已完成并保留，再次运行同一命令会接着做",
)


@dataclass(frozen=True)
class ExplainOptions:
    """The command line as typed."""

    claims: tuple[str, ...]
    listing: bool
    records: tuple[str, ...]
    out: str | None
    as_json: bool
    size: Size
    device: str
    jobs: int | None
    fresh: bool
    debug: bool


def run(options: ExplainOptions) -> int:
    """Run the command and return its exit code."""
    check_names(options.claims)
    names = registry.chosen(options.claims)
    if options.listing:
        show_list(names, options.as_json)
        return 0
    if options.device != "cpu":  # which needs no look, and no import of torch
        from isotherm.checkup.loading.device import check_device

        check_device(options.device)
    check_records(options.records, names)
    path = None if options.out is None else Path(options.out)
    if path is not None:
        folder.prepare(path)
    outcomes = measure(options, names)
    book = bind(options, outcomes)
    note = None if path is None else write(book, path)
    if options.as_json:
        changed = [timed.record.id for timed in book.changed()]
        print_json({**to_plain(book), "changed": changed})
    else:
        from rich.console import Console

        terminal.show(book, Console(), current(), derive=bool(options.claims))
    tell(options, book, outcomes, note)
    return exit_code(options, book)


def exit_code(options: ExplainOptions, book: Book) -> int:
    """0: as on record; 1: a verdict has changed; 2: a claim failed, or one that was asked for could not run."""
    if book.failed or (options.claims and book.skipped):
        return 2
    return int(bool(book.changed()))


def check_names(claims: tuple[str, ...]) -> None:
    """Tell whoever gives a file in place of a claim how to give it."""
    for name in claims:
        if name.endswith(".json") or "/" in name:
            raise InputError(name, Text("not a claim; give a record with --record", "不是论断；记录请用 --record 给出"))


def check_records(records: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Refuse records that cannot be shown before any claim is started."""
    if records and not set(names) & set(recorded.SHOWN_IN):
        expected = Text("a claim that shows recorded runs ({names})", "有记录的论断（{names}）")
        raise ArgumentError("--record", expected.format(names=", ".join(recorded.SHOWN_IN)), got=", ".join(names))
    for record in records:
        recorded.given(Path(record))


def measure(options: ExplainOptions, names: tuple[str, ...]) -> tuple[ClaimOutcome, ...]:
    """Run the claims. A terminal shows one progress bar for each claim that is running."""
    records = tuple(map(Path, options.records))
    orders = [
        ClaimOrder(
            name,
            registry.module_of(name),
            options.size,
            options.device,
            records if name in recorded.SHOWN_IN else (),
        )
        for name in names
    ]
    listener = Lines(len(orders))
    try:
        with listener.bars:
            return run_orders(orders, jobs=options.jobs, fresh=options.fresh, listener=listener)
    except KeyboardInterrupt:
        say(f"isotherm: {STOPPED.format(n=listener.done, total=len(orders))}")
        raise


class Lines(Listener):
    """A bar for the whole run, and one for each claim that is running."""

    def __init__(self, total: int) -> None:
        from rich.progress import TimeElapsedColumn

        self.bars = progress_bar(TimeElapsedColumn())
        self.whole = self.bars.add_task(f"[bold]{Text('claims', '论断')}", total=total)
        self.running: dict[str, TaskID] = {}
        self.done = 0

    def started(self, claim: str) -> None:
        self.running[claim] = self.bars.add_task(claim, total=1.0)

    def moved(self, claim: str, part: float) -> None:
        self.bars.update(self.running[claim], completed=part)

    def finished(self, outcome: ClaimOutcome) -> None:
        if outcome.claim in self.running:
            self.bars.remove_task(self.running.pop(outcome.claim))
        self.done += outcome.timed is not None
        self.bars.advance(self.whole)


def bind(options: ExplainOptions, outcomes: tuple[ClaimOutcome, ...]) -> Book:
    """Sort the outcomes into chapters; claims that failed or could not run have lists of their own."""
    from isotherm.lab.story import story

    found = {outcome.claim: outcome.timed for outcome in outcomes if outcome.timed is not None}
    chapters = tuple(
        Chapter(it.id, it.title, it.lead, tuple(found[claim] for claim in it.claims if claim in found))
        for it in registry.TOPICS
    )
    failed = tuple(Missing(it.claim, it.failure) for it in outcomes if it.failure is not None)
    skipped = tuple(Missing(it.claim, _needs(it.needs)) for it in outcomes if it.needs)
    return Book(SCHEMA, options.size, options.device, chapters, failed, skipped, story())


def write(book: Book, path: Path) -> Text | None:
    """Write the folder. Returns a note if figures could not be drawn."""
    with progress_bar() as bar:
        task = bar.add_task(str(Text("drawing", "绘图")), total=1.0)
        return folder.write(book, path, current(), lambda part: bar.update(task, completed=part))


def _needs(names: tuple[str, ...]) -> Text:
    extras = ",".join(sorted({EXTRAS.get(name, "demo") for name in names}))
    return NEEDS.format(names=", ".join(names), extra=extras)


def tell(options: ExplainOptions, book: Book, outcomes: tuple[ClaimOutcome, ...], note: Text | None) -> None:
    """Say what was skipped, failed, changed and written."""
    tell_problems(options, book, outcomes, note)
    if options.out is not None:
        say(WROTE.format(path=Path(options.out) / "index.html"))
    elif not options.as_json:
        say(GET_PAGE)


def tell_problems(
    options: ExplainOptions, book: Book, outcomes: tuple[ClaimOutcome, ...], note: Text | None = None
) -> None:
    """Say what was skipped, failed and changed."""
    lines = [Text("{id}: {why}", "{id}：{why}").format(id=it.id, why=it.why) for it in book.skipped]
    for it in book.failed:
        lines.append(FAILED.format(id=it.id, why=it.why))
    if book.failed and not options.debug:
        lines.append(TRACE)
    for timed in book.changed():
        before, after = words.VERDICTS[timed.expected], words.VERDICTS[timed.record.verdict]
        lines.append(CHANGED.format(id=timed.record.id, before=before, after=after))
    lines += [note] if note else []
    formulas = {step.math for timed in book.claims() for step in timed.record.steps if step.math}
    lines += [AS_LATEX] if any(mathml.parse(formula) is None for formula in formulas) else []
    for line in lines:
        say(f"isotherm: {line}")
    if options.debug:
        for outcome in outcomes:
            say_trace(outcome.trace)


def show_list(names: tuple[str, ...], as_json: bool) -> None:
    """Print the claims by chapter, with the verdict on record."""
    from rich.console import Console
    from rich.text import Text as Styled

    absent = registry.missing()
    lines = {name: registry.listed(name) for name in names if name not in absent}
    if as_json:
        print_json([to_plain(line) for line in lines.values()])
        return
    console = Console()
    for chapter in registry.TOPICS:
        shown = [lines[claim] for claim in chapter.claims if claim in lines]
        if shown:
            console.print(Styled(str(chapter.title), style="bold"))
        for line in shown:
            sign = Styled(words.GLYPHS[line.expected], style=words.STYLES[line.expected])
            console.print(Styled.assemble("  ", sign, f" {line.id:<26} ", (str(line.title), "dim")), no_wrap=True)
    signs = "  ".join(f"{glyph} {words.VERDICTS[verdict]}" for verdict, glyph in words.GLYPHS.items())
    console.print(Styled(str(ON_RECORD.format(signs=signs)), style="dim"))


@command("explain", ABOUT)
@click.argument("claims", nargs=-1, metavar="[CLAIM]...")
@option("--list", Text("List the claims.", "列出全部论断。"), "listing", is_flag=True)
@option(
    "--record",
    Text(
        "A sweep.json of your own to show in the claims that have recorded runs; may be given several times.",
        "你自己的 sweep.json，显示在有记录的论断中；可多次给出。",
    ),
    "records",
    multiple=True,
    metavar="FILE",
)
@option("--out", Text("Write the illustrated page, figures and records.", "写出图文网页、图和记录。"), metavar="DIR")
@as_json
@option("--size", Text("Size of the experiments.", "实验规模。"), type=click.Choice(["quick", "full"]), default="quick")
@option("--scale", Text("As --size.", "同 --size。"), "former", type=click.Choice(["quick", "full"]), hidden=True)
@device
@option(
    "--jobs",
    Text("Claims to run at a time (default: one per core).", "同时运行的论断数（默认每核一条）。"),
    type=click.IntRange(1),
    metavar="N",
)
@option("--fresh", Text("Measure again what is already kept.", "重新测量已保留的论断。"), is_flag=True)
@debug
def explain(claims: tuple[str, ...], size: Size, former: Size | None, **given: Any) -> int:
    """Test the claims. `former` is the value of --scale, which was the name of --size."""
    return run(ExplainOptions(claims, size=former or size, **given))
