"""What `isotherm check` does once it has been understood: load, look, show, and choose an exit code."""

import json
import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from isotherm.checkup import check as check_model
from isotherm.checkup.batch import make_batch, read_text
from isotherm.checkup.load import Loading, load
from isotherm.errors import ArgumentError, InputError, IsothermError
from isotherm.health import CODES, Options, fraction
from isotherm.language import Text, current
from isotherm.record import SCHEMA, CheckRecord, from_plain, to_plain
from isotherm.report import changes, compare, files, html, markdown, terminal

SHARE = re.compile(r"(balanced|saturated|diffuse|sink|invalid|empty)\s*>\s*([0-9.eE+-]+)$")


@dataclass(frozen=True)
class Request:
    """The command line, as it was given."""

    model: str | None
    text: str | None
    tokens: int
    what_if: str
    context: int | None
    rows: int | None
    html: str | None
    markdown: str | None
    as_json: bool
    other: str | None
    fail_on: str | None
    one_implementation: bool
    from_config: bool
    trust_remote_code: bool
    device: str
    quiet: bool
    debug: bool


def run(request: Request) -> int:
    """The whole command; its exit code."""
    limits = parse_fail_on(request.fail_on)
    try:
        record = examine(request, request.model)
        other = None if request.other is None else examine(request, request.other)
    except IsothermError:
        if request.debug:
            traceback.print_exc()
        raise
    except Exception as error:
        if request.debug:
            raise
        failed = Text(
            "the check-up failed ({kind}: {why}); --debug shows where", "检查失败（{kind}：{why}）；--debug 可显示位置"
        )
        name = request.model or "all-MiniLM-L6-v2"
        raise InputError(
            name, failed.format(kind=type(error).__name__, why=" ".join(str(error).split())[:200])
        ) from error
    show(request, record, other)
    return int(fails(record if other is None else other, limits))


def examine(request: Request, spec: str | None) -> CheckRecord:
    """A record, from an earlier report or from a model."""
    if spec is not None and spec.endswith(".json") and not Path(spec).is_dir():
        return read_report(Path(spec))
    options = Options(
        what_if=tuple(filter(None, (rule.strip() for rule in request.what_if.split(",")))),
        compare=not request.one_implementation,
        context=request.context,
        rows=request.rows,
    )
    text = read_text(request.text)
    messages = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        console=messages,
        transient=True,
        disable=not messages.is_terminal,
    )
    with bar:
        task = bar.add_task(str(Text("loading", "加载模型")), total=1.0)
        loaded = load(spec, Loading(request.from_config, request.trust_remote_code, request.device))
        batch = loaded.batch if loaded.batch is not None else make_batch(loaded, text, request.tokens)

        def tell(what: Text, done: float) -> None:
            bar.update(task, description=str(what), completed=done)

        report = check_model(
            loaded.model, batch, options=options, name=loaded.name, origin=loaded.origin, progress=tell
        )
    return report.record


def read_report(path: Path) -> CheckRecord:
    """An earlier report, from its JSON."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(path, Text("cannot be read ({why})", "无法读取（{why}）").format(why=error.strerror)) from None
    except ValueError as error:
        raise InputError(path, Text("not JSON ({why})", "不是 JSON（{why}）").format(why=error)) from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InputError(
            path, Text("not a report of schema {schema}", "不是 {schema} 格式的报告").format(schema=SCHEMA)
        )
    return from_plain(CheckRecord, data, where=path.name)


def show(request: Request, record: CheckRecord, other: CheckRecord | None) -> None:
    """The page and the summary first, so that what is printed last is the report itself."""
    shown = record if other is None else other
    if request.html is not None:
        html.write_html(shown, Path(request.html), current())
    change = None if other is None else changes.compare(record, other)
    if request.markdown is not None:
        text = markdown.to_markdown(shown, current()) if change is None else compare.to_markdown(change, current())
        files.write_atomically(Path(request.markdown), text)
    if request.as_json:
        plain: Any = to_plain(shown if change is None else change)
        click.echo(json.dumps(plain, ensure_ascii=False, indent=1))
        return
    console = Console()
    if change is not None:
        compare.show(change, console, current())
    elif request.quiet:
        terminal.show_findings(shown, console, current())
    else:
        terminal.show(shown, console, current())
    for path in filter(None, (request.html, request.markdown)):
        click.echo(str(Text("wrote {path}", "已写出 {path}").format(path=path)), err=True)


@dataclass(frozen=True)
class Limits:
    """What makes the command fail: any error or warning, or these codes and shares alone."""

    codes: tuple[str, ...]
    shares: tuple[tuple[str, float], ...]
    anything: bool


def parse_fail_on(text: str | None) -> Limits:
    """`--fail-on` as typed; an unknown word is refused before any work is done."""
    if text is None:
        return Limits((), (), anything=True)
    codes, shares = [], []
    for word in filter(None, (part.strip() for part in text.split(","))):
        if match := SHARE.fullmatch(word):
            try:
                shares.append((match[1], float(match[2])))
                continue
            except ValueError:
                pass
        if word not in CODES:
            names = ", ".join(CODES)
            expected = Text(
                f"codes ({names}) or shares such as saturated>0.02", f"代码（{names}）或形如 saturated>0.02 的比例"
            )
            raise ArgumentError("--fail-on", expected, got=repr(word))
        codes.append(word)
    return Limits(tuple(codes), tuple(shares), anything=False)


def fails(record: CheckRecord, limits: Limits) -> bool:
    """Whether this record is past the limits."""
    if limits.anything:
        return any(finding.severity != "note" for finding in record.findings)
    found = {finding.code for finding in record.findings}
    return bool(found & set(limits.codes)) or any(fraction(record, state) > share for state, share in limits.shares)
