"""Findings: what a person should act on, with evidence, the source of the threshold, and what to do."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import get_args

from isotherm.checkup import thresholds as limits
from isotherm.checkup.audit import NORMALISED, UNDECLARED_NORM
from isotherm.checkup.declare import CONVENTION
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


TOO_LARGE = Kind(
    Text(
        "{name}, head {head}: largest logit {logit:.4g}, above {limit:g}.",
        "{name} 第 {head} 头：最大 logit 为 {logit:.4g}，超过 {limit:g}。",
    ),
    Text(
        "In training: QK-clip (isotherm.scale.qk_clip) or QK-norm; in a trained model: multiply this head's query"
        " weights by {gamma:.3g}.",
        "训练中：使用 QK-clip（isotherm.scale.qk_clip）或 QK-norm；已训练的模型：将该头的查询权重乘以 {gamma:.3g}。",
    ),
    limits.LARGE.reason,
)
KINDS = {
    "scale-mismatch": Kind(
        Text(
            "{name} multiplies q·k by {effective:.4g}; {rule} asks for {declared:.4g} ({ratio:.3g} times too {much}).",
            "{name} 对 q·k 的乘数是 {effective:.4g}；{rule} 要求 {declared:.4g}（{much} {ratio:.3g} 倍）。",
        ),
        Text(
            "Find where the scale is lost or applied twice; until then multiply the attention function's scaling by {fix:.4g}.",
            "查明缩放在何处丢失或重复；在此之前，把注意力函数的 scaling 乘以 {fix:.4g}。",
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
        Text("Scale by 1/√d, or start W_q and W_k smaller.", "乘以 1/√d，或减小 W_q、W_k 的初始值。"),
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
    "attention-not-seen": Kind(
        Text("{name} ({module}) was not seen: {why}", "没有看到 {name}（{module}）：{why}"),
        Text(
            "Try another implementation (attn_implementation='eager'), or let the module call isotherm.attention.",
            "换一种实现（attn_implementation='eager'），或让该模块改用 isotherm.attention。",
        ),
        limits.SEEN,
    ),
}
CODES = tuple(KINDS)
UNDER_A_NORM = Text(
    "q and k are normalised, so rescaling the query weights does nothing: multiply the gain of the query norm, or the learned"
    " temperature, by {gamma:.3g}.",
    "q 与 k 经过归一化，改查询权重无效：请将查询归一化的增益（或可学习的温度）乘以 {gamma:.3g}。",
)
"""Advice in place of a finding's own where a norm stands between the projection and the logits."""
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
    """Findings about scales, heads, implementations and what was not seen, in layer order."""
    found = [one for layer in layers for one in (*_scale(layer), *_condensed([*_heads(subject, layer)]))]
    found += [_across_batch(layer) for layer in layers if layer.kind == "batch"]
    found += [_disagreement(comparison) for comparison in comparisons if not comparison.agree]
    found += [_unseen(module) for module in unseen]
    return found if layers or found else [finding("nothing-seen", "warning", (None, None), {})]


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


def _scale(layer: Layer) -> Iterator[Finding]:
    scale = layer.scale
    if scale.agrees is not False or scale.effective is None or scale.declared is None:
        return
    ratio = scale.effective / scale.declared
    evidence = {
        "passed": scale.passed,
        "effective": scale.effective,
        "declared": scale.declared,
        "ratio": ratio,
        "likely": _likely(ratio, scale.declared, layer.head_dim),
        "source": scale.source,
    }
    yield finding(
        "scale-mismatch",
        "warning" if scale.source == CONVENTION else "error",
        (layer.index, None),
        evidence,
        name=layer.name,
        effective=scale.effective,
        rule=scale.rule,
        declared=scale.declared,
        ratio=ratio if ratio > 1 else 1 / ratio,
        much=Text("much", "偏大") if ratio > 1 else Text("little", "偏小"),
        fix=1 / ratio,
    )


def _likely(ratio: float, declared: float, head_dim: int) -> str:
    """Name the common mistake that would give this ratio."""
    usual = {
        "scale missing": 1 / declared,
        "scale applied twice": declared,
        "1/d for 1/sqrt(d)": head_dim**-0.5,
        "inverted scale": 1 / declared**2,
    }
    near = [name for name, expected in usual.items() if abs(ratio / expected - 1) < limits.SCALE_TOLERANCE.value]
    return near[0] if near else "none of the usual mistakes"


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
            frozen = finding("frozen-at-init", "error", at, evidence, **words)
            yield _advised(frozen, layer, edge / 2 / (head.logit_std or 1.0))


def _large(layer: Layer, head: HeadStats, code: str, severity: Severity, limit: float) -> Finding:
    evidence: Evidence = {"max_logit": head.max_logit, "limit": limit, "logit_std": head.logit_std}
    gamma = limits.LARGE.value / (head.max_logit or 1.0)
    words = {"name": layer.name, "logit": head.max_logit, "limit": limit, "gamma": gamma}
    return _advised(finding(code, severity, (layer.index, head.head), evidence, **words), layer, gamma)


def _advised(found: Finding, layer: Layer, gamma: float) -> Finding:
    """The finding with the advice that works in this layer."""
    normalised = layer.scale.note in (NORMALISED, UNDECLARED_NORM)
    return replace(found, advice=UNDER_A_NORM.format(gamma=gamma)) if normalised else found


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
    return finding("attention-not-seen", "warning", (None, None), {"module": module.module}, **words)


def fraction(record: CheckRecord, state: str) -> float:
    """The fraction of heads in a state."""
    states = [head.state for layer in record.layers for head in layer.head_stats]
    return states.count(state) / len(states) if states else 0.0  # type: ignore[arg-type]
