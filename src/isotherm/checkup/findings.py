"""Findings: what a person should act on, with evidence, the source of the threshold, and what to do."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import get_args

from isotherm.checkup import thresholds as limits
from isotherm.language import Text
from isotherm.probe import NotFinite
from isotherm.record import CheckRecord, Comparison, Finding, HeadStats, Layer, Severity, Subject, Unseen
from isotherm.theory import freezing_threshold

Evidence = dict[str, float | str | None]
FLOAT16_MAX = 65504.0
NAMES = 3
"""How many tensors a sentence names."""
LONGEST_NAME = 120
HEADS_NAMED = 4
"""A layer with more affected heads than this gets one finding for all of them."""


@dataclass(frozen=True)
class Kind:
    """A kind of finding: what is said, what to do, and where its threshold comes from."""

    message: Text
    advice: Text
    threshold: Text


ADVISED = Text("", "")
"""The advice of a finding about a temperature: `advised` writes it, after a trial."""
TOO_LARGE = Kind(
    Text(
        "{name}, head {head}: largest logit {logit:.4g}, above {limit:g}.",
        "{name} 第 {head} 头：最大 logit 为 {logit:.4g}，超过 {limit:g}。",
    ),
    ADVISED,
    limits.LARGE.reason,
)
KINDS = {
    "scale-mismatch": Kind(
        Text(
            "{name} multiplies q·k by {effective:.4g}; {rule} asks for {declared:.4g} ({ratio:.3g} times too {much}).",
            "{name} 对 q·k 的乘数是 {effective:.4g}；{rule} 要求 {declared:.4g}（{much} {ratio:.3g} 倍）。",
        ),
        Text("Find where the scale is lost or applied twice.", "查明缩放在何处丢失或重复。"),
        limits.SCALE_TOLERANCE.reason,
    ),
    "scale-unusual": Kind(
        Text(
            "{name} multiplies q·k by {effective:.4g}, which is {rule} and not the usual 1/√d; nothing declares a scale"
            " (layers of this kind: {count}).",
            "{name} 对 q·k 的乘数是 {effective:.4g}，即 {rule}，而非常用的 1/√d；没有任何声明（此类层共 {count} 个）。",
        ),
        Text(
            "If it is meant, declare it: declared='{declare}' in Python, --declared '{declare}' on the command line; then only"
            " departures from it are reported, as errors. If not, scale by 1/√d.",
            "若是有意为之，请声明：Python 中用 declared='{declare}'，命令行用 --declared '{declare}'；"
            "此后只有与之不符才会报告，且视为错误。若非有意，请乘以 1/√d。",
        ),
        limits.SCALE_TOLERANCE.reason,
    ),
    "implementations-disagree": Kind(
        Text(
            "{a} and {b} compute different attention: {statistic} differs by {difference:.3g} at layer {layer}.",
            "{a} 与 {b} 算出的注意力不同：第 {layer} 层的 {statistic} 相差 {difference:.3g}。",
        ),
        Text(
            "One of the two ignores part of the configuration. The audit shows which one agrees with the declared scale.",
            "其中一个忽略了部分配置。缩放审计显示哪一个与声明一致。",
        ),
        limits.SAME_STATISTICS.reason,
    ),
    "frozen-at-init": Kind(
        Text(
            "{name}, head {head}: untrained, and its logits already spread by {sigma:.3g}; the softmax over {n} keys is"
            " frozen beyond {edge:.3g}.",
            "{name} 第 {head} 头：尚未训练，logits 标准差已达 {sigma:.3g}；{n} 个键上的 softmax 超过 {edge:.3g} 即冻结。",
        ),
        ADVISED,
        limits.FREEZING,
    ),
    "logits-diverging": replace(TOO_LARGE, threshold=limits.DIVERGING.reason),
    "logits-large": TOO_LARGE,
    "half-precision-headroom": Kind(
        Text(
            "{name}, head {head}: logits reach {logit:.4g}; float16 holds {room:.2g} times that.",
            "{name} 第 {head} 头：logits 达到 {logit:.4g}；float16 只容得下其 {room:.2g} 倍。",
        ),
        Text(
            "Hold logits in float32 or bfloat16, or scale q before the product.",
            "用 float32 或 bfloat16 保存 logits，或在点积之前缩放 q。",
        ),
        limits.HEADROOM.reason,
    ),
    "stands-apart": Kind(
        Text(
            "{who}: the {what} of {side} are {ratio:.3g} times the median of its {count} siblings (robust score {score:.1f}).",
            "{who}：{side} 的{what}是其 {count} 个同类中位数的 {ratio:.3g} 倍（稳健分数 {score:.1f}）。",
        ),
        Text(
            "Compare {source} with the checkpoint it was made from: a merge applied twice, a wrong factor or a half-loaded file"
            " does this.",
            "请将 {source} 与其来源的检查点对照：合并了两次、系数有误或文件只加载了一半，都会如此。",
        ),
        limits.APART.reason,
    ),
    "invalid-values": Kind(
        Text("{name}, head {head}: {rows} rows meet NaN or Inf.", "{name} 第 {head} 头：{rows} 行出现 NaN 或 Inf。"),
        Text(
            "Look for NaN in this head's slice of the projections, then for overflow in the states that reach them.",
            "先在该头对应的投影权重中找 NaN，再看输入这些投影的状态是否溢出。",
        ),
        limits.FINITE,
    ),
    "invalid-output": Kind(
        Text("{where}", "{where}"),
        Text(
            "If weights are named, load them again from a sound checkpoint. If not, look for overflow here, above all in"
            " float16.",
            "若列出了权重，请从完好的检查点重新加载；否则检查此处是否溢出，float16 尤其可能。",
        ),
        limits.FINITE,
    ),
    "weights-missing": Kind(
        Text(
            "Tensors missing from the weights and initialised at random ({count}): {tensors}.",
            "权重中缺少 {count} 个张量，已随机初始化：{tensors}。",
        ),
        Text(
            "Compare the names in the checkpoint with the model's; a prefix or a part of the file may be lost. A new head is"
            " fine if you mean to train it.",
            "将检查点中的名称与模型的名称对照：可能是前缀不符，或文件有缺失。若是准备训练的新输出头，则无妨。",
        ),
        limits.LOADED,
    ),
    "weights-mismatched": Kind(
        Text(
            "Tensors of another shape in the weights, initialised at random ({count}): {tensors}.",
            "权重中有 {count} 个张量的形状不符，已随机初始化：{tensors}。",
        ),
        Text("Check the sizes in config.json against the checkpoint.", "请核对 config.json 中的尺寸与检查点。"),
        limits.LOADED,
    ),
    "weights-unexpected": Kind(
        Text(
            "Tensors of the weights without a place in the model, left out ({count}): {tensors}.",
            "权重中有 {count} 个张量在模型中没有位置，未被加载：{tensors}。",
        ),
        Text(
            "Heads of another task may be left out; layers, norms and biases of attention may not: check the architecture and"
            " sizes in config.json.",
            "其他任务的输出头可以不加载；注意力的层、归一化与偏置则不可，请核对 config.json 中的架构与尺寸。",
        ),
        limits.LOADED,
    ),
    "attention-across-batch": Kind(
        Text(
            "{name} attends across the batch: its softmax is over the {n} members of the batch, not over positions.",
            "{name} 跨批次做注意力：softmax 作用于批次中的 {n} 个成员，而不是各个位置。",
        ),
        Text(
            "If this is not meant, look for a lost axis or for nn.MultiheadAttention without batch_first=True: what the model"
            " says of one input now depends on the others.",
            "若非有意，请查看是否丢失了一个维度，或 nn.MultiheadAttention 未设 batch_first=True："
            "模型对一个输入的输出会受其他输入影响。",
        ),
        limits.SEPARATE,
    ),
    "nothing-seen": Kind(
        Text(
            "No attention was seen in this model, so nothing was checked.",
            "没有看到该模型的任何注意力，因此什么都没有检查。",
        ),
        Text(
            "If the model attends, run it uncompiled and unscripted, in one thread, with attention that calls softmax or"
            " F.scaled_dot_product_attention; or let it call isotherm.attention.",
            "若模型确有注意力，请以未编译、未脚本化的形式在单线程中运行，并让注意力调用 softmax 或"
            " F.scaled_dot_product_attention；也可改用 isotherm.attention。",
        ),
        limits.SEEN,
    ),
    "nothing-measured": Kind(
        Text(
            "No row of attention saw a key in this batch, so nothing was measured.",
            "该批次中没有任何一行注意力看到键，因此什么都没有测量。",
        ),
        Text("Give a batch with tokens that are not padding.", "请给出含有非填充词元的批次。"),
        limits.SEEN,
    ),
    "attention-not-seen": Kind(
        Text("{name} ({module}) was not seen: {why}", "没有看到 {name}（{module}）：{why}"),
        Text(
            "While you check, let the module call F.scaled_dot_product_attention, torch.softmax or isotherm.attention, in the"
            " thread that runs the forward.",
            "检查期间，请让该模块在运行前向的线程中调用 F.scaled_dot_product_attention、torch.softmax 或 isotherm.attention。",
        ),
        limits.SEEN,
    ),
}
HOW_TO_SEE = {
    "transformers": Text(
        "Load the model with attn_implementation='eager' or 'sdpa'.",
        "请以 attn_implementation='eager' 或 'sdpa' 加载模型。",
    ),
    "diffusers": Text(
        "Call set_default_attn_processor() or disable_xformers_memory_efficient_attention() on the model first.",
        "请先在模型上调用 set_default_attn_processor() 或 disable_xformers_memory_efficient_attention()。",
    ),
    "timm": Text("Call timm.layers.set_fused_attn(False) first.", "请先调用 timm.layers.set_fused_attn(False)。"),
    "x_transformers": Text("Build the model with attn_flash=False.", "请以 attn_flash=False 构建模型。"),
}
"""How to let attention be seen, by the library that a module's class comes from."""
CODES = tuple(KINDS)
OF_A_MODULE = Text(
    "The output of {name} has NaN or Inf; no attention before it has.",
    "{name} 的输出含有 NaN 或 Inf，它之前的注意力没有。",
)
OF_THE_MODEL = Text(
    "The model's output has NaN or Inf; no output of attention has.", "模型的输出含有 NaN 或 Inf，各注意力的输出没有。"
)
WITH_WEIGHTS = Text("{message} Weights with NaN or Inf: {tensors}.", "{message}含有 NaN 或 Inf 的权重：{tensors}。")


def findings(
    subject: Subject, layers: tuple[Layer, ...], comparisons: Iterable[Comparison], unseen: Iterable[Unseen]
) -> list[Finding]:
    """Findings about heads, in layer order, then about implementations and what was not seen."""
    found = [one for layer in layers for one in _condensed([*_heads(subject, layer)])]
    found += [_across_batch(layer) for layer in layers if layer.kind == "batch"]
    found += [_disagreement(comparison) for comparison in comparisons if not comparison.agree]
    found += [_unseen(module) for module in unseen]
    measured = any(head.rows or head.invalid for layer in layers for head in layer.head_stats)
    if measured or any(one.severity != "note" for one in found):
        return found
    return [finding("nothing-measured" if layers else "nothing-seen", "warning", (None, None), {}), *found]


def gravest_first(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors, then warnings, then notes, each in the order given."""
    order = get_args(Severity)
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))


def about_output(layers: tuple[Layer, ...], not_finite: NotFinite | None) -> Iterator[Finding]:
    """A finding about the first output with NaN or Inf. There is none if a row of attention met NaN or Inf before it."""
    if not_finite is None:
        return
    met = [layer.index for layer in layers if any(head.invalid for head in layer.head_stats)]
    last = len(layers) - 1 if not_finite.capture is None else not_finite.capture
    if met and met[0] <= last:
        return
    in_layer = not_finite.capture is not None and (not_finite.module or not layers[last].name)
    where = OF_A_MODULE.format(name=not_finite.module or layers[last].name) if in_layer else OF_THE_MODEL
    at = last if in_layer else None, None
    yield finding("invalid-output", "error", at, {"module": not_finite.module, "weights": None}, where=where)


def naming_weights(found: list[Finding], not_finite: Callable[[], tuple[str, ...]]) -> list[Finding]:
    """The findings, with the weights that are not finite named in the first one about NaN or Inf. Without such a finding
    `not_finite` is not called."""
    place = next((i for i, one in enumerate(found) if one.code in ("invalid-output", "invalid-values")), None)
    names = () if place is None else not_finite()
    if place is None or not names:
        return found
    first = found[place]
    tensors = listed(names)
    message = WITH_WEIGHTS.format(message=first.message, tensors=tensors)
    named = replace(first, message=message, evidence=first.evidence | {"weights": tensors.en})
    return [*found[:place], named, *found[place + 1 :]]


def listed(names: Sequence[str]) -> Text:
    """The first few names, and how many more there are."""
    shown = ", ".join(name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…" for name in names[:NAMES])
    if len(names) <= NAMES:
        return Text(shown, shown)
    return Text("{shown} and {n} more", "{shown} 等 {all} 个").format(shown=shown, n=len(names) - NAMES, all=len(names))


def finding(
    code: str, severity: Severity, at: tuple[int | None, int | None], evidence: Evidence, **words: object
) -> Finding:
    """A finding at a layer and head, with `words` for the places in its sentences."""
    kind, (layer, head) = KINDS[code], at
    message = kind.message.format(layer=layer, head=head, **words)
    return Finding(code, severity, layer, head, message, evidence, kind.advice.format(**words), kind.threshold)


def _across_batch(layer: Layer) -> Finding:
    evidence: Evidence = {"members": float(layer.keys)}
    return finding("attention-across-batch", "note", (layer.index, None), evidence, name=layer.name, n=layer.keys)


def _heads(subject: Subject, layer: Layer) -> Iterator[Finding]:
    edge = freezing_threshold(layer.keys) if layer.keys > 2 else inf
    for head in layer.head_stats:
        at = layer.index, head.head
        if head.invalid:
            evidence: Evidence = {"rows": float(head.invalid), "of": float(head.invalid + head.rows + head.empty)}
            yield finding("invalid-values", "error", at, evidence, name=layer.name, rows=head.invalid)
        if head.max_logit is None:
            continue
        if head.max_logit > limits.DIVERGING.value:
            yield _large(layer, head, "logits-diverging", "error", limits.DIVERGING.value)
        elif head.max_logit > limits.LARGE.value:
            yield _large(layer, head, "logits-large", "warning", limits.LARGE.value)
        if head.max_logit * limits.HEADROOM.value > FLOAT16_MAX:
            severity: Severity = "warning" if subject.dtype == "float16" else "note"
            evidence = {"max_logit": head.max_logit, "dtype": subject.dtype}
            words = {"name": layer.name, "logit": head.max_logit, "room": FLOAT16_MAX / head.max_logit}
            yield finding("half-precision-headroom", severity, at, evidence, **words)
        if subject.at_initialisation and (head.logit_std or 0) > edge:
            evidence = {"logit_std": head.logit_std, "freezing": edge, "gate_p50": head.jacobian_trace.p50}
            words = {"name": layer.name, "sigma": head.logit_std, "n": layer.keys, "edge": edge}
            yield finding("frozen-at-init", "error", at, evidence, **words)


def _large(layer: Layer, head: HeadStats, code: str, severity: Severity, limit: float) -> Finding:
    evidence: Evidence = {"max_logit": head.max_logit, "limit": limit, "logit_std": head.logit_std}
    words = {"name": layer.name, "logit": head.max_logit, "limit": limit}
    return finding(code, severity, (layer.index, head.head), evidence, **words)


def _condensed(found: list[Finding]) -> list[Finding]:
    """Replace a finding repeated by many heads with one for the layer, which shows the worst head's evidence."""
    kept = []
    for code in dict.fromkeys(finding.code for finding in found):
        same = [finding for finding in found if finding.code == code]
        if len(same) > HEADS_NAMED:
            worst = max(same, key=lambda finding: max(v for v in finding.evidence.values() if isinstance(v, float)))
            message = Text("{message} ({count} heads of this layer.)", "{message}（该层共 {count} 个头如此。）")
            same = [replace(worst, message=message.format(message=worst.message, count=len(same)))]
        kept += same
    return kept


def _disagreement(comparison: Comparison) -> Finding:
    words = {name: getattr(comparison, name) for name in ("statistic", "difference", "tolerance")}
    a, b = comparison.implementations
    return finding("implementations-disagree", "error", (comparison.layer, None), words, a=a, b=b, **words)


def _unseen(module: Unseen) -> Finding:
    words = {"name": module.name, "module": module.module, "why": module.why}
    found = finding("attention-not-seen", module.severity, (None, None), {"module": module.module}, **words)
    return replace(found, advice=HOW_TO_SEE.get(module.library, found.advice))


def fraction(record: CheckRecord, state: str) -> float:
    """The fraction of heads in a state."""
    states = [head.state for layer in record.layers for head in layer.head_stats]
    return states.count(state) / len(states) if states else 0.0  # type: ignore[arg-type]
