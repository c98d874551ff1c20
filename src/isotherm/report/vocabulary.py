"""The words and signs that every view of a check-up shares: states, severities, verdicts."""

from typing import Final

from isotherm.language import Text
from isotherm.record import Kind, Severity, State, Subject
from isotherm.report import digits

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
KINDS: Final[dict[Kind, Text]] = {
    "self": Text("self", "自注意力"),
    "cross": Text("cross", "交叉注意力"),
    "channel": Text("over channels", "通道注意力"),
    "batch": Text("across the batch", "跨批次注意力"),
    "landmark": Text("by landmarks", "地标注意力"),
}
COMPILED: Final = Text("compiled; checked uncompiled", "已编译；以未编译方式检查")
_ONE_PICTURE: Final = Text("1 picture {size}", "1 张 {size} 的图像")
_PICTURES: Final = Text("{batch} pictures {size}", "{batch} 张 {size} 的图像")
_ONE_SOUND: Final = Text("1 sound of length {size}", "1 段长度为 {size} 的声音")
_SOUNDS: Final = Text("{batch} sounds of length {size}", "{batch} 段长度为 {size} 的声音")
_WITH_POSITIONS: Final = Text("{what} ({n} positions)", "{what}（{n} 个位置）")
_TOKENS: Final = Text("1 token", "1 个词元"), Text("{n} tokens", "{n} 个词元")
_POSITIONS: Final = Text("1 position", "1 个位置"), Text("{n} positions", "{n} 个位置")
AS_IS: Final = Text("as is", "现状")
EXACT: Final = Text("exact", "精确")
SAMPLED: Final = Text(
    "sampled: {rows} of {total} rows a head, mean entropy ± {interval:.2g} nats (95 %)",
    "抽样：每头 {total} 行中的 {rows} 行，平均熵 ± {interval:.2g} 奈特（95 %）",
)
SAMPLED_ONE: Final = Text("sampled: 1 of {total} rows a head", "抽样：每头 {total} 行中的 1 行")
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


def shape(layers: int, heads: int) -> Text:
    """«6 layers × 12 heads», «1 layer × 1 head»."""
    of_layers = Text("1 layer", "1 层") if layers == 1 else Text("{n} layers", "{n} 层").format(n=layers)
    of_heads = Text("1 head", "1 头") if heads == 1 else Text("{n} heads", "{n} 头").format(n=heads)
    return Text("{layers} × {heads}", "{layers} × {heads}").format(layers=of_layers, heads=of_heads)


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


_FACTS: Final = {
    "scale missing": "缺少缩放",
    "1/d for 1/sqrt(d)": "以 1/d 代替 1/sqrt(d)",
    "scale applied twice": "缩放了两次",
    "inverted scale": "缩放取了倒数",
    "d^-1/4 on one side only": "只在一侧乘了 d^-1/4",
    "1/sqrt(width) for 1/sqrt(d)": "以 1/sqrt(width) 代替 1/sqrt(d)",
    "twice the scale": "缩放的两倍",
    "half the scale": "缩放的一半",
    "log2(e) too many": "多乘了 log2(e)",
    "none of the usual mistakes": "不是常见的错误",
    "weights": "权重",
    "vectors": "向量",
    "q and k": "q 与 k",
}
"""What findings have as evidence, in Chinese. What is not here (configuration keys, rules) is the same in both languages."""


def fact(value: str) -> list[str]:
    """A word of a finding's evidence, in English and in Chinese."""
    return [value, _FACTS.get(value, value)]


def rule_name(rule: str) -> Text:
    """A rule by the name of `isotherm rules`; only «as is» is translated."""
    return AS_IS if rule == "as is" else Text(rule, rule)


def amount(model: Subject) -> Text:
    """What the model was given: «2 × 17 tokens», «1 picture 224 × 224 (197 positions)», «1 sound of length 16,000»."""
    batch, positions = digits.thousands(model.batch), digits.thousands(model.tokens)
    if model.size and model.unit in ("patches", "frames"):
        one, several = (_ONE_PICTURE, _PICTURES) if model.unit == "patches" else (_ONE_SOUND, _SOUNDS)
        what = (one if model.batch == 1 else several).format(
            batch=batch, size=" × ".join(map(digits.thousands, model.size[:2]))
        )
        return _WITH_POSITIONS.format(what=what, n=positions) if model.tokens else what
    one, several = _TOKENS if model.unit == "tokens" else _POSITIONS
    if model.batch == model.tokens == 1:
        return one
    return several.format(n=positions if model.batch == 1 else f"{batch} × {positions}")
