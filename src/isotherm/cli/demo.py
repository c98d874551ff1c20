"""`isotherm demo`: scaled beside unscaled attention, measured and predicted."""

import click

from isotherm.cli.command import as_json, command, option
from isotherm.cli.output import print_json, progress_bar
from isotherm.language import Text

ABOUT = Text(
    "Compare scaled with unscaled attention for d = 16 … 1024: measured now, with the theory beside it.",
    "d = 16 … 1024 时有缩放与无缩放注意力的对照：现场测量，并列理论值。",
)


@command("demo", ABOUT)
@as_json
@option(
    "--keys",
    Text("Number of keys that each row sees.", "每行可见的键数。"),
    default=1024,
    type=click.IntRange(2, 65536),
    metavar="N",
)
@option(
    "--seed",
    Text("Seed of the random vectors.", "随机向量的种子。"),
    default=0,
    type=click.IntRange(0, 2**32 - 1),
    metavar="N",
)
def demo(as_json: bool, keys: int, seed: int) -> None:
    """Measure, then show the table."""
    from rich.console import Console

    from isotherm.lab import temperature
    from isotherm.record import to_plain
    from isotherm.report import temperature as page

    with progress_bar() as bar:
        task = bar.add_task(str(Text("measuring", "测量中")), total=len(temperature.DIMENSIONS))
        table = temperature.measure(keys, seed=seed, progress=lambda _: bar.advance(task))
    if as_json:
        print_json(to_plain(table))
    else:
        page.show(table, Console())
