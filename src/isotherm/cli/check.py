"""`isotherm check`: is this model's attention healthy, and is its scale the one it declares?"""

from typing import Any

import click

from isotherm.cli.command import command, option
from isotherm.language import Text

ABOUT = Text(
    "Look into a model's attention: its temperature by layer and head, and whether its scale is the one declared.\n\n"
    "MODEL is a local transformers folder, a hub name, package.module:function returning a model or (model, batch), or a"
    " JSON report of an earlier check. Nothing: all-MiniLM-L6-v2. Exit code 0: healthy; 1: found something; 2: wrong use.",
    "检查模型的注意力：每层每头的温度，以及实际缩放是否与声明一致。\n\n"
    "MODEL 可以是本地 transformers 文件夹、模型库名称、返回模型或（模型, 批次）的 package.module:function，或此前检查的"
    " JSON 报告；不给则为 all-MiniLM-L6-v2。退出码 0：健康；1：有发现；2：用法有误。",
)
OPTIONS: tuple[tuple[tuple[str, ...], Text, dict[str, Any]], ...] = (
    (("--text",), Text("Text to read; - for standard input.", "要读入的文本；- 为标准输入。"), {"metavar": "FILE"}),
    (
        ("--tokens",),
        Text("Tokens at most.", "最多词元数。"),
        {"type": click.IntRange(2), "default": 256, "show_default": True, "metavar": "N"},
    ),
    (
        ("--what-if",),
        Text("Rules to replay, comma-separated; '' for none.", "要重放的规则，逗号分隔；'' 为不重放。"),
        {"default": "none,1/d,x0.5,x2", "show_default": True, "metavar": "RULES"},
    ),
    (
        ("--context",),
        Text("What a context of N keys would do to the entropy.", "上下文为 N 个键时熵会怎样。"),
        {"type": click.IntRange(2), "metavar": "N"},
    ),
    (
        ("--rows",),
        Text("Measure N rows a head instead of all.", "每头只测 N 行，而非全部。"),
        {"type": click.IntRange(1), "metavar": "N"},
    ),
    (("--html",), Text("Write the report as one page.", "将报告写成一个网页。"), {"metavar": "FILE"}),
    (("--markdown",), Text("Write a summary for a pull request.", "写出合并请求用的摘要。"), {"metavar": "FILE"}),
    (("--json", "as_json"), Text("Print one JSON document.", "输出一个 JSON 文档。"), {"is_flag": True}),
    (
        ("--compare", "other"),
        Text("Show what changed from MODEL to B.", "显示从 MODEL 到 B 的变化。"),
        {"metavar": "B"},
    ),
    (
        ("--fail-on",),
        Text(
            "Exit 1 for these alone: codes, or shares of heads as in 'saturated>0.02'; comma-separated.",
            "仅因这些以 1 退出：发现代码，或注意力头的比例，如 'saturated>0.02'；逗号分隔。",
        ),
        {"metavar": "WHAT"},
    ),
    (
        ("--one-implementation",),
        Text("Do not run the other implementations for comparison.", "不运行其他实现作比较。"),
        {"is_flag": True},
    ),
    (("--from-config",), Text("Build the model untrained.", "只按配置新建未训练的模型。"), {"is_flag": True}),
    (("--trust-remote-code",), Text("Let the model's own code run.", "允许运行模型自带的代码。"), {"is_flag": True}),
    (("--device",), Text("Where to run.", "运行设备。"), {"default": "cpu", "show_default": True}),
    (("--quiet", "-q"), Text("Print findings only.", "只输出发现。"), {"is_flag": True}),
    (("--debug",), Text("Show tracebacks.", "显示回溯信息。"), {"is_flag": True}),
)


def _check(model: str | None, **given: Any) -> int:
    from isotherm.cli.checking import Request, run

    return run(Request(model, **given))


for _names, _text, _attributes in reversed(OPTIONS):
    _check = option(*_names, text=_text, **_attributes)(_check)
check = command("check", ABOUT)(click.argument("model", required=False)(_check))
