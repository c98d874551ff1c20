"""What `isotherm explain` does once it has been understood: run the claims, show them, write them, choose an exit code."""

import json
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text as Styled

from isotherm.errors import ArgumentError, InputError
from isotherm.lab import claims as registry
from isotherm.lab import recorded
from isotherm.lab.runner import ClaimOrder, ClaimOutcome, Listener, Size
from isotherm.lab.runner import run as run_orders
from isotherm.language import Text, current
from isotherm.record import to_plain
from isotherm.report.explain import folder, terminal, words
from isotherm.report.explain.book import SCHEMA, Book, Chapter, Missing

EXTRAS = {"transformers": "hf", "safetensors": "hf", "tokenizers": "train", "sacrebleu": "train", "matplotlib": "plots"}
NEEDS = Text("needs {names}: pip install 'isotherm[{extra}]'", "需要 {names}：pip install 'isotherm[{extra}]'")
CHANGED = Text("verdict changed: {id}, from {before} to {after}", "结论有变：{id}，由{before}变为{after}")
FAILED = Text("{id} failed: {why}", "{id} 失败：{why}")
TRACE = Text("--debug shows where", "--debug 可显示位置")
WROTE = Text("wrote {path}", "已写出 {path}")
GET_PAGE = Text(
    "isotherm explain --out DIR writes all this as one illustrated page, DIR/index.html, with every figure and record.",
    "isotherm explain --out DIR 会把以上内容写成一个图文网页 DIR/index.html，并附全部图和记录。",
)
ON_RECORD = Text("Verdicts on record: {signs}", "记录在案的结论：{signs}")
STOPPED = Text(
    "interrupted; {n} of {total} claims are finished and kept, and the same command goes on from there",
    "已中断；{total} 条论断中 {n} 条已完成并保留，再次运行同一命令会接着做",
)


@dataclass(frozen=True)
class Request:
    """The command line, as it was given."""

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


def run(request: Request) -> int:
    """The whole command; its exit code."""
    check_names(request.claims)
    names = registry.chosen(request.claims)
    if request.listing:
        show_list(names, request.as_json)
        return 0
    check_device(request.device)
    check_records(request.records, names)
    path = None if request.out is None else Path(request.out)
    if path is not None:
        folder.prepare(path)
    outcomes = measure(request, names)
    book = bind(request, outcomes)
    note = None if path is None else write(book, path)
    if request.as_json:
        changed = [timed.record.id for timed in book.changed()]
        click.echo(json.dumps({**to_plain(book), "changed": changed}, ensure_ascii=False, indent=1))
    else:
        terminal.show(book, Console(), current(), derive=bool(request.claims))
    tell(request, book, outcomes, note)
    if book.failed or (request.claims and book.skipped):
        return 2
    return int(bool(book.changed()))


def check_names(claims: tuple[str, ...]) -> None:
    """Somebody who gives a path where a claim is named has a record to show."""
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


def check_device(name: str) -> None:
    """Refuse a device that is not there before any claim is started on it."""
    if name == "cpu":
        return
    import torch

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError):
        expected = Text("a device of this machine, such as cpu or cuda:0", "本机的设备，如 cpu 或 cuda:0")
        raise ArgumentError("--device", expected, got=repr(name)) from None


def measure(request: Request, names: tuple[str, ...]) -> tuple[ClaimOutcome, ...]:
    """Every claim's outcome, with one line of progress per running claim on a terminal."""
    records = tuple(map(Path, request.records))
    orders = [
        ClaimOrder(
            name,
            registry.module_of(name),
            request.size,
            request.device,
            records if name in recorded.SHOWN_IN else (),
        )
        for name in names
    ]
    listener = Lines(len(orders))
    try:
        with listener.bars:
            return run_orders(orders, jobs=request.jobs, fresh=request.fresh, listener=listener)
    except KeyboardInterrupt:
        click.echo(f"isotherm: {STOPPED.format(n=listener.done, total=len(orders))}", err=True)
        raise


class Lines(Listener):
    """A bar for the whole run, and one for each claim that is running."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.whole = self.bars.add_task(f"[bold]{Text('claims', '论断')}", total=total)
        self.running: dict[str, TaskID] = {}
        self.done = 0

    def started(self, claim: str) -> None:
        """A line for it."""
        self.running[claim] = self.bars.add_task(claim, total=1.0)

    def moved(self, claim: str, part: float) -> None:
        """Its bar grows."""
        self.bars.update(self.running[claim], completed=part)

    def finished(self, outcome: ClaimOutcome) -> None:
        """Its line goes, the whole grows."""
        if outcome.claim in self.running:
            self.bars.remove_task(self.running.pop(outcome.claim))
        self.done += outcome.timed is not None
        self.bars.advance(self.whole)


def bind(request: Request, outcomes: tuple[ClaimOutcome, ...]) -> Book:
    """Outcomes as chapters, with those that have no record beside them."""
    found = {outcome.claim: outcome.timed for outcome in outcomes if outcome.timed is not None}
    chapters = tuple(
        Chapter(it.id, it.title, it.lead, tuple(found[claim] for claim in it.claims if claim in found))
        for it in registry.TOPICS
    )
    failed = tuple(Missing(it.claim, it.failure) for it in outcomes if it.failure is not None)
    skipped = tuple(Missing(it.claim, _needs(it.needs)) for it in outcomes if it.needs)
    return Book(SCHEMA, request.size, request.device, chapters, failed, skipped)


def write(book: Book, path: Path) -> Text | None:
    """The folder, with a bar while figures are drawn; what could not be drawn is the answer."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(str(Text("drawing", "绘图")), total=1.0)
        return folder.write(book, path, current(), lambda part: bar.update(task, completed=part))


def _needs(names: tuple[str, ...]) -> Text:
    extras = ",".join(sorted({EXTRAS.get(name, "demo") for name in names}))
    return NEEDS.format(names=", ".join(names), extra=extras)


def tell(request: Request, book: Book, outcomes: tuple[ClaimOutcome, ...], note: Text | None) -> None:
    """What a person should know beside the result: on standard error, a line each."""
    lines = [Text("{id}: {why}", "{id}：{why}").format(id=it.id, why=it.why) for it in book.skipped]
    for it in book.failed:
        lines.append(FAILED.format(id=it.id, why=it.why))
    if book.failed and not request.debug:
        lines.append(TRACE)
    for timed in book.changed():
        before, after = words.VERDICTS[timed.expected], words.VERDICTS[timed.record.verdict]
        lines.append(CHANGED.format(id=timed.record.id, before=before, after=after))
    for line in [*lines, *([note] if note else [])]:
        click.echo(f"isotherm: {line}", err=True)
    if request.debug:
        for outcome in outcomes:
            if outcome.trace:
                click.echo(outcome.trace, err=True)
    if request.out is not None:
        click.echo(str(WROTE.format(path=Path(request.out) / "index.html")), err=True)
    elif not request.as_json:
        click.echo(str(GET_PAGE), err=True)


def show_list(names: tuple[str, ...], as_json: bool) -> None:
    """The claims by chapter, with the verdict on record."""
    absent = registry.missing()
    lines = {name: registry.listed(name) for name in names if name not in absent}
    if as_json:
        click.echo(json.dumps([to_plain(line) for line in lines.values()], ensure_ascii=False, indent=1))
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
