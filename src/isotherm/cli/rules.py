"""`isotherm rules`: list the scale rules in use, or explain one."""

import click

from isotherm.cli.command import as_json, command
from isotherm.cli.output import print_json
from isotherm.errors import named
from isotherm.language import Text

ABOUT = Text(
    "List the scale rules in use, or explain one.\n\nNAME is a rule of the list (log-n), one with its values"
    " (log-n:2048) or a product of rules (qk-norm*1/sqrt(d)).",
    "缩放规则总表，或详解其中一条。\n\nNAME 可以是表中的规则（log-n）、带取值的规则（log-n:2048），或规则之积"
    "（qk-norm*1/sqrt(d)）。",
)


@command("rules", ABOUT)
@click.argument("name", required=False)
@as_json
def rules(name: str | None, as_json: bool) -> None:
    """Print the atlas, or explain one rule."""
    from rich.console import Console

    from isotherm.record import to_plain
    from isotherm.report import atlas
    from isotherm.scale import tables

    with named(scale="NAME"):
        answer = tables.atlas() if name is None else tables.explain(name)
    if as_json:
        print_json(to_plain(answer))
    elif isinstance(answer, tuple):
        atlas.show(answer, Console())
    else:
        atlas.explain(answer, Console())
