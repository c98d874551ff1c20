"""`isotherm rules`: list the scale rules in use, or explain one."""

import json

import click
from rich.console import Console

from isotherm.cli.command import command, option
from isotherm.language import Text
from isotherm.record import to_plain
from isotherm.report import atlas
from isotherm.scale import tables

ABOUT = Text(
    "List the scale rules in use, or explain one.\n\nNAME is a rule of the list (log-n), one with its values"
    " (log-n:2048) or a product of rules (qk-norm*1/sqrt(d)).",
    "缩放规则总表，或详解其中一条。\n\nNAME 可以是表中的规则（log-n）、带取值的规则（log-n:2048），或规则之积"
    "（qk-norm*1/sqrt(d)）。",
)


@command("rules", ABOUT)
@click.argument("name", required=False)
@option("--json", "as_json", is_flag=True, text=Text("Print one JSON document.", "输出一个 JSON 文档。"))
def rules(name: str | None, as_json: bool) -> None:
    """Print the atlas, or explain one rule."""
    answer = tables.atlas() if name is None else tables.explain(name)
    if as_json:
        click.echo(json.dumps(to_plain(answer), ensure_ascii=False, indent=2))
    elif isinstance(answer, tuple):
        atlas.show(answer, Console())
    else:
        atlas.explain(answer, Console())
