"""`isotherm data`: text to train on."""

from pathlib import Path

import click

from isotherm import language
from isotherm.cli.command import Group, command, lang, option
from isotherm.cli.output import print_json, say
from isotherm.errors import ArgumentError
from isotherm.language import LANGUAGES, Text

ABOUT = Text("Make text to train on.", "准备训练用的文本。")
GETTEXT = Text(
    "Make a parallel corpus from the message catalogues (.mo, .po) of installed packages.\n\nEach line holds an English text"
    " and its translation, separated by a tab. A JSON file beside it names packages, versions, licences and catalogues.",
    "从已安装软件包的消息目录（.mo、.po）得到平行语料。\n\n每行一对，英文与译文以制表符分隔；另写一份 JSON，注明软件包、版本、"
    "许可证与目录文件。",
)


@click.group("data", cls=Group, text=ABOUT)
@lang
def data() -> None:
    """Hold the kinds of text."""


CHINESE = "zh_Hans"
ONE_CODE = Text("the same code as --to ({to})", "与 --to（{to}）相同的代码")


def _code(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001
    """Let `en` and `zh` choose the language of messages, as in every verb. Any other code is the translations'."""
    if value is None or value not in LANGUAGES:
        return value
    language.choose("zh" if value == "zh" else "en")
    return None


_lang = option(
    "--lang",
    Text(
        "Language of the translations, as --to; but en and zh choose the language of messages.",
        "译文语言，同 --to；en 与 zh 指消息的语言。",
    ),
    "code",
    callback=_code,
    is_eager=True,
    metavar="CODE",
)


@command("gettext", GETTEXT, _lang)
@option(
    "--package",
    Text("Package to read; may be given several times.", "要读取的软件包；可多次给出。"),
    "packages",
    multiple=True,
    required=True,
    metavar="NAME",
)
@option(
    "--to",
    Text(
        f"Language of the translations (default: {CHINESE}, which is also zh_CN).",
        f"译文语言（默认 {CHINESE}，与 zh_CN 视为同一种）。",
    ),
    metavar="CODE",
)
@option(
    "--where",
    Text(
        "Folder the packages are installed in (pip install --target DIR); default: this environment.",
        "软件包所在文件夹（pip install --target DIR）；默认为当前环境。",
    ),
    metavar="DIR",
)
@option("--out", Text("Table to write (.tsv).", "要写出的表格（.tsv）。"), default="corpus.tsv", metavar="FILE")
@option(
    "--longest",
    Text("Leave out sources of more than N characters.", "略去超过 N 个字符的原文。"),
    default=200,
    type=click.IntRange(1),
    metavar="N",
)
@option("--json", Text("Print the JSON file too.", "同时输出该 JSON。"), "as_json", is_flag=True)
def gettext(
    packages: tuple[str, ...],
    to: str | None,
    code: str | None,
    where: str | None,
    out: str,
    longest: int,
    as_json: bool,
) -> None:
    """Gather, clean and write the pairs."""
    from isotherm.report.files import write_error
    from isotherm.train.gettext_corpus import describe, gather, write

    if to and code and to != code:
        raise ArgumentError("--lang", ONE_CODE.format(to=to), got=code)
    corpus = gather(packages, to or code or CHINESE, where=Path(where) if where else None, longest=longest)
    path = Path(out)
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
    except OSError as error:
        raise write_error(path, error) from error
    note = write(corpus, path)
    if as_json:
        print_json(describe(corpus))
        return
    for part in corpus.provenance:
        line = Text(
            "{package} {version} ({licence}): {pairs} pairs from {messages} messages",
            "{package} {version}（{licence}）：{messages} 条消息中得 {pairs} 对",
        )
        say(line.format(**vars(part)))
    done = Text("{pairs} pairs in {out}; where they come from: {note}", "{out} 中有 {pairs} 对；来源见 {note}")
    say(done.format(pairs=len(corpus.pairs), out=out, note=note))


data.add_command(gettext)
