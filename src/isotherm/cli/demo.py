"""`isotherm demo`: scaled beside unscaled attention, measured and predicted."""

import click

from isotherm.cli.command import command, option
from isotherm.language import Text

ABOUT = Text(
    "Scaled beside unscaled attention over d = 16 … 1024: measured here, theory beside it.",
    "d = 16 … 1024 时有缩放与无缩放注意力的对照：现场测量，并列理论值。",
)


@command("demo", ABOUT)
@option("--json", "as_json", is_flag=True, text=Text("Print one JSON document.", "输出一个 JSON 文档。"))
@option(
    "--keys",
    default=1024,
    type=click.IntRange(2, 65536),
    show_default=True,
    text=Text("Keys a row sees.", "每行可见的键数。"),
)
@option("--seed", default=0, show_default=True, text=Text("Seed of the random vectors.", "随机向量的种子。"))
def demo(as_json: bool, keys: int, seed: int) -> None:
    """Measure, then show the table."""
    import json

    from rich.console import Console
    from rich.progress import Progress

    from isotherm.lab import temperature
    from isotherm.record import to_plain
    from isotherm.report import temperature as page

    messages = Console(stderr=True)
    with Progress(console=messages, transient=True, disable=not messages.is_terminal) as progress:
        task = progress.add_task(str(Text("measuring", "测量中")), total=len(temperature.DIMENSIONS))
        table = temperature.measure(keys, seed=seed, progress=lambda _: progress.advance(task))
    if as_json:
        click.echo(json.dumps(to_plain(table), indent=2))
    else:
        page.show(table, Console())
