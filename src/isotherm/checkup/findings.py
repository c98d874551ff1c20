"""Findings: what a person should act on, with evidence, the source of the threshold, and what to do."""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from isotherm.checkup import thresholds as limits
from isotherm.language import Text
from isotherm.record import CheckRecord, Comparison, Finding, HeadStats, Layer, Severity, Subject, Unseen
from isotherm.theory import freezing_threshold

FLOAT16_MAX = 65504.0
HEADS_NAMED = 4
"""A layer with more affected heads than this gets one finding for all of them."""
CODES = (
    "scale-mismatch",
    "implementations-disagree",
    "frozen-at-init",
    "logits-diverging",
    "logits-large",
    "half-precision-headroom",
    "invalid-values",
    "attention-not-seen",
)


def findings(
    subject: Subject, layers: tuple[Layer, ...], comparisons: tuple[Comparison, ...], unseen: tuple[Unseen, ...]
) -> tuple[Finding, ...]:
    """All findings, gravest first, then in layer order."""
    found = [finding for layer in layers for finding in (*_scale(layer), *_condensed([*_heads(subject, layer)]))]
    found += [*_disagreements(comparisons), *_unseen(unseen)]
    order = get_args(Severity)
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))


def _scale(layer: Layer) -> Iterator[Finding]:
    scale = layer.scale
    if scale.agrees is not False or scale.effective is None or scale.declared is None:
        return
    ratio = scale.effective / scale.declared
    by_convention = scale.source == "convention"
    yield Finding(
        code="scale-mismatch",
        severity="warning" if by_convention else "error",
        layer=layer.index,
        head=None,
        message=Text(
            "{name} multiplies q·k by {effective:.4g}; {rule} asks for {declared:.4g} ({ratio:.3g} times too {much}).",
            "{name} 对 q·k 的乘数是 {effective:.4g}；{rule} 要求 {declared:.4g}（{much} {ratio:.3g} 倍）。",
        ).format(
            name=layer.name,
            effective=scale.effective,
            rule=scale.rule,
            declared=scale.declared,
            ratio=ratio if ratio > 1 else 1 / ratio,
            much=Text("much", "偏大") if ratio > 1 else Text("little", "偏小"),
        ),
        evidence={
            "passed": scale.passed,
            "effective": scale.effective,
            "declared": scale.declared,
            "ratio": ratio,
            "likely": _likely(ratio, scale.declared, layer.head_dim),
            "source": scale.source,
        },
        advice=Text(
            "Find where the scale is lost or applied twice; until then multiply the attention function's scaling by {fix:.4g}.",
            "查明缩放在何处丢失或重复；在此之前，把注意力函数的 scaling 乘以 {fix:.4g}。",
        ).format(fix=1 / ratio),
        threshold=limits.SCALE_TOLERANCE.reason,
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
    for head in layer.head_stats:
        if head.invalid:
            yield _invalid(layer, head)
        if head.max_logit is None:
            continue
        if head.max_logit > limits.DIVERGING.value:
            yield _large(layer, head, "logits-diverging", "error", limits.DIVERGING)
        elif head.max_logit > limits.LARGE.value:
            yield _large(layer, head, "logits-large", "warning", limits.LARGE)
        if head.max_logit * limits.HEADROOM.value > FLOAT16_MAX:
            yield _headroom(subject, layer, head)
        if subject.at_initialisation and layer.keys > 2 and (head.logit_std or 0) > freezing_threshold(layer.keys):
            yield _frozen(layer, head)


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


def _invalid(layer: Layer, head: HeadStats) -> Finding:
    return Finding(
        "invalid-values",
        "error",
        layer.index,
        head.head,
        Text(
            "{name}, head {head}: {rows} rows meet NaN or Inf.", "{name} 第 {head} 头：{rows} 行出现 NaN 或 Inf。"
        ).format(name=layer.name, head=head.head, rows=head.invalid),
        {"rows": float(head.invalid), "of": float(head.invalid + head.rows + head.empty)},
        Text(
            "Look for NaN in this head's slice of the projections, then for overflow in the states that reach them.",
            "先在该头对应的投影权重中找 NaN，再看输入这些投影的状态是否溢出。",
        ),
        limits.FINITE,
    )


def _large(layer: Layer, head: HeadStats, code: str, severity: Severity, limit: limits.Threshold) -> Finding:
    return Finding(
        code,
        severity,
        layer.index,
        head.head,
        Text(
            "{name}, head {head}: largest logit {logit:.4g}, past {limit:g}.",
            "{name} 第 {head} 头：最大 logit 为 {logit:.4g}，超过 {limit:g}。",
        ).format(name=layer.name, head=head.head, logit=head.max_logit, limit=limit.value),
        {"max_logit": head.max_logit, "limit": limit.value, "logit_std": head.logit_std},
        Text(
            "In training: QK-clip (isotherm.scale.qk_clip) or QK-norm; in a trained model: multiply this head's query"
            " weights by {gamma:.3g}.",
            "训练中：使用 QK-clip（isotherm.scale.qk_clip）或 QK-norm；已训练的模型：将该头的查询权重乘以 {gamma:.3g}。",
        ).format(gamma=limits.LARGE.value / (head.max_logit or 1.0)),
        limit.reason,
    )


def _headroom(subject: Subject, layer: Layer, head: HeadStats) -> Finding:
    in_half = subject.dtype == "float16"
    return Finding(
        "half-precision-headroom",
        "warning" if in_half else "note",
        layer.index,
        head.head,
        Text(
            "{name}, head {head}: logits reach {logit:.4g}; float16 holds {room:.2g} times that.",
            "{name} 第 {head} 头：logits 达到 {logit:.4g}；float16 只容得下其 {room:.2g} 倍。",
        ).format(name=layer.name, head=head.head, logit=head.max_logit, room=FLOAT16_MAX / (head.max_logit or 1.0)),
        {"max_logit": head.max_logit, "dtype": subject.dtype},
        Text(
            "Hold logits in float32 or bfloat16, or scale q before the product.",
            "用 float32 或 bfloat16 保存 logits，或在点积之前缩放 q。",
        ),
        limits.HEADROOM.reason,
    )


def _frozen(layer: Layer, head: HeadStats) -> Finding:
    edge = freezing_threshold(layer.keys)
    return Finding(
        "frozen-at-init",
        "error",
        layer.index,
        head.head,
        Text(
            "{name}, head {head}: untrained, and its logits already spread by {sigma:.3g}; the softmax over {n} keys is"
            " frozen beyond {edge:.3g}.",
            "{name} 第 {head} 头：尚未训练，logits 标准差已达 {sigma:.3g}；{n} 个键上的 softmax 超过 {edge:.3g} 即冻结。",
        ).format(name=layer.name, head=head.head, sigma=head.logit_std, n=layer.keys, edge=edge),
        {"logit_std": head.logit_std, "freezing": edge, "gate_p50": head.jacobian_trace.p50},
        Text("Scale by 1/√d, or start W_q and W_k smaller.", "乘以 1/√d，或减小 W_q、W_k 的初始值。"),
        limits.FREEZING,
    )


def _disagreements(comparisons: tuple[Comparison, ...]) -> Iterator[Finding]:
    for comparison in comparisons:
        if comparison.agree:
            continue
        a, b = comparison.implementations
        yield Finding(
            "implementations-disagree",
            "error",
            comparison.layer,
            None,
            Text(
                "{a} and {b} compute different attention: {statistic} differs by {difference:.3g} at layer {layer}.",
                "{a} 与 {b} 算出的注意力不同：第 {layer} 层的 {statistic} 相差 {difference:.3g}。",
            ).format(
                a=a, b=b, statistic=comparison.statistic, difference=comparison.difference, layer=comparison.layer
            ),
            {"statistic": comparison.statistic, "difference": comparison.difference, "tolerance": comparison.tolerance},
            Text(
                "One of the two ignores part of the configuration. The audit shows which agrees with what is declared.",
                "其中一个忽略了部分配置。缩放审计显示哪一个与声明一致。",
            ),
            limits.SAME_STATISTICS.reason,
        )


def _unseen(unseen: tuple[Unseen, ...]) -> Iterator[Finding]:
    for module in unseen:
        yield Finding(
            "attention-not-seen",
            "warning",
            None,
            None,
            Text("{name} ({module}) was not seen: {why}", "没有看到 {name}（{module}）：{why}").format(
                name=module.name, module=module.module, why=module.why
            ),
            {"module": module.module},
            Text(
                "Try another implementation (attn_implementation='eager'), or hand isotherm.attention to the module.",
                "换一种实现（attn_implementation='eager'），或让该模块改用 isotherm.attention。",
            ),
            limits.SEEN,
        )


def fraction(record: CheckRecord, state: str) -> float:
    """The fraction of heads in a state."""
    states = [head.state for layer in record.layers for head in layer.head_stats]
    return states.count(state) / len(states) if states else 0.0  # type: ignore[arg-type]
