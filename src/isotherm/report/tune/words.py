"""What the views of a tuned model say: sentences made of a record."""

from typing import NamedTuple

from isotherm.language import Text
from isotherm.record.tune import TemperatureGradient, TunedFactor, TuneRecord, TuneStep
from isotherm.report.digits import number, thousands

TASKS = {
    "next": Text("next token", "下一词元"),
    "masked": Text("masked token", "掩码词元"),
    "pairs": Text("retrieval of pairs", "配对检索"),
    "auto": Text("–", "–"),
}
UNITS = {
    "next": Text("nats a token", "奈特/词元"),
    "masked": Text("nats a masked token", "奈特/掩码词元"),
    "pairs": Text("nats a pair", "奈特/对"),
    "auto": Text("nats", "奈特"),
}
KEEP = Text("Leave the scale as it is: no gain beyond noise", "保持现有缩放：没有超出噪声的收益")
KEEP_SOME = Text(
    "Leave the scale as it is at {keep} tokens; a gain beyond noise at {change}",
    "在 {keep} 词元处保持现有缩放；在 {change} 处有超出噪声的收益",
)
CHANGE = Text("Multiply the scale by {factor} ({low} to {high})", "将缩放乘以 {factor}（{low} 至 {high}）")
CHANGE_OPEN = Text(
    "A factor of {factor} gains, and one beyond may gain more: it is the last that was tried",
    "倍数 {factor} 有益，再远或许更好：它是所试的最后一个",
)
CHANGE_ALL = Text("A gain beyond noise at every length", "在每个长度上都有超出噪声的收益")
CHANGE_STEPS = Text(
    "{n} of {steps} steps by {per} gain beyond noise: the loss falls from {before} to {after}",
    "逐{per}的 {steps} 步中有 {n} 步的收益超出噪声：损失从 {before} 降至 {after}",
)
PER = {True: Text("head", "头"), False: Text("layer", "层")}
WORTH = Text("gains", "有益")
NOT_WORTH = Text("leave as it is", "保持原样")
OPEN = Text("interval open", "区间未闭合")
LAW_SUPPORTED = Text("supported", "受支持")
LAW_WORSE = Text("worse by {by}", "差 {by}")
LAW_NAMES = {
    "constant": Text("constant", "常数"),
    "sqrt-log": Text("√log n", "√log n 律"),
    "log": Text("log n", "log n 律"),
    "log-squared": Text("log² n", "log² n 律"),
    "yarn": Text("YaRN", "YaRN"),
}
LAWS_NONE = Text(
    "No law of these follows the factors (χ² {chi} over {freedom}).",
    "这些规律都不符合（χ² 为 {chi}，自由度 {freedom}）。",
)
LAWS_ONE = Text("The lengths support {law} alone.", "数据只支持 {law}。")
LAWS_SEVERAL = Text("The lengths cannot tell these laws apart: {laws}.", "这些长度无法区分以下规律：{laws}。")
LAWS_ABOUT = Text(
    "Each law has one free constant. A law is supported if no other has a χ² smaller by more than 3.84.",
    "每条规律只有一个自由常数。若没有其他规律的 χ² 比它小 3.84 以上，则视为受支持。",
)


def verdict(record: TuneRecord) -> Text:
    """What to do, in one sentence."""
    kept = [step for step in record.steps if step.best.worth]
    if kept and record.gradient is not None:
        per = PER[any(step.head is not None for step in record.steps)]
        before, after = number(record.gradient.loss, 4), number(kept[-1].loss, 4)
        return CHANGE_STEPS.format(n=len(kept), steps=len(record.steps), per=per, before=before, after=after)
    change = [one for one in record.lengths if one.best.worth]
    if not change:
        return KEEP
    if len(record.lengths) == 1:
        best = record.lengths[0].best
        return (CHANGE if best.enclosed else CHANGE_OPEN).format(**said(best))
    keep = [one for one in record.lengths if not one.best.worth]
    if not keep:
        return CHANGE_ALL
    named = {"keep": keep, "change": change}
    return KEEP_SOME.format(**{word: ", ".join(thousands(one.length) for one in some) for word, some in named.items()})


def said(best: TunedFactor) -> dict[str, str]:
    """A factor and its interval."""
    return {"factor": number(best.factor, 3), "low": number(best.low, 3), "high": number(best.high, 3)}


def interval(best: TunedFactor) -> str:
    """«0.93–1.04»."""
    return f"{number(best.low, 3)}–{number(best.high, 3)}"


def gain(best: TunedFactor) -> str:
    """The gain and half the width of its interval."""
    if best.gain_high is None:
        return number(best.gain, 2)
    return f"{number(best.gain, 2)} ± {number(best.gain_high - best.gain, 2)}"


def judged(best: TunedFactor) -> Text:
    """Whether the factor is worth it."""
    if best.worth:
        return WORTH
    return NOT_WORTH if best.enclosed else OPEN


SURE = Text(
    "Beyond noise, for all {n} heads at once: {heads}.",
    "对全部 {n} 个头一并考虑，超出噪声的有：{heads}。",
)
NONE_SURE = Text(
    "No head is beyond noise, for all {n} at once.",
    "对全部 {n} 个头一并考虑，没有哪个头超出噪声。",
)
NO_MARGINS = Text(
    "Too few documents to tell what is noise, so no head is judged.",
    "文档太少，无法判断什么是噪声，因此不评判任何头。",
)
NAMED = 6
"""How many heads are named."""


class Steep(NamedTuple):
    """A head whose gradient is beyond noise: the layer's number and name, the head, the gradient and its margin."""

    row: int
    layer: str
    head: int
    value: float
    margin: float


def sure(found: TemperatureGradient) -> list[Steep]:
    """The heads beyond noise when all are looked at, the steepest first."""
    times = found.beyond
    steep = [
        Steep(row, layer, head, value, margin)
        for row, (layer, values, margins) in enumerate(zip(found.layers, found.gradient, found.margin, strict=False))
        for head, (value, margin) in enumerate(zip(values, margins, strict=False))
        if value is not None and margin is not None and times is not None and abs(value) > times * margin
    ]
    return sorted(steep, key=lambda one: -abs(one.value))


def of_heads(found: TemperatureGradient) -> Text:
    """Which heads are beyond noise, in one sentence."""
    heads, steep = sum(map(len, found.gradient)), sure(found)
    if not steep:
        return NO_MARGINS if found.beyond is None else NONE_SURE.format(n=heads)
    names = [Text(f"layer {one.row} head {one.head}", f"第 {one.row} 层第 {one.head} 头") for one in steep[:NAMED]]
    if more := len(steep) - len(names):
        names.append(Text(f"{more} more", f"另外 {more} 个"))
    listed = Text(", ".join(name.en for name in names), "、".join(name.zh for name in names))
    return SURE.format(n=heads, heads=listed)


def laws(record: TuneRecord) -> Text | None:
    """What the lengths say about laws; None where there are too few."""
    if not record.laws:
        return None
    if record.law_fits is False:
        best = record.laws[0]
        return LAWS_NONE.format(chi=number(best.chi_squared, 2), freedom=best.freedom)
    supported = [LAW_NAMES.get(law.name, Text(law.name, law.name)) for law in record.laws if law.supported]
    if len(supported) == 1:
        return LAWS_ONE.format(law=supported[0])
    return LAWS_SEVERAL.format(
        laws=Text(", ".join(law.en for law in supported), "、".join(law.zh for law in supported))
    )


def place(step: TuneStep) -> Text:
    """The layer of a step, and its head."""
    if step.head is None:
        return Text(step.layer, step.layer)
    return Text("{layer}, head {head}", "{layer} 第 {head} 头").format(layer=step.layer, head=step.head)


def numbered(step: TuneStep, record: TuneRecord) -> Text:
    """The same with the layer's number among those tuned, where a long name would be cut."""
    if step.layer not in record.layers:
        return place(step)
    row = record.layers.index(step.layer)
    if step.head is None:
        return Text(f"layer {row}", f"第 {row} 层")
    return Text(f"layer {row}, head {step.head}", f"第 {row} 层第 {step.head} 头")


def shape(record: TuneRecord) -> Text:
    """How much was tuned on how much."""
    documents = max((one.documents for one in record.lengths), default=0)
    template = Text(
        "{task} · {layers} layers · up to {documents} documents a length · {evaluations} evaluations · {dtype} · {device}"
        " · {seconds} s",
        "{task} · {layers} 层 · 每个长度至多 {documents} 篇文档 · {evaluations} 次评估 · {dtype} · {device} · {seconds} 秒",
    )
    return template.format(
        task=TASKS[record.task],
        layers=len(record.layers),
        documents=documents,
        evaluations=record.evaluations,
        dtype=record.dtype,
        device=record.device,
        seconds=number(record.seconds, 2),
    )
