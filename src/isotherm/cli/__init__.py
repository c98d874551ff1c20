"""The command line: one file for each verb, loaded when the verb is used.

`command` makes a verb and its options, `output` prints, `streams` copes with closed streams and Ctrl-C, `usage_errors`
puts click's errors into words; every other file is a verb. A verb imports what is slow to load (torch, rich,
transformers) inside its functions, so that its help is quick.

Results go to standard output, messages and progress to standard error. Exit codes: 0 healthy or confirmed, 1 found
something, 2 wrong use, unreadable input or output that cannot be written, 130 stopped by Ctrl-C, 143 by SIGTERM. If the
reader of a pipe has gone (`isotherm rules | head -1`), the exit code is what it would have been.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import cast

import click

from isotherm import __version__, language
from isotherm.cli.command import Group, lang, option
from isotherm.cli.output import say
from isotherm.cli.streams import guard_streams, interrupts
from isotherm.cli.usage_errors import describe
from isotherm.errors import IsothermError
from isotherm.language import Text

ABOUT = Text(
    "Keep attention at the right temperature: see it, explain it, set it by a rule, keep it while training.",
    "让注意力保持合适的温度：看见它，解释它，按规则设定它，并在训练中守住它。",
)
VERBS = {
    "check": Text(
        "Check a model: its temperature by layer and head, and its scale.", "检查模型：各层各头的温度与缩放。"
    ),
    "set": Text("Write a model's folder at another temperature.", "写出处于另一温度的模型文件夹。"),
    "explain": Text("Put the claims about √d to the test, one experiment each.", "逐条用实验检验关于 √d 的论断。"),
    "explore": Text("Open the lesson: why √d, with pictures that move.", "打开教程：为什么是 √d，图随手动。"),
    "rules": Text("List the scale rules in use, or explain one.", "列出在用的缩放规则，或详解一条。"),
    "demo": Text("Show attention with and without its scale, side by side.", "并排展示有缩放与无缩放的注意力。"),
    "tune": Text("Find the scale at which a model does best on held-out text.", "在留出文本上找出模型最佳的缩放。"),
    "train": Text("Train a model under one scale rule or several.", "按一条或多条缩放规则训练模型。"),
    "watch": Text("Show a run that is watched while it trains.", "展示训练中被监测的模型。"),
    "export": Text("Write a run that was watched as a table.", "将被监测的训练导出为表格。"),
    "translate": Text("Translate sentences with a trained model.", "用训练好的模型翻译句子。"),
    "data": Text("Make text to train on.", "准备训练用的文本。"),
    "sweep": Text("Train a grid of small models and summarise them.", "训练一组小模型并汇总结果。"),
}
"""Every verb with its line in `isotherm --help`. The module `isotherm.cli.VERB` defines the command of that name."""


class Program(Group):
    """The program. A verb is imported when it is used."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        return cast(click.Command, getattr(import_module(f"isotherm.cli.{name}"), name)) if name in VERBS else None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def summaries(self) -> list[tuple[str, str]]:
        """Each verb with its line."""
        return [(name, str(text)) for name, text in VERBS.items()]


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value and not ctx.resilient_parsing:
        click.echo(f"isotherm {__version__}")
        ctx.exit()


@click.group(cls=Program, text=ABOUT)
@option(
    "--version",
    Text("Show the version and exit.", "显示版本并退出。"),
    is_flag=True,
    callback=_version,
    expose_value=False,
    is_eager=True,
)
@lang
def program() -> None:
    """Hold the verbs."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Every expected failure prints one line to standard error."""
    language.choose(_asked_language(arguments))
    try:
        code = program.main(list(arguments), prog_name="isotherm", standalone_mode=False)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.Abort as error:
        if isinstance(error.__cause__, EOFError):  # not a Ctrl-C: click treats the early end of any file like one
            raise error.__cause__ from None
        return 130
    except (click.ClickException, IsothermError) as error:
        if interrupts.seen:  # a library turned Ctrl-C into an error of its own
            return 130
        say(describe(error))
        return 2
    except OSError as error:  # a path that no system call takes, a disk that fails
        if error.errno is None:
            raise
        say(describe(error))
        return 2
    return code if isinstance(code, int) else 0


def _asked_language(arguments: Sequence[str]) -> language.Language | None:
    """The value of --lang anywhere on the line, so that earlier help and errors use it too."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        for name in language.LANGUAGES:
            if word == f"--lang={name}" or (word == "--lang" and following == name):
                return name
    return None


def main() -> None:
    """Run the `isotherm` program."""
    interrupts.install()
    try:
        guard_streams()
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except IsothermError as error:  # standard output could not take the last of the result
        say(describe(error))
        code = 2
    except BaseException:
        code = 2  # Python's own code for a defect is 1, which means «found something» here
        if not interrupts.seen:
            sys.excepthook(*sys.exc_info())
    interrupts.finish()
    sys.exit(130 if interrupts.seen else code)
