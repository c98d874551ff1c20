"""Click commands and options with help in both languages, and the options that several verbs share."""

import re
from collections.abc import Callable, Iterable
from math import isnan
from typing import Any
from unicodedata import east_asian_width

import click

from isotherm import language
from isotherm.language import LANGUAGES, Text

USAGE = Text("Usage:", "用法：")
OPTIONS = Text("Options", "选项")
COMMANDS = Text("Commands", "命令")
PIECES = {"[OPTIONS]": Text("[OPTIONS]", "[选项]"), "COMMAND [ARGS]...": Text("COMMAND [ARGS]...", "命令 [参数]...")}
NOTES = (Text("[default: ", "[默认："), Text("required]", "必填]"))
"""Click's own English words on a help page, with their Chinese."""

UNBREAKABLE = re.compile(r"\s+|[（“]*(?:[\u4e00-\u9fff]|[^\s\u4e00-\u9fff（“，。、；：）”]+)?[，。、；：）”]*")
"""A space, a Latin word, or one Chinese character, together with the punctuation that may not begin or end a line."""


def columns(text: str) -> int:
    """The columns of a terminal that the text takes: two for a Chinese character."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def wrap(text: str, width: int) -> list[str]:
    """Break a paragraph into lines of at most `width` columns. A word that is wider has a line of its own."""
    lines = [""]
    for piece in UNBREAKABLE.findall(text):
        if columns(lines[-1] + piece.rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.lstrip()
    return [line.rstrip() for line in lines]


class Page(click.HelpFormatter):
    """A help page that fits its width in Chinese too, where click counts characters instead of columns."""

    def write_text(self, text: str) -> None:
        indent = " " * self.current_indent
        paragraphs = [wrap(paragraph, self.width - self.current_indent) for paragraph in text.split("\n\n")]
        self.write("\n\n".join("\n".join(indent + line for line in lines) for lines in paragraphs) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 24, col_spacing: int = 2) -> None:
        rows, indent = list(rows), " " * self.current_indent
        start = min(max(len(name) for name, _ in rows), col_max) + col_spacing
        for name, text in rows:
            lines = wrap(text, self.width - self.current_indent - start)
            if len(name) > start - col_spacing:
                self.write(f"{indent}{name}\n")
                name = ""  # noqa: PLW2901
            for place, line in enumerate(lines):
                self.write(f"{indent}{'' if place else name:<{start}}{line}\n")


class _Context(click.Context):
    formatter_class = Page


class Option(click.Option):
    """An option whose help is a `Text`."""

    def __init__(self, *args: Any, text: Text, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.text = text

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        self.help = ""
        row = super().get_help_record(ctx)
        if row is None:
            return None
        names, notes = row
        for note in NOTES:
            notes = notes.replace(note.en, str(note))
        return names, f"{self.text}  {notes}".rstrip()


class Command(click.Command):
    """A verb, with headings and `--help` in the current language."""

    context_class = _Context

    def __init__(self, *args: Any, text: Text, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.text = text

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        pieces = [str(PIECES.get(piece, piece)) for piece in self.collect_usage_pieces(ctx)]
        formatter.write_usage(ctx.command_path, " ".join(pieces), prefix=f"{USAGE} ")

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.help = str(self.text)
        super().format_help_text(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        rows = [row for option in options if (row := option.get_help_record(ctx)) is not None]
        with formatter.section(str(OPTIONS)):
            formatter.write_dl(rows)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = str(Text("Show this message and exit.", "显示本帮助并退出。"))
        return option


class Group(Command, click.Group):
    """A command with subcommands, listed in the order they were added."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section(str(COMMANDS)):
            formatter.write_dl(self.summaries())

    def summaries(self) -> list[tuple[str, str]]:
        """Each subcommand with the first paragraph of its help."""
        return [
            (name, str(verb.text).split("\n")[0]) for name, verb in self.commands.items() if isinstance(verb, Command)
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what was typed. Without arguments, show the help page and exit with code 2."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)


class NumberRange(click.FloatRange):
    """A number within bounds. Unlike click's, it is not NaN, which no comparison refuses."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(repr(value), param, ctx)
        return number


def option(name: str, text: Text, *other_names: str, **attributes: Any) -> Callable[[Any], Any]:
    """Like `click.option`, with help in both languages. A default is shown."""
    return click.option(name, *other_names, cls=Option, text=text, show_default="default" in attributes, **attributes)


def _choose(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:  # noqa: ARG001
    if value is not None:
        language.choose(value)


lang = option(
    "--lang",
    Text("Language of messages (default: from the locale).", "消息的语言（默认取自系统区域设置）。"),
    type=click.Choice(LANGUAGES),
    callback=_choose,
    expose_value=False,
    is_eager=True,
)
as_json = option("--json", Text("Print one JSON document.", "输出一个 JSON 文档。"), "as_json", is_flag=True)
device = option("--device", Text("Device to compute on.", "运行设备。"), default="cpu")
any_device = option(
    "--device",
    Text("Device to compute on; auto: a GPU if there is one.", "运行设备；auto 为有 GPU 则用之。"),
    default="auto",
)
dtype = option(
    "--dtype",
    Text("Precision to load the weights in; auto: the checkpoint's own.", "加载权重的精度；auto 为检查点自身的精度。"),
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
)
trust_remote_code = option(
    "--trust-remote-code", Text("Let the model's own code run.", "允许运行模型自带的代码。"), is_flag=True
)
debug = option("--debug", Text("Show tracebacks.", "显示回溯信息。"), is_flag=True)


def command(name: str, text: Text, lang: Callable[[Any], Any] = lang) -> Callable[[Callable[..., Any]], Command]:
    """Make a verb. Every verb takes `--lang`, or its own variant of it."""

    def make(function: Callable[..., Any]) -> Command:
        verb: Command = click.command(name, cls=Command, text=text)(lang(function))
        return verb

    return make
