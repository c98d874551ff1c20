"""`isotherm check`: is this model's attention healthy, and is its scale the one it declares?"""

import json
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from isotherm.checkup import check as check_model
from isotherm.checkup.batch import make_batch, read_text
from isotherm.checkup.examine import Progress as Told
from isotherm.checkup.findings import CODES, fraction
from isotherm.checkup.load import Loading, load
from isotherm.cli.command import command, option
from isotherm.errors import ArgumentError, InputError, IsothermError
from isotherm.language import Text, current
from isotherm.record import SCHEMA, CheckRecord, to_plain
from isotherm.record.files import checked, parse_json, read_bytes
from isotherm.report import changes, compare, files, html, markdown, terminal

ABOUT = Text(
    "Look into a model's attention: its temperature by layer and head, and whether its scale is the declared one.\n\n"
    "MODEL is a local transformers folder, a hub name, package.module:function returning a model or (model, batch), or a"
    " JSON report of an earlier check. Without MODEL, all-MiniLM-L6-v2 is checked.\n\n"
    "Exit code 0: healthy; 1: found something; 2: wrong use.",
    "检查模型的注意力：每层每头的温度，以及实际缩放是否与声明一致。\n\n"
    "MODEL 可以是本地 transformers 文件夹、模型库名称、返回模型或（模型, 批次）的 package.module:function，或此前检查的"
    " JSON 报告；不给则为 all-MiniLM-L6-v2。\n\n"
    "退出码 0：健康；1：有发现；2：用法有误。",
)
OPTIONS: tuple[tuple[tuple[str, ...], Text, dict[str, Any]], ...] = (
    (
        ("--text",),
        Text("Text for the model to read; - for standard input.", "要读入的文本；- 为标准输入。"),
        {"metavar": "FILE"},
    ),
    (
        ("--tokens",),
        Text("Read at most this many tokens.", "最多词元数。"),
        {"type": click.IntRange(2), "default": 256, "show_default": True, "metavar": "N"},
    ),
    (
        ("--what-if",),
        Text("Rules to replay, comma-separated; '' for none.", "要重放的规则，逗号分隔；'' 为不重放。"),
        {"default": "none,1/d,x0.5,x2", "show_default": True, "metavar": "RULES"},
    ),
    (
        ("--context",),
        Text("Predict what a context of N keys would do to the entropy.", "上下文为 N 个键时熵会怎样。"),
        {"type": click.IntRange(2), "metavar": "N"},
    ),
    (
        ("--rows",),
        Text("Measure N rows of each head instead of all.", "每头只测 N 行，而非全部。"),
        {"type": click.IntRange(1), "metavar": "N"},
    ),
    (("--html",), Text("Write the report as one page.", "将报告写成一个网页。"), {"metavar": "FILE"}),
    (("--markdown",), Text("Write a summary for a pull request.", "写出合并请求用的摘要。"), {"metavar": "FILE"}),
    (("--json", "as_json"), Text("Print one JSON document.", "输出一个 JSON 文档。"), {"is_flag": True}),
    (
        ("--compare", "other"),
        Text("Show what changed from MODEL to B.", "显示从 MODEL 到 B 的变化。"),
        {"metavar": "B"},
    ),
    (
        ("--fail-on",),
        Text(
            "Exit 1 only for these: finding codes, or shares of heads such as 'saturated>0.02'; comma-separated.",
            "仅因这些以 1 退出：发现代码，或注意力头的比例，如 'saturated>0.02'；逗号分隔。",
        ),
        {"metavar": "WHAT"},
    ),
    (
        ("--one-implementation",),
        Text("Do not run the other implementations for comparison.", "不运行其他实现作比较。"),
        {"is_flag": True},
    ),
    (("--from-config",), Text("Build the model untrained.", "只按配置新建未训练的模型。"), {"is_flag": True}),
    (("--trust-remote-code",), Text("Let the model's own code run.", "允许运行模型自带的代码。"), {"is_flag": True}),
    (("--device",), Text("Device to run on.", "运行设备。"), {"default": "cpu", "show_default": True}),
    (("--quiet", "-q"), Text("Print findings only.", "只输出发现。"), {"is_flag": True}),
    (("--debug",), Text("Show tracebacks.", "显示回溯信息。"), {"is_flag": True}),
)


SHARE = re.compile(r"(balanced|saturated|diffuse|sink|invalid|empty)\s*>\s*([0-9.eE+-]+)$")


@dataclass(frozen=True)
class Request:
    """The command line as typed."""

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
    """Run the command and return its exit code."""
    limits = parse_fail_on(request.fail_on)
    try:
        record = _record(request, request.model)
        other = None if request.other is None else _record(request, request.other)
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


def _record(request: Request, spec: str | None) -> CheckRecord:
    """A record, read from an earlier report or made from a model."""
    if spec is not None and spec.endswith(".json") and not Path(spec).is_dir():
        return read_report(Path(spec))
    text = read_text(request.text)
    with _progress() as told:
        loaded = load(spec, Loading(request.from_config, request.trust_remote_code, request.device))
        batch = loaded.batch if loaded.batch is not None else make_batch(loaded, text, request.tokens)
        report = check_model(
            loaded.model,
            batch,
            what_if=[rule.strip() for rule in request.what_if.split(",") if rule.strip()],
            compare=not request.one_implementation,
            context=request.context,
            rows=request.rows,
            name=loaded.name,
            origin=loaded.origin,
            progress=told,
        )
    return report.record


@contextmanager
def _progress() -> Iterator[Told]:
    """A progress bar on standard error, if that is a terminal."""
    messages = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn()
    with Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal) as bar:
        task = bar.add_task(str(Text("loading", "加载模型")), total=1.0)
        yield lambda what, done: bar.update(task, description=str(what), completed=done)


def read_report(path: Path) -> CheckRecord:
    """Read an earlier report from its JSON."""
    data = parse_json(path, read_bytes(path))
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InputError(
            path, Text("not a report of schema {schema}", "不是 {schema} 格式的报告").format(schema=SCHEMA)
        )
    return checked(CheckRecord, path, data)


def show(request: Request, record: CheckRecord, other: CheckRecord | None) -> None:
    """Write the files, then print the report."""
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
    """What makes the command fail: any error or warning, or only these codes and fractions of heads."""

    codes: tuple[str, ...]
    shares: tuple[tuple[str, float], ...]
    anything: bool


def parse_fail_on(text: str | None) -> Limits:
    """Read `--fail-on`. An unknown word is refused before any work is done."""
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
    """Whether this record exceeds the limits."""
    if limits.anything:
        return any(finding.severity != "note" for finding in record.findings)
    found = {finding.code for finding in record.findings}
    return bool(found & set(limits.codes)) or any(fraction(record, state) > share for state, share in limits.shares)


def _check(model: str | None, **given: Any) -> int:
    return run(Request(model, **given))


for _names, _text, _attributes in reversed(OPTIONS):
    _check = option(*_names, text=_text, **_attributes)(_check)
check = command("check", ABOUT)(click.argument("model", required=False)(_check))
