"""`isotherm tune`: the scale at which a model does best on held-out text, over the length, and by layer or head."""

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from isotherm.cli.command import any_device, as_json, command, debug, dtype, option, trust_remote_code
from isotherm.cli.output import WROTE, check_outputs, print_json, progress_bar, say, say_trace
from isotherm.errors import ArgumentError, InputError, IsothermError, named
from isotherm.language import Text, current
from isotherm.printable import printable
from isotherm.record import to_plain

if TYPE_CHECKING:
    from isotherm.checkup.load import Loaded, Loading
    from isotherm.checkup.loading.loaded import Precision, Progress
    from isotherm.record.tune import TuneRecord
    from isotherm.tuning.documents import TextReader

ABOUT = Text(
    "Find the scale at which a model does best on held-out text: at each length, with intervals, and whether changing it is"
    " worth it.\n\n"
    "MODEL is what isotherm check takes, the folder of an isotherm train run that read text, or a JSON record of an earlier"
    " tune. Causal models predict the next token, masked models masked ones; sentence encoders find paired passages. The model"
    " stays as it is.\n\n"
    "Exit code 0: leave it as it is; 1: a factor gains beyond noise; 2: wrong use.",
    "在留出文本上找出模型表现最好的缩放：每个长度、带区间，并说明是否值得改动。\n\n"
    "MODEL 与 isotherm check 相同，也可以是读文本的 isotherm train 训练文件夹，或此前 tune 的 JSON 记录。因果模型预测下一词元，"
    "掩码模型预测掩码词元，句子编码器检索成对的段落。模型保持原样。\n\n"
    "退出码 0：保持原样；1：有超出噪声的收益；2：用法有误。",
)
NO_TEXT = Text("give a text: --text FILE", "请给出文本：--text FILE")
ONLY_TEXT = Text(
    "this run learned {kind}; only runs that read text can be tuned", "这次训练学的是 {kind}；只能调读文本的训练"
)
WHOLE = Text("whole numbers from 2 on, comma-separated", "不小于 2 的整数，以逗号分隔")
NOT_RECORD = Text("not a record of schema {schema}", "不是 {schema} 格式的记录")


def parse_lengths(text: str) -> tuple[int, ...]:
    """The lengths as typed."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 9 and int(part) >= 2 for part in parts):
        raise ArgumentError("--lengths", WHOLE, got=repr(text[:60]))
    return tuple(sorted({int(part) for part in parts}))


def read_record(path: Path) -> "TuneRecord":
    """Read an earlier record from its JSON."""
    from isotherm.record.files import checked, parse_json, read_bytes
    from isotherm.record.tune import TUNE_SCHEMA, TuneRecord

    data = parse_json(path, read_bytes(path))
    if not isinstance(data, dict) or data.get("schema") != TUNE_SCHEMA:
        raise InputError(path, NOT_RECORD.format(schema=TUNE_SCHEMA))
    return checked(TuneRecord, path, data)


def made(model: str | None, given: dict[str, Any]) -> "TuneRecord":
    """Tune the model as the command line says."""
    from rich.markup import escape
    from rich.progress import TimeRemainingColumn

    from isotherm.checkup.batch import read_text
    from isotherm.tuning.documents import Material
    from isotherm.tuning.tune import TuneSettings, tuned

    if given["text"] is None:
        raise IsothermError(NO_TEXT)
    lengths = parse_lengths(given["lengths"])
    text = read_text(given["text"], max(lengths) * given["documents"] * 2)
    layers = tuple(part.strip() for part in (given["layers"] or "").split(",") if part.strip())
    settings = TuneSettings(given["task"], given["documents"], given["last"], layers, given["per"])
    name = Text("standard input", "标准输入") if given["text"] == "-" else given["text"]
    with progress_bar(TimeRemainingColumn()) as bar:
        task = bar.add_task(str(Text("loading", "加载模型")), total=1.0)

        def told(what: Text, done: float) -> None:
            bar.update(task, description=escape(printable(str(what), 60)), completed=done)

        loaded, reading = opened(model, given, told)
        material = Material(str(name), text, reading, "lines" if given["by_line"] else "windows")
        bar.reset(task)
        with named(layers="--layers", task="--task"):
            return tuned(loaded, material, lengths, settings, told)


def opened(model: str | None, given: dict[str, Any], told: "Progress") -> tuple["Loaded", "TextReader"]:
    """The model and what reads its text: of `isotherm train`'s runs their own vocabulary, else the tokenizer in the folder."""
    from isotherm.checkup.load import Loaded, load
    from isotherm.tuning.documents import TextReader, reading_of

    path = Path(model) if model is not None else None
    if path is None or not (path / "checkpoints").is_dir():
        loaded = load(model, _loading(given), told)
        return loaded, reading_of(loaded, None)
    from isotherm.train.tokens import UNKNOWN
    from isotherm.train.translator import open_any

    trained = open_any(path, device="cpu" if given["device"] == "auto" else given["device"], say=say)
    if trained.config.data.kind != "text":
        raise InputError(path, ONLY_TEXT.format(kind=trained.config.data.kind))
    reading = TextReader(lambda text: trained.vocabulary.encode([text])[0], mask=UNKNOWN)
    return Loaded(trained.model, path.resolve().name, str(path)), reading


def _loading(given: dict[str, Any]) -> "Loading":
    from isotherm.checkup.load import Loading

    dtype = cast("Precision", given["dtype"])
    return Loading(trust_remote_code=given["trust_remote_code"], device=given["device"], dtype=dtype)


def run(model: str | None, given: dict[str, Any]) -> int:
    """Tune, write the files, show."""
    from rich.console import Console

    from isotherm.report.tune import page, terminal

    check_outputs([model, None if given["text"] == "-" else given["text"]], {"--html": given["html"]})
    try:
        earlier = model is not None and model.endswith(".json") and not Path(model).is_dir()
        record = read_record(Path(cast(str, model))) if earlier else made(model, given)
    except IsothermError:
        if given["debug"]:
            say_trace(traceback.format_exc())
        raise
    if given["html"] is not None:
        page.write_html(record, Path(given["html"]), current())
    if given["as_json"]:
        print_json(to_plain(record))
    else:
        terminal.show(record, Console(), current())
    if given["html"] is not None:
        say(WROTE.format(path=given["html"]))
    return int(any(best.worth for best in record.bests))


@command("tune", ABOUT)
@click.argument("model", required=False)
@option("--text", Text("Held-out text; - for standard input.", "留出文本；- 为标准输入。"), metavar="FILE")
@option(
    "--lengths",
    Text("Tokens of a document; several lengths, comma-separated.", "一篇文档的词元数；可给多个长度，以逗号分隔。"),
    default="256",
    metavar="N,…",
)
@option(
    "--documents",
    Text("At most so many documents at each length.", "每个长度至多这么多篇文档。"),
    type=click.IntRange(4, 10**6),
    default=32,
    metavar="N",
)
@option(
    "--by-line",
    Text(
        "Each line is a document (cut to the length), not a window of the whole text.",
        "每行是一篇文档（截至该长度），而非整个文本的窗口。",
    ),
    is_flag=True,
)
@option(
    "--last",
    Text(
        "Score only the last N tokens of each document, which see the most keys.",
        "只评每篇文档的最后 N 个词元，它们看到的键最多。",
    ),
    type=click.IntRange(1),
    metavar="N",
)
@option(
    "--task",
    Text("What is predicted; auto: by the model's class.", "预测什么；auto 为按模型的类判断。"),
    type=click.Choice(["auto", "next", "masked", "pairs"]),
    default="auto",
)
@option(
    "--layers",
    Text("Tune only these layers: names or indices, comma-separated.", "只调这些层：名称或序号，以逗号分隔。"),
    metavar="LAYERS",
)
@option(
    "--per",
    Text(
        "Then step along the temperature gradient, a factor for each layer or head.",
        "再沿温度梯度逐步调整，每层或每头一个倍数。",
    ),
    type=click.Choice(["layer", "head"]),
)
@option("--html", Text("Write the record as one page.", "将记录写成一个网页。"), metavar="FILE")
@as_json
@trust_remote_code
@any_device
@dtype
@debug
def tune(model: str | None, **given: Any) -> int:
    """Tune one model."""
    return run(model, given)
