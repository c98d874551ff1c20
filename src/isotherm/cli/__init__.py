"""The command line. Results go to standard output, messages and progress to standard error.

Exit codes: 0 healthy or confirmed, 1 found something, 2 wrong use or unreadable input, 130 stopped by Ctrl-C.
"""

import sys
from collections.abc import Sequence

import click

from isotherm import __version__, language
from isotherm.cli.check import check
from isotherm.cli.command import Group, lang, option
from isotherm.cli.data import data
from isotherm.cli.demo import demo
from isotherm.cli.explain import explain
from isotherm.cli.mistakes import describe
from isotherm.cli.rules import rules
from isotherm.cli.sweep import sweep
from isotherm.cli.train import train
from isotherm.cli.translate import translate
from isotherm.errors import IsothermError
from isotherm.language import Text

ABOUT = Text(
    "Keep attention at the right temperature: see it, explain it, set it by a rule, keep it while training.",
    "让注意力保持合适的温度：看见它，解释它，按规则设定它，并在训练中守住它。",
)


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value and not ctx.resilient_parsing:
        click.echo(f"isotherm {__version__}")
        ctx.exit()


@click.group(cls=Group, text=ABOUT)
@option(
    "--version", is_flag=True, callback=_version, expose_value=False, is_eager=True, text=Text("Version.", "版本号。")
)
@lang
def program() -> None:
    """Hold the verbs."""


for verb in (check, explain, rules, demo, train, translate, data, sweep):
    program.add_command(verb)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every expected failure is one line on standard error."""
    language.choose(_asked(arguments))
    try:
        code = program.main(list(arguments), prog_name="isotherm", standalone_mode=False)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.Abort:
        return 130
    except (click.ClickException, IsothermError) as error:
        click.echo(describe(error), err=True)
        return 2
    return code if isinstance(code, int) else 0


def _asked(arguments: Sequence[str]) -> language.Language | None:
    """The language asked for anywhere on the line, so that help and errors before it speak it too."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        for name in language.LANGUAGES:
            if word == f"--lang={name}" or (word == "--lang" and following == name):
                return name
    return None


def main() -> None:
    """The `isotherm` program."""
    try:
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has gone: not our failure, and nothing left to say
        sys.stderr.close()
        sys.exit(0)
