"""`isotherm translate`: sentences through a trained run."""

import sys
from pathlib import Path

import click

from isotherm.cli.command import as_json, command, device, option
from isotherm.cli.output import print_json, say
from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.printable import printable

ABOUT = Text(
    "Translate with a trained model.\n\nRUN is the folder that `isotherm train` wrote. Several SENTENCEs may be given; without"
    " any, every line of standard input is translated.",
    "用训练好的模型翻译。\n\nRUN 是 `isotherm train` 写出的文件夹。SENTENCE 可有多句；不给则逐行翻译标准输入。",
)


@command("translate", ABOUT)
@click.argument("run")
@click.argument("sentence", nargs=-1)
@option(
    "--beam",
    Text("Width of the beam (default: the run's).", "束宽（默认用训练配置中的）。"),
    type=click.IntRange(1, 64),
    metavar="N",
)
@as_json
@device
def translate(run: str, sentence: tuple[str, ...], beam: int | None, as_json: bool, device: str) -> None:
    """Print a translation for each sentence."""
    from isotherm.train.translator import open_run

    trained = open_run(Path(run), device=device, say=say)
    sentences = list(sentence) if sentence else _standard_input()
    outputs = trained.translate(sentences, width=beam) if sentences else []
    if as_json:
        pairs = [{"source": source, "output": output} for source, output in zip(sentences, outputs, strict=True)]
        print_json({"run": run, "step": trained.step, "translations": pairs})
    else:
        for output in outputs:
            click.echo(printable(output) if sys.stdout.isatty() else output)


def _standard_input() -> list[str]:
    try:
        text = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError(Text("standard input", "标准输入"), Text("not UTF-8 text", "不是 UTF-8 文本")) from error
    return text.split("\n") if text else []
