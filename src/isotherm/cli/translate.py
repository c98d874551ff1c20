"""`isotherm translate`: sentences through a trained run."""

import click

from isotherm.cli.command import command, option
from isotherm.language import Text

ABOUT = Text(
    "Translate with a trained run.\n\nRUN is the folder `isotherm train` wrote. SENTENCE may be several; without any, lines of"
    " standard input are translated, one line for each.",
    "用训练好的模型翻译。\n\nRUN 是 `isotherm train` 写出的文件夹。SENTENCE 可有多句；不给则逐行翻译标准输入。",
)


@command("translate", ABOUT)
@click.argument("run")
@click.argument("sentence", nargs=-1)
@option(
    "--beam",
    type=click.IntRange(1, 64),
    metavar="N",
    text=Text("Width of the beam (default: the run's).", "束宽（默认用训练配置中的）。"),
)
@option("--json", "as_json", is_flag=True, text=Text("Print one JSON document.", "输出一个 JSON 文档。"))
@option("--device", default="cpu", show_default=True, text=Text("Where to run.", "运行设备。"))
def translate(run: str, sentence: tuple[str, ...], beam: int | None, as_json: bool, device: str) -> None:
    """Open the run, translate, print."""
    import json
    import sys
    from pathlib import Path

    from isotherm.errors import InputError
    from isotherm.train.translator import open_run

    trained = open_run(Path(run), device=device, say=lambda text: click.echo(str(text), err=True))
    if sentence:
        sentences = list(sentence)
    else:
        try:
            text = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise InputError(Text("standard input", "标准输入"), Text("not UTF-8 text", "不是 UTF-8 文本")) from error
        sentences = text.split("\n") if text else []
    outputs = trained.translate(sentences, width=beam) if sentences else []
    if as_json:
        pairs = [{"source": source, "output": output} for source, output in zip(sentences, outputs, strict=True)]
        click.echo(json.dumps({"run": run, "step": trained.step, "translations": pairs}, ensure_ascii=False, indent=2))
    else:
        for output in outputs:
            click.echo(output)
