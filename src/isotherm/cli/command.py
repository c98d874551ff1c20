"""Click commands and options whose help is a `Text`, shown in the current language."""

from collections.abc import Callable
from typing import Any

import click

from isotherm import language
from isotherm.language import LANGUAGES, Text

USAGE = Text("Usage:", "用法：")
OPTIONS = Text("Options", "选项")
COMMANDS = Text("Commands", "命令")
PIECES = {"[OPTIONS]": Text("[OPTIONS]", "[选项]"), "COMMAND [ARGS]...": Text("COMMAND [ARGS]...", "命令 [参数]...")}
NOTES = (Text("[default: ", "[默认："), Text("required]", "必填]"))
"""Click's own English words on a help page, with their Chinese."""


class Option(click.Option):
    """An option whose help is a `Text`."""

    def __init__(self, *args: Any, text: Text, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.text = text

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The option's line of the help page."""
        self.help = ""
        row = super().get_help_record(ctx)
        if row is None:
            return None
        names, notes = row
        for note in NOTES:
            notes = notes.replace(note.en, str(note))
        return names, f"{self.text}  {notes}".rstrip()


class _Bilingual(click.Command):
    """What commands and groups share: headings and `--help` in the current language."""

    text: Text

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first line of the help page."""
        pieces = [str(PIECES.get(piece, piece)) for piece in self.collect_usage_pieces(ctx)]
        formatter.write_usage(ctx.command_path, " ".join(pieces), prefix=f"{USAGE} ")

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the command is for."""
        self.help = str(self.text)
        super().format_help_text(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, one to a line."""
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        rows = [row for option in options if (row := option.get_help_record(ctx)) is not None]
        with formatter.section(str(OPTIONS)):
            formatter.write_dl(rows)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """`--help`."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = str(Text("Show this message and exit.", "显示本帮助并退出。"))
        return option

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002
        """The command's first paragraph, whole."""
        return str(self.text).split("\n", maxsplit=1)[0]


class Command(_Bilingual):
    """One verb."""

    def __init__(self, *args: Any, text: Text, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.text = text


class Group(_Bilingual, click.Group):
    """A command with subcommands."""

    def __init__(self, *args: Any, text: Text, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.text = text

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, then the subcommands."""
        super().format_options(ctx, formatter)
        with formatter.section(str(COMMANDS)):
            formatter.write_dl(self.summaries(ctx))

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:  # noqa: ARG002
        """The subcommands with one line each."""
        return [(name, command.get_short_help_str()) for name, command in self.commands.items()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what was typed. Without arguments, show the help page and exit with code 2."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The subcommands in the order they were added."""
        return list(self.commands)


def option(*names: str, text: Text, **attributes: Any) -> Callable[[Any], Any]:
    """Like `click.option`, with help in both languages."""
    return click.option(*names, cls=Option, text=text, **attributes)


def lang(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--lang`, which sets the language of the process."""

    def choose(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:  # noqa: ARG001
        if value is not None:
            language.choose(value)

    text = Text("Language of messages (default: from the locale).", "消息的语言（默认取自系统区域设置）。")
    made: Callable[..., Any] = option(
        "--lang", type=click.Choice(LANGUAGES), callback=choose, expose_value=False, is_eager=True, text=text
    )(function)
    return made


def command(name: str, text: Text, lang: Callable[[Any], Any] = lang) -> Callable[[Callable[..., Any]], Command]:
    """Make a verb. Every verb takes `--lang`, or its own variant of it."""

    def make(function: Callable[..., Any]) -> Command:
        verb: Command = click.command(name, cls=Command, text=text)(lang(function))
        return verb

    return make
