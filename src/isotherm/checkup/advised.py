"""Give layers and findings their advice: what each of them wants, and the sentence around what was found."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from statistics import median
from typing import Literal

from isotherm.checkup import thresholds as limits
from isotherm.checkup.advice import BELOW_LIMIT, Advisor, Found, Want
from isotherm.checkup.findings import HEADS_NAMED
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.record import Advice, Finding, Layer
from isotherm.theory import freezing_threshold

LARGE = Text(
    "In training: QK-clip (isotherm.scale.qk_clip) or QK-norm; in a trained model: {how}.",
    "训练中：使用 QK-clip（isotherm.scale.qk_clip）或 QK-norm；已训练的模型：{how}。",
)
FROZEN = Text(
    "The scale is too large for these weights (1/√d is usual), or W_q and W_k start too large: {how}.",
    "缩放对这些权重而言过大（通常为 1/√d），或 W_q、W_k 的初始值过大：{how}。",
)
MISMATCH = Text(
    "Find where the scale is lost or applied twice; until then {how}.",
    "查明缩放在何处丢失或重复；在此之前，{how}。",
)
NORMALISED = Text(
    "q and k are normalised, so rescaling the query weights does nothing: {how}.",
    "q 与 k 经过归一化，改查询权重无效：{how}。",
)
SENTENCES = {"logits-large": LARGE, "logits-diverging": LARGE, "frozen-at-init": FROZEN, "scale-mismatch": MISMATCH}


def advised(
    advisor: Advisor,
    captures: Sequence[Capture],
    layers: tuple[Layer, ...],
    found: Sequence[Finding],
    *,
    untrained: bool,
) -> tuple[tuple[Layer, ...], list[Finding]]:
    """Layers and findings with advice. `untrained` decides which logit spread a layer should have."""
    of_layers = {layer.index: want for layer in layers if (want := _spread(layer, untrained=untrained)) is not None}
    of_findings = [next(_wanted(finding, layers, of_layers), None) for finding in found]
    tried = advisor.find([*of_layers.values(), *(want for want in of_findings if want is not None)])
    with_advice = tuple(
        replace(layer, advice=_advice(of_layers[layer.index], tried)) if layer.index in of_layers else layer
        for layer in layers
    )
    told = [
        finding if want is None else _told(finding, want, tried[want], captures[want.layer])
        for finding, want in zip(found, of_findings, strict=True)
    ]
    return with_advice, told


def _advice(want: Want, tried: dict[Want, Found]) -> Advice:
    found = tried[want]
    return Advice(want.before, want.target, want.target / want.before, found.how, found.changes, found.achieved)


def _told(finding: Finding, want: Want, found: Found, capture: Capture) -> Finding:
    normalised = capture.q_factor.kind == "normalised" and want.statistic != "scale"
    sentence = NORMALISED if normalised else SENTENCES[finding.code]
    return replace(finding, advice=sentence.format(how=found.how), changes=found.changes)


def _spread(layer: Layer, *, untrained: bool) -> Want | None:
    """The logit spread that a layer should have, or None if it is fine.

    At initialisation the target is 1, which is what 1/√d is for, and more than 2 is wrong. A trained model may have learnt
    a wide spread: more than the freezing point σ_c is wrong, and the target is σ_c/2, where rows still share their weight.
    """
    spreads = [head.logit_std for head in layer.head_stats if head.logit_std is not None]
    if not spreads or layer.keys < 3:
        return None
    spread, edge = median(spreads), freezing_threshold(layer.keys)
    target, limit = (1.0, 2.0) if untrained else (edge / 2, edge)
    return Want(layer.index, None, "logit_std", spread, target) if spread > limit else None


def _wanted(finding: Finding, layers: tuple[Layer, ...], of_layers: dict[int, Want]) -> Iterator[Want]:
    """What a finding asks for, if it asks for another temperature."""
    if finding.code not in SENTENCES or finding.layer is None or finding.severity == "note":
        return
    layer = layers[finding.layer]
    if finding.code == "scale-mismatch":
        if layer.scale.effective is not None and layer.scale.declared is not None:
            yield Want(layer.index, None, "scale", layer.scale.effective, layer.scale.declared)
        return
    if finding.head is None:
        return
    if finding.code == "frozen-at-init":
        edge, want = freezing_threshold(layer.keys), of_layers.get(layer.index)
        widest = max(head.logit_std or 0.0 for head in layer.head_stats)
        if want is not None and widest * want.target / want.before < edge:
            yield want  # what the layer wants frees its heads as well
            return
        heads = {head.head: head.logit_std or 0.0 for head in layer.head_stats}
        yield _of_heads(
            finding, "logit_std", {head: spread for head, spread in heads.items() if spread > edge}, edge / 2
        )
        return
    above, most = limits.LARGE.value, limits.DIVERGING.value
    above, most = (most, inf) if finding.code == "logits-diverging" else (above, most)
    logits = {head.head: head.max_logit or 0.0 for head in layer.head_stats}
    affected = {head: logit for head, logit in logits.items() if above < logit <= most}
    yield _of_heads(finding, "max_logit", affected, BELOW_LIMIT * limits.LARGE.value)


def _of_heads(
    finding: Finding, statistic: Literal["logit_std", "max_logit"], affected: dict[int, float], target: float
) -> Want:
    """What one finding wants of its head or, if it speaks for many heads, of all that are affected."""
    assert finding.layer is not None
    assert finding.head is not None
    if len(affected) <= HEADS_NAMED:
        return Want(finding.layer, (finding.head,), statistic, affected[finding.head], target)
    return Want(finding.layer, tuple(affected), statistic, max(affected.values()), target)
