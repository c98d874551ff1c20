"""`isotherm sweep`: many training runs from one specification, here or on a Ray cluster."""

from typing import Any

import click

from isotherm.cli.command import command, option
from isotherm.language import Text

ABOUT = Text(
    "Train every combination a specification names, and compare them over seeds.\n\nSPEC is a TOML file with [base] values and"
    " [grid] lists. Runs that differ in numbers alone train together. The store keeps each finished run: stopped at any"
    " moment, the same command goes on and ends with the same numbers.",
    "训练配置中列出的每一种组合，并在多个种子上比较。\n\nSPEC 是含 [base] 取值与 [grid] 列表的 TOML 文件。"
    "只在数值上不同的训练会一起进行。每次完成的训练都存入结果文件夹：随时停下，再运行同一命令即可继续，最后的数字不变。",
)
OPTIONS: tuple[tuple[tuple[str, ...], Text, dict[str, Any]], ...] = (
    (("--store",), Text("Folder for the results.", "结果文件夹。"), {"metavar": "DIR"}),
    (
        ("--executor",),
        Text("Processes on this machine, or a Ray cluster.", "本机进程，或 Ray 集群。"),
        {"type": click.Choice(["local", "ray"]), "default": "local", "show_default": True},
    ),
    (
        ("--address",),
        Text(
            "The Ray cluster, host:port (default: RAY_ADDRESS, or this machine's).",
            "Ray 集群，host:port（默认取 RAY_ADDRESS 或本机集群）。",
        ),
        {"metavar": "ADDRESS"},
    ),
    (
        ("--workers",),
        Text(
            "Processes at once (default: one a CPU, or 1 on a GPU).",
            "同时运行的进程数（默认每个 CPU 一个，GPU 上为 1）。",
        ),
        {"type": click.IntRange(1), "metavar": "N"},
    ),
    (
        ("--gpus",),
        Text("With Ray: share of a GPU each process takes.", "使用 Ray 时每个进程占用的 GPU 份额。"),
        {"type": click.FloatRange(0), "metavar": "SHARE"},
    ),
    (("--device",), Text("Where to train.", "训练设备。"), {"default": "cpu", "show_default": True}),
    (
        ("--precision",),
        Text("What to compute in.", "计算精度。"),
        {"type": click.Choice(["float32", "tf32", "bfloat16", "float64"]), "default": "float32", "show_default": True},
    ),
    (
        ("--together",),
        Text(
            "Models trained as one, at most (default: 64 on a GPU, 16 on a CPU).",
            "一起训练的模型数上限（默认 GPU 上 64，CPU 上 16）。",
        ),
        {"type": click.IntRange(1), "metavar": "N"},
    ),
    (("--quick",), Text("The small version: what [quick] says.", "小规模版本：按 [quick] 所写。"), {"is_flag": True}),
    (
        ("--prepare",),
        Text("Only turn the corpora into token ids, to carry elsewhere.", "只把语料转成词元编号，供带到别处使用。"),
        {"is_flag": True},
    ),
    (("--json", "as_json"), Text("Print one JSON document.", "输出一个 JSON 文档。"), {"is_flag": True}),
)


def _sweep(spec: str, **given: Any) -> int:
    from isotherm.cli.sweeping import Request, run

    return run(Request(spec, **given))


for _names, _text, _attributes in reversed(OPTIONS):
    _sweep = option(*_names, text=_text, **_attributes)(_sweep)
sweep = command("sweep", ABOUT)(click.argument("spec")(_sweep))
