"""The words and signs that every view of a check-up shares: states, severities, statistics, verdicts."""

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Statistic:
    """One statistic of a head.

    `sharp_high`: a large value means a sharp softmax, so the colour ramp is reversed. `unit_interval`: the statistic
    lies in [0, 1] by definition.
    """

    key: str
    name: Text
    caption: Text
    sharp_high: bool
    unit_interval: bool


STATISTICS: Final[tuple[Statistic, ...]] = (
    Statistic(
        "gate_p50",
        Text("Gradient gate, median row", "梯度闸门，中位行"),
        Text(
            "1 − Σp² of the median row: 1 lets the gradient through, 0 is an arg-max that passes none.",
            "中位行的 1 − Σp²：1 表示梯度畅通，0 即 arg-max，梯度无法通过。",
        ),
        sharp_high=False,
        unit_interval=True,
    ),
    Statistic(
        "gate_p10",
        Text("Gradient gate, 10th percentile", "梯度闸门，第 10 百分位"),
        Text(
            "One row in ten is more closed than this. Collapse shows here first, while the mean still looks healthy.",
            "每十行有一行比此值更闭合。均值尚好时，坍缩最先在此显现。",
        ),
        sharp_high=False,
        unit_interval=True,
    ),
    Statistic(
        "entropy_fraction",
        Text("Entropy as a fraction of ln n", "熵占 ln n 的比例"),
        Text(
            "Entropy of the median row over ln n: 1 is uniform over the n visible keys, 0 a single key.",
            "中位行的熵除以 ln n：1 表示在 n 个可见键上均匀，0 表示只看一个键。",
        ),
        sharp_high=False,
        unit_interval=True,
    ),
    Statistic(
        "max_logit",
        Text("Largest logit", "最大 logit"),
        Text("The largest logit of any row, in nats.", "所有行中最大的 logit，单位为奈特。"),
        sharp_high=True,
        unit_interval=False,
    ),
    Statistic(
        "logit_std",
        Text("Logit spread σ", "logit 标准差 σ"),
        Text(
            "Standard deviation of the logits over the visible keys, in nats; the softmax freezes near σ_c = √(2 ln n).",
            "可见键上 logit 的标准差，单位为奈特；softmax 在 σ_c = √(2 ln n) 附近冻结。",
        ),
        sharp_high=True,
        unit_interval=False,
    ),
    Statistic(
        "top1",
        Text("Largest weight", "最大权重"),
        Text("Probability of the most attended key, median row.", "中位行中受关注最多的键的概率。"),
        sharp_high=True,
        unit_interval=True,
    ),
    Statistic(
        "sink",
        Text("Mass on the first key", "首键质量"),
        Text("Mean probability of the first visible key.", "第一个可见键的平均概率。"),
        sharp_high=True,
        unit_interval=True,
    ),
    Statistic(
        "n_eff",
        Text("Effective number of keys", "有效键数"),
        Text("1/Σp² of the median row: how many keys share the attention.", "中位行的 1/Σp²：有多少个键分得注意力。"),
        sharp_high=False,
        unit_interval=False,
    ),
)

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
