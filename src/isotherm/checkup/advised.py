"""Give layers and findings their advice: what each of them wants, and the sentence around what was found."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from statistics import median
from typing import Literal

from isotherm.checkup import thresholds as limits
from isotherm.checkup.advice import BELOW_LIMIT, Advisor, Found, Want
from isotherm.checkup.findings import HEADS_NAMED
from isotherm.checkup.products import Products
from isotherm.checkup.ways import Side
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
PERHAPS_FROZEN = Text(
    "Unless a bias makes this, the scale is too large for these weights (1/√d is usual), or W_q and W_k start too large:"
    " {how}.",
    "若不是偏置所致，则缩放对这些权重而言过大（通常为 1/√d），或 W_q、W_k 的初始值过大：{how}。",
)
MISMATCH = Text(
    "Find where the scale is lost or applied twice; until then {how}.",
    "查明缩放在何处丢失或重复；在此之前，{how}。",
)
NORMALISED = Text(
    "q and k are normalised, so rescaling the query weights does nothing: {how}.",
    "q 与 k 经过归一化，改查询权重无效：{how}。",
)
APART = Text("{advice} To bring it to the median of its siblings: {how}.", "{advice}若要使其回到同类的中位数：{how}。")
SIDES: dict[object, Side] = {"q": "q", "k": "k"}
SENTENCES = {"logits-large": LARGE, "logits-diverging": LARGE, "frozen-at-init": FROZEN, "scale-mismatch": MISMATCH}


def advised(
    advisor: Advisor,
    captures: Sequence[Capture],
    layers: tuple[Layer, ...],
    found: Sequence[Finding],
    products: Products,
    *,
    untrained: bool,
) -> tuple[tuple[Layer, ...], list[Finding]]:
    """Layers and findings with advice. `untrained` decides which logit spread a layer should have."""
    wanted = (_spread(layer, products, untrained=untrained) for layer in layers)
    of_layers = {want.layer: want for want in wanted if want is not None}
    apart = {want.layer: want for want in map(_alone, found) if want is not None and want.heads is None}
    of_findings = [_alone(finding) or _wanted(finding, layers, of_layers | apart, captures) for finding in found]
    tried = advisor.find([*of_layers.values(), *(want for want in of_findings if want is not None)])
    of_findings = [
        want and _worst(want, finding, of_findings, found, tried)
        for want, finding in zip(of_findings, found, strict=True)
    ]
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
    if finding.code == "stands-apart":
        advice = APART.format(advice=finding.advice, how=found.how) if found.changes else finding.advice
        return replace(finding, advice=advice, changes=found.changes)
    normalised = capture.q_factor.kind == "normalised" and want.statistic != "scale"
    unknown = finding.code == "frozen-at-init" and finding.severity == "warning"
    sentence = NORMALISED if normalised else PERHAPS_FROZEN if unknown else SENTENCES[finding.code]
    return replace(finding, advice=sentence.format(how=found.how), changes=found.changes)


def _spread(layer: Layer, products: Products, *, untrained: bool) -> Want | None:
    """The logit spread that a layer should have, or None if it is fine, or if q·k makes less of it than that.

    At initialisation the target is 1, which is what 1/√d is for, and more than 2 is wrong. A trained model may have learnt
    a wide spread: more than the freezing point σ_c is wrong, and the target is σ_c/2, where rows still share their weight.
    """
    spreads = [head.logit_std for head in layer.head_stats if head.logit_std is not None]
    if not spreads or layer.keys < 3:
        return None
    spread, edge = median(spreads), freezing_threshold(layer.keys)
    target, limit = (1.0, 2.0) if untrained else (edge / 2, edge)
    if spread <= limit:
        return None
    alone = products.spreads(layer.index)
    return Want(layer.index, None, "logit_std", spread, target) if alone is None or median(alone) > limit else None


def _worst(
    want: Want,
    finding: Finding,
    wants: Sequence[Want | None],
    found: Sequence[Finding],
    tried: dict[Want, Found],
) -> Want:
    """The want to answer a finding with: where heads share what is changed, that of the layer's hottest head. What helps it
    helps all of them, and several changes of one thing would add up."""
    if want.heads is None or want.statistic == "size" or tried[want].own:
        return want
    alike = [
        other
        for other, its in zip(wants, found, strict=True)
        if other is not None and (its.code, its.layer) == (finding.code, finding.layer)
    ]
    return max(alike, key=lambda other: other.before / other.target)


def _alone(finding: Finding) -> Want | None:
    """What a layer or head whose q or k stands apart asks for: the size that its siblings have. If both do, their sizes are
    those of one weight, and nothing is asked for."""
    ratio, side = finding.evidence.get("ratio"), finding.evidence.get("of")
    if finding.code != "stands-apart" or side not in SIDES or finding.layer is None or not isinstance(ratio, float):
        return None
    heads = None if finding.head is None else (finding.head,)
    return Want(finding.layer, heads, "size", ratio, 1.0, SIDES[side])


def _wanted(
    finding: Finding, layers: tuple[Layer, ...], of_layers: dict[int, Want], captures: Sequence[Capture]
) -> Want | None:
    """What a finding asks for; None if it does not ask for another temperature."""
    if finding.code not in SENTENCES or finding.layer is None or finding.severity == "note":
        return None
    layer, problem = layers[finding.layer], captures[finding.layer].problem
    if finding.code == "scale-mismatch":
        effective, declared = layer.scale.effective, layer.scale.declared
        return Want(layer.index, None, "scale", effective, declared) if effective and declared else None
    statistic, above, most, target = _bounds(finding.code, layer)
    values = {head.head: getattr(head, statistic) or 0.0 for head in layer.head_stats}
    whole = of_layers.get(layer.index)
    plain = problem.bias is None and problem.softcap is None
    if whole is not None and (whole.statistic == "size" or (plain and _alike(layer, whole.before))):
        ceiling = above if statistic == "logit_std" else limits.LARGE.value
        if max(values.values()) * whole.target / whole.before < ceiling:
            return whole  # what the layer wants helps all of its heads
    affected = {head: value for head, value in values.items() if above < value <= most}
    if finding.head is None or finding.head not in affected:
        return None
    above_siblings = finding.evidence.get("times_siblings")
    if isinstance(above_siblings, float) and above_siblings > 1:
        return Want(
            layer.index, (finding.head,), statistic, affected[finding.head], affected[finding.head] / above_siblings
        )
    if len(affected) <= HEADS_NAMED:
        return Want(layer.index, (finding.head,), statistic, affected[finding.head], target)
    return Want(layer.index, tuple(affected), statistic, max(affected.values()), target)


def _alike(layer: Layer, spread: float) -> bool:
    """Whether no head of a layer is much cooler or hotter than the layer as a whole."""
    return all(spread / 2 < (head.logit_std or 0.0) < spread * 2 for head in layer.head_stats)


def _bounds(code: str, layer: Layer) -> tuple[Literal["logit_std", "max_logit"], float, float, float]:
    """The statistic that a finding is about, the values above which and up to which it is made, and the value to aim at."""
    if code == "frozen-at-init":
        edge = freezing_threshold(layer.keys)
        return "logit_std", edge, inf, edge / 2
    target = BELOW_LIMIT * limits.LARGE.value
    if code == "logits-diverging":
        return "max_logit", limits.DIVERGING.value, inf, target
    return "max_logit", limits.LARGE.value, limits.DIVERGING.value, target
