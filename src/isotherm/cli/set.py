"""`isotherm set`: write a model's folder with a rule in it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from isotherm.cli.command import command, device, option, trust_remote_code
from isotherm.cli.output import WROTE, say
from isotherm.errors import ArgumentError, IsothermError, named
from isotherm.language import Text

if TYPE_CHECKING:
    from isotherm.setting import Written

ABOUT = Text(
    "Write a model's folder with its attention at another temperature, so that whoever loads it needs no Isotherm.\n\n"
    "MODEL is a folder or a hub name. A factor (x0.5) is folded into the weights that make the queries; a rule that sets the"
    " scale (0.125) is written into the configuration where the architecture has a key for it, and folded elsewhere. The new"
    " folder is loaded afresh, compared with isotherm.apply and checked before it is put in its place.\n\n"
    "Exit code 0: written, and a check-up finds nothing in it; 1: written, and it finds something; 2: wrong use, or nothing"
    " written.",
    "写出一个模型文件夹，其注意力处于另一温度；加载它的人不需要 Isotherm。\n\n"
    "MODEL 为文件夹或模型库名称。倍数（x0.5）折入产生查询的权重；设定缩放的规则（0.125）在架构有相应键时写入配置，"
    "否则折入权重。新文件夹先重新加载，与 isotherm.apply 比较并经检查，然后才就位。\n\n"
    "退出码 0：已写出，检查无发现；1：已写出，检查有发现；2：用法有误，或没有写出。",
)
NOTHING = Text("nothing to write: the scale in force is this one already", "无需写出：实际缩放已是如此")
HEALTHY = Text(
    "nothing to repair: no wrong scale and no logits above 100", "无需修复：没有错误的缩放，也没有超过 100 的 logits"
)
DRAWN = Text(
    "the folder has no tokenizer, so tokens drawn at random stood for text",
    "文件夹中没有分词器，因此用随机词元代替文本",
)
ONE_OF_THEM = Text("give --rule or --fix, one of the two", "请给出 --rule 或 --fix，二者取一")
WEIGHTS = Text("folded into {n} weights: {names}", "已折入 {n} 个权重：{names}")
WEIGHT = Text("folded into 1 weight: {names}", "已折入 1 个权重：{names}")
VALUES = Text("in config.json: {values}", "写入 config.json：{values}")
DIFFERENCE = Text(
    "loaded afresh, its output is at most {difference:.2g} away from that of isotherm.apply",
    "重新加载后，其输出与 isotherm.apply 的结果最多相差 {difference:.2g}",
)
CLEAN = Text("a check-up finds nothing in it", "检查无发现")
FOUND = Text("a check-up finds: {codes}", "检查发现：{codes}")
NAMED = 2
"""How many weights are named."""


@dataclass(frozen=True)
class SetOptions:
    """The command line as typed."""

    model: str
    rule: str | None
    out: str
    fix: bool
    layers: tuple[str, ...]
    heads: str | None
    force: bool
    trust_remote_code: bool
    device: str


def run(options: SetOptions) -> int:
    """Run the command and return its exit code."""
    from isotherm.checkup.load import Loading
    from isotherm.setting import write

    if (options.rule is None) != options.fix:
        raise IsothermError(ONE_OF_THEM)
    loading = Loading(trust_remote_code=options.trust_remote_code, device=options.device)
    with named(rule="--rule", layers="--layer", heads="--heads", out="--out"):
        written = write(
            options.model,
            options.rule,
            out=options.out,
            layers=list(options.layers) or None,
            heads=read_heads(options.heads),
            force=options.force,
            loading=loading,
        )
    if written.folder is None:
        if options.fix and written.drawn:
            say(DRAWN)
        say(HEALTHY if options.fix else NOTHING)
        return 0
    show(written)
    return int(not written.healthy)


def read_heads(text: str | None) -> list[int] | None:
    """Head numbers, separated by commas."""
    if text is None:
        return None
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        expected = Text("numbers separated by commas", "以逗号分隔的数字")
        raise ArgumentError("--heads", expected, got=repr(text)) from None


def show(written: "Written") -> None:
    """Print what was done."""
    if written.weights:
        several = len(written.weights) > 1
        names = ", ".join(written.weights[:NAMED]) + (" …" if len(written.weights) > NAMED else "")
        click.echo((WEIGHTS if several else WEIGHT).format(n=len(written.weights), names=names))
    if written.values:
        click.echo(VALUES.format(values=", ".join(written.values)))
    if written.drawn:
        click.echo(DRAWN)
    click.echo(DIFFERENCE.format(difference=written.difference))
    codes = dict.fromkeys(finding.code for finding in written.findings if finding.severity != "note")
    click.echo(FOUND.format(codes=", ".join(codes)) if codes else CLEAN)
    say(WROTE.format(path=written.folder))


@command("set", ABOUT)
@click.argument("model")
@option(
    "--rule",
    Text("The rule, as isotherm rules writes it (x0.5, 0.125 …).", "规则，写法同 isotherm rules（x0.5、0.125 …）。"),
)
@option(
    "--fix",
    Text(
        "Instead of a rule: repair what a check-up finds, a wrong scale and logits above 100.",
        "不给规则，而是修复检查的发现：错误的缩放与超过 100 的 logits。",
    ),
    is_flag=True,
)
@option("--out", Text("The folder to write.", "要写出的文件夹。"), required=True, metavar="DIR")
@option(
    "--layer",
    Text("Only these layers, by name, pattern or index; repeatable.", "只用于这些层，按名称、模式或序号；可重复。"),
    "layers",
    multiple=True,
    metavar="LAYER",
)
@option("--heads", Text("Only these heads, comma-separated.", "只用于这些头，逗号分隔。"), metavar="N,N…")
@option("--force", Text("Replace a folder that exists.", "替换已存在的文件夹。"), is_flag=True)
@trust_remote_code
@device
def set(model: str, **given: Any) -> int:
    """Write one model."""
    return run(SetOptions(model, **given))
