"""`isotherm explain`: every claim about √d put to the test, with evidence for and against."""

from typing import Any

import click

from isotherm.cli.command import command, option
from isotherm.language import Text

ABOUT = Text(
    "Why does attention divide by √d? Every claim of the documents, put to an experiment that could refute it.\n\n"
    "CLAIM names one or more of them; nothing: all. Finished claims are kept: the same command goes on where it was"
    " interrupted. Exit code 0: every verdict is the one on record; 1: one has changed; 2: wrong use, or a claim failed.",
    "注意力为什么要除以 √d？文档的每条论断都经过一个可能推翻它的实验。\n\n"
    "CLAIM 为一条或多条论断的名称；不给则为全部。已完成的论断会保留：中断后再次运行同一命令会接着做。"
    "退出码 0：每条结论都与记录一致；1：有结论变了；2：用法有误，或有论断失败。",
)
OPTIONS: tuple[tuple[tuple[str, ...], Text, dict[str, Any]], ...] = (
    (("--list", "listing"), Text("List the claims.", "列出全部论断。"), {"is_flag": True}),
    (
        ("--record", "records"),
        Text(
            "A sweep.json of your own to show in the claims that have recorded runs; may be given several times.",
            "你自己的 sweep.json，显示在有记录的论断中；可多次给出。",
        ),
        {"multiple": True, "metavar": "FILE"},
    ),
    (
        ("--out",),
        Text("Write the illustrated page, figures and records.", "写出图文网页、图和记录。"),
        {"metavar": "DIR"},
    ),
    (("--json", "as_json"), Text("Print one JSON document.", "输出一个 JSON 文档。"), {"is_flag": True}),
    (
        ("--size",),
        Text("Size of the experiments.", "实验规模。"),
        {"type": click.Choice(["quick", "full"]), "default": "quick", "show_default": True},
    ),
    (
        ("--scale",),
        Text("Old name of --size.", "--size 的旧名。"),
        {"type": click.Choice(["quick", "full"]), "hidden": True},
    ),
    (("--device",), Text("Where to compute.", "运行设备。"), {"default": "cpu", "show_default": True}),
    (
        ("--jobs",),
        Text("Claims at a time (default: one per core).", "同时运行的论断数（默认每核一条）。"),
        {"type": click.IntRange(1), "metavar": "N"},
    ),
    (("--fresh",), Text("Measure again what is already kept.", "重新测量已保留的论断。"), {"is_flag": True}),
    (("--debug",), Text("Show tracebacks.", "显示回溯信息。"), {"is_flag": True}),
)


def _explain(claims: tuple[str, ...], scale: str | None, **given: Any) -> int:
    from isotherm.cli.explaining import Request, run

    return run(Request(claims, **given | ({"size": scale} if scale else {})))


for _names, _text, _attributes in reversed(OPTIONS):
    _explain = option(*_names, text=_text, **_attributes)(_explain)
explain = command("explain", ABOUT)(click.argument("claims", nargs=-1, metavar="[CLAIM]...")(_explain))
