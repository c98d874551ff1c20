"""The words and signs that every view of a check-up shares: states, severities, verdicts."""

from typing import Final

from isotherm.language import Text
from isotherm.record import Severity, State

STATES: Final[dict[State, Text]] = {
    "balanced": Text("balanced", "均衡"),
    "saturated": Text("saturated", "饱和"),
    "diffuse": Text("diffuse", "弥散"),
    "sink": Text("sink", "汇聚"),
    "invalid": Text("invalid", "无效"),
    "empty": Text("empty", "空"),
}
STATE_GLYPHS: Final[dict[State, str]] = {
    "balanced": "●",
    "saturated": "▲",
    "diffuse": "≈",
    "sink": "◆",
    "invalid": "✖",
    "empty": "·",
}
SEVERITIES: Final[dict[Severity, Text]] = {
    "error": Text("error", "错误"),
    "warning": Text("warning", "警告"),
    "note": Text("note", "提示"),
}
SEVERITY_GLYPHS: Final[dict[Severity, str]] = {"error": "✖", "warning": "▲", "note": "•"}
SEVERITY_STYLES: Final[dict[Severity, str]] = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
_COUNTED: Final[dict[Severity, tuple[Text, Text]]] = {
    "error": (Text("1 error", "1 个错误"), Text("{n} errors", "{n} 个错误")),
    "warning": (Text("1 warning", "1 个警告"), Text("{n} warnings", "{n} 个警告")),
    "note": (Text("1 note", "1 条提示"), Text("{n} notes", "{n} 条提示")),
}
AS_IS: Final = Text("as is", "现状")
EXACT: Final = Text("exact", "精确")
SAMPLED: Final = Text(
    "sampled: {rows} of {total} rows a head, mean entropy ± {interval:.2g} nats (95 %)",
    "抽样：每头 {total} 行中的 {rows} 行，平均熵 ± {interval:.2g} 纳特（95 %）",
)
MIXED: Final = Text("exact and sampled", "部分抽样")
HEALTHY: Final = Text("Nothing to act on", "没有需要处理的问题")
NOT_SEEN: Final = Text("No attention was seen", "没有看到任何注意力")
NOT_AUDITED: Final = Text(
    "{verdict}; scale not known in {n} of {layers} layers", "{verdict}；{layers} 层中 {n} 层缩放不明"
)


def counted(severity: Severity, n: int) -> Text:
    """«1 error», «3 errors»."""
    one, several = _COUNTED[severity]
    return one if n == 1 else several.format(n=n)


def joined(texts: list[Text]) -> Text:
    """Texts joined by commas."""
    return Text(", ".join(text.en for text in texts), "，".join(text.zh for text in texts))


def place(layer: int | None, head: int | None) -> Text:
    """Where a finding is: a head, a layer or the whole model."""
    if layer is None:
        return Text("whole model", "整个模型")
    if head is None:
        return Text(f"layer {layer}", f"第 {layer} 层")
    return Text(f"layer {layer}, head {head}", f"第 {layer} 层第 {head} 头")


def rule_name(rule: str) -> Text:
    """A rule by the name of `isotherm rules`; only «as is» is translated."""
    return AS_IS if rule == "as is" else Text(rule, rule)
