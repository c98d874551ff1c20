"""`isotherm data`: text to train on."""

from pathlib import Path

import click

from isotherm.cli.command import Group, command, lang, option
from isotherm.language import Text

ABOUT = Text("Make text to train on.", "准备训练用的文本。")
GETTEXT = Text(
    "A parallel corpus from the message catalogues (.mo, .po) of installed packages.\n\nWrites one pair a line, English and"
    " translation between a tab, and beside it a JSON note of packages, versions, licences and catalogues.",
    "从已安装软件包的消息目录（.mo、.po）得到平行语料。\n\n每行一对，英文与译文以制表符分隔；另写一份 JSON，注明软件包、版本、"
    "许可证与目录文件。",
)


@click.group("data", cls=Group, text=ABOUT)
@lang
def data() -> None:
    """Hold the kinds of text."""


@command("gettext", GETTEXT)
@option(
    "--package",
    "packages",
    multiple=True,
    required=True,
    metavar="NAME",
    text=Text("Package to read; may be given several times.", "要读取的软件包；可多次给出。"),
)
@option(
    "--to",
    "target",
    default="zh_Hans",
    show_default=True,
    metavar="CODE",
    text=Text("Language of the translations (zh_Hans and zh_CN are one).", "译文语言（zh_Hans 与 zh_CN 视为同一种）。"),
)
@option(
    "--where",
    metavar="DIR",
    text=Text(
        "Folder the packages are installed in (pip install --target DIR); default: this environment.",
        "软件包所在文件夹（pip install --target DIR）；默认为当前环境。",
    ),
)
@option("--out", required=True, metavar="FILE", text=Text("Table to write (.tsv).", "要写出的表格（.tsv）。"))
@option(
    "--longest",
    default=200,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    text=Text("Leave out sources of more than N characters.", "略去超过 N 个字符的原文。"),
)
@option("--json", "as_json", is_flag=True, text=Text("Print the note as JSON.", "以 JSON 输出说明。"))
def gettext(packages: tuple[str, ...], target: str, where: str | None, out: str, longest: int, as_json: bool) -> None:
    """Gather, clean and write."""
    import json

    from isotherm.train.corpus import describe, gather, write

    corpus = gather(packages, target, where=Path(where) if where else None, longest=longest)
    note = write(corpus, Path(out))
    if as_json:
        click.echo(json.dumps(describe(corpus), ensure_ascii=False, indent=2))
        return
    for part in corpus.provenance:
        line = Text(
            "{package} {version} ({licence}): {pairs} pairs from {messages} messages",
            "{package} {version}（{licence}）：{messages} 条消息中得 {pairs} 对",
        )
        told = {
            "package": part.package,
            "version": part.version,
            "licence": part.licence,
            "pairs": part.pairs,
            "messages": part.messages,
        }
        click.echo(str(line.format(**told)), err=True)
    done = Text("{pairs} pairs in {out}; where they come from: {note}", "{out} 中有 {pairs} 对；来源见 {note}")
    click.echo(str(done.format(pairs=len(corpus.pairs), out=out, note=note)), err=True)


data.add_command(gettext)
