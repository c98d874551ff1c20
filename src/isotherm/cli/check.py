"""`isotherm check`: is this model's attention healthy, and is its scale the one it declares?"""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from isotherm.cli.command import any_device, as_json, command, debug, dtype, option, trust_remote_code
from isotherm.cli.output import WROTE, check_outputs, print_json, progress_bar, say, say_trace
from isotherm.errors import ArgumentError, InputError, IsothermError, named
from isotherm.language import Text, current
from isotherm.printable import printable
from isotherm.record import SCHEMA, CheckRecord, to_plain
from isotherm.record.files import checked, parse_json, read_bytes

if TYPE_CHECKING:
    from isotherm.checkup.load import Loaded, Loading
    from isotherm.checkup.loading.loaded import Precision, Progress
    from isotherm.checkup.measure import Batch

ABOUT = Text(
    "Look into a model's attention: its temperature by layer and head, and whether its scale is the declared one.\n\n"
    "MODEL is a folder (transformers, a PEFT adapter, sentence-transformers, a part of a diffusers pipeline), a .safetensors"
    " file, a hub name with or without @revision, package.module:function returning a model or (model, batch), or a JSON"
    " report of an earlier check. Without MODEL, all-MiniLM-L6-v2 is checked.\n\n"
    "Exit code 0: healthy; 1: found something; 2: wrong use.",
    "检查模型的注意力：每层每头的温度，以及实际缩放是否与声明一致。\n\n"
    "MODEL 可以是文件夹（transformers、PEFT 适配器、sentence-transformers、diffusers 流水线的部件）、.safetensors 文件、"
    "模型库名称（可带 @版本）、返回模型或（模型, 批次）的 package.module:function，或此前检查的 JSON 报告；不给则为"
    " all-MiniLM-L6-v2。\n\n"
    "退出码 0：健康；1：有发现；2：用法有误。",
)
DOCUMENT = 64
"""Tokens of a document that the loss is measured on: so short that the built-in passage has several."""
SHARE = re.compile(r"(balanced|saturated|diffuse|sink|invalid|empty)\s*>\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)$")


@dataclass(frozen=True)
class CheckOptions:
    """The command line as typed."""

    model: str | None
    text: str | None
    tokens: int
    declared: tuple[str, ...]
    what_if: str
    context: int | None
    rows: int | None
    html: str | None
    markdown: str | None
    as_json: bool
    other: str | None
    fail_on: str | None
    one_implementation: bool
    loss: bool
    from_config: bool
    trust_remote_code: bool
    device: str
    dtype: str
    device_map: str | None
    quiet: bool
    debug: bool


def run(options: CheckOptions) -> int:
    """Run the command and return its exit code."""
    limits = parse_fail_on(options.fail_on)
    read = [options.model, options.other, None if options.text == "-" else options.text]
    check_outputs(read, {"--html": options.html, "--markdown": options.markdown})
    try:
        record = _record(options, options.model)
        other = None if options.other is None else _record(options, options.other)
    except IsothermError:
        if options.debug:
            say_trace(traceback.format_exc())
        raise
    except Exception as error:
        if options.debug:
            raise
        failed = Text(
            "the check-up failed ({kind}: {why}); --debug shows where", "检查失败（{kind}：{why}）；--debug 可显示位置"
        )
        name = options.model or "all-MiniLM-L6-v2"
        raise InputError(
            name, failed.format(kind=type(error).__name__, why=" ".join(str(error).split())[:200])
        ) from error
    show(options, record, other)
    return int(fails(record if other is None else other, limits))


def _record(options: CheckOptions, spec: str | None) -> CheckRecord:
    """A record, read from an earlier report or made from a model."""
    if spec is not None and spec.endswith(".json") and not Path(spec).is_dir():
        return read_report(Path(spec))
    with _progress() as told:
        told(Text("starting", "启动"), 0.0)  # importing torch takes seconds
        return _examined(options, spec, told)


def _examined(options: CheckOptions, spec: str | None, told: "Progress") -> CheckRecord:
    from isotherm.checkup.batch import make_batch, read_text
    from isotherm.checkup.declarations import from_words, read_declared
    from isotherm.checkup.examine import examine, without_gradients
    from isotherm.checkup.given import check_arguments, prepare
    from isotherm.checkup.load import load
    from isotherm.checkup.subject import ModelSource
    from isotherm.checkup.what_if import check_rules

    rules = [rule.strip() for rule in options.what_if.split(",") if rule.strip()]
    with named(what_if="--what-if"):
        check_rules(rules)  # a misspelt rule is refused before the model is loaded
    with named(declared="--declared"):
        declared = from_words(options.declared)
        read_declared(declared)
    text = read_text(options.text, options.tokens)
    with named(declared="--declared"):
        loaded = load(spec, _loading(options), told)
        if loaded.batch is None:
            batch: Batch = make_batch(loaded, text, options.tokens)
            check_arguments(loaded.model, batch)
        else:
            with named(batch=loaded.origin):
                batch = prepare(loaded, loaded.batch)
        record, _ = without_gradients(
            lambda: examine(
                loaded.model,
                batch,
                ModelSource(loaded.name, loaded.origin, loaded.weights),
                declared=declared,
                what_if=rules,
                compare=not options.one_implementation,
                context=options.context,
                rows=options.rows,
                detail=True,
                progress=told,
            )
        )
        return _with_gradient(record, loaded, text, options.tokens, told) if options.loss else record


def _with_gradient(record: CheckRecord, loaded: "Loaded", text: str, tokens: int, told: "Progress") -> CheckRecord:
    """The record with the temperature gradient, on the text cut into documents of at most `DOCUMENT` tokens."""
    from isotherm.tuning.documents import LEAST, Material, reading_of
    from isotherm.tuning.tune import gradient_of

    material = Material("--loss", text, reading_of(loaded, None))
    length = min(DOCUMENT, tokens // LEAST)
    return replace(record, temperature_gradient=gradient_of(loaded, material, length, told))


def _loading(options: CheckOptions) -> "Loading":
    from isotherm.checkup.load import Loading

    dtype = cast("Precision", options.dtype)
    return Loading(options.from_config, options.trust_remote_code, options.device, dtype, options.device_map)


@contextmanager
def _progress() -> Iterator["Progress"]:
    """A bar on a terminal. A name on it comes from a model, and may look like rich's markup."""
    from rich.markup import escape
    from rich.progress import TimeElapsedColumn

    with progress_bar(TimeElapsedColumn()) as bar:
        task = bar.add_task(str(Text("loading", "加载模型")), total=1.0)
        yield lambda what, done: bar.update(task, description=escape(printable(str(what), 60)), completed=done)


def read_report(path: Path) -> CheckRecord:
    """Read an earlier report from its JSON."""
    data = parse_json(path, read_bytes(path))
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InputError(
            path, Text("not a report of schema {schema}", "不是 {schema} 格式的报告").format(schema=SCHEMA)
        )
    return checked(CheckRecord, path, data)


def show(options: CheckOptions, record: CheckRecord, other: CheckRecord | None) -> None:
    """Write the files, then print the report."""
    from rich.console import Console

    from isotherm.report import changes, compare, files, html, markdown, terminal

    shown = record if other is None else other
    if options.html is not None:
        html.write_html(shown, Path(options.html), current())
    change = None if other is None else changes.compare(record, other)
    if options.markdown is not None:
        text = markdown.to_markdown(shown, current()) if change is None else compare.to_markdown(change, current())
        files.write_atomically(Path(options.markdown), text)
    if options.as_json:
        print_json(to_plain(shown if change is None else change))
        return
    console = Console()
    if change is not None:
        compare.show(change, console, current())
    elif options.quiet:
        terminal.show_findings(shown, console, current())
    else:
        terminal.show(shown, console, current())
    for path in filter(None, (options.html, options.markdown)):
        say(WROTE.format(path=path))


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
    from isotherm.checkup.findings import CODES

    codes, shares = [], []
    words = [part.strip() for part in text.split(",") if part.strip()]
    for word in words or [text]:
        if (match := SHARE.fullmatch(word)) and float(match[2]) < 1:  # a share of 1 is never exceeded
            shares.append((match[1], float(match[2])))
        elif word in CODES:
            codes.append(word)
        else:
            names = ", ".join(CODES)
            expected = Text(
                f"codes ({names}) or shares such as saturated>0.02", f"代码（{names}）或形如 saturated>0.02 的比例"
            )
            raise ArgumentError("--fail-on", expected, got=repr(word))
    return Limits(tuple(codes), tuple(shares), anything=False)


def fails(record: CheckRecord, limits: Limits) -> bool:
    """Whether this record exceeds the limits."""
    if limits.anything:
        return any(finding.severity != "note" for finding in record.findings)
    from isotherm.checkup.findings import fraction

    found = {finding.code for finding in record.findings}
    return bool(found & set(limits.codes)) or any(fraction(record, state) > share for state, share in limits.shares)


@command("check", ABOUT)
@click.argument("model", required=False)
@option(
    "--text", Text("Text for the model to read; - for standard input.", "要读入的文本；- 为标准输入。"), metavar="FILE"
)
@option(
    "--tokens", Text("Read at most this many tokens.", "最多词元数。"), type=click.IntRange(2), default=256, metavar="N"
)
@option(
    "--declared",
    Text(
        "The scale that is meant, as a rule; departures are errors. 'PATTERN=RULE' for layers by name or index; repeatable.",
        "本意的缩放（规则），与之不符即为错误。'PATTERN=RULE' 按名称或序号指定层；可重复。",
    ),
    multiple=True,
    metavar="RULE",
)
@option(
    "--what-if",
    Text("Rules to replay, comma-separated; '' for none.", "要重放的规则，逗号分隔；'' 为不重放。"),
    default="none,1/d,x0.5,x2",
    metavar="RULES",
)
@option(
    "--context",
    Text("Predict what a context of N keys would do to the entropy.", "上下文为 N 个键时熵会怎样。"),
    type=click.IntRange(2),
    metavar="N",
)
@option(
    "--rows",
    Text("Measure N rows of each head instead of all.", "每头只测 N 行，而非全部。"),
    type=click.IntRange(1),
    metavar="N",
)
@option("--html", Text("Write the report as one page.", "将报告写成一个网页。"), metavar="FILE")
@option("--markdown", Text("Write a summary for a pull request.", "写出合并请求用的摘要。"), metavar="FILE")
@as_json
@option("--compare", Text("Show what changed from MODEL to B.", "显示从 MODEL 到 B 的变化。"), "other", metavar="B")
@option(
    "--fail-on",
    Text(
        "Exit 1 only for these: finding codes, or shares of heads such as 'saturated>0.02'; comma-separated.",
        "仅因这些以 1 退出：发现代码，或注意力头的比例，如 'saturated>0.02'；逗号分隔。",
    ),
    metavar="WHAT",
)
@option(
    "--one-implementation",
    Text("Do not run the other implementations for comparison.", "不运行其他实现作比较。"),
    is_flag=True,
)
@option(
    "--loss",
    Text(
        "Measure the temperature gradient too: by how much the loss on the text changes with each head's scale.",
        "同时测量温度梯度：文本上的损失随每个头的缩放变化多少。",
    ),
    is_flag=True,
)
@option("--from-config", Text("Build the model untrained.", "只按配置新建未训练的模型。"), is_flag=True)
@trust_remote_code
@any_device
@dtype
@option(
    "--device-map",
    Text("Spread a large model over all devices, with accelerate.", "用 accelerate 将大模型分布到所有设备。"),
    type=click.Choice(["auto"]),
)
@option("--quiet", Text("Print findings only.", "只输出发现。"), "-q", is_flag=True)
@debug
def check(model: str | None, **given: Any) -> int:
    """Check one model, or compare two."""
    return run(CheckOptions(model, **given))
