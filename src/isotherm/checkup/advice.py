"""How to bring a layer to the right temperature in this model, and what a longer context would do to it."""

from math import log
from statistics import median

from isotherm.checkup.declare import Declared, LayerPlace
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.record import Advice, Context, HeadStats, Layer
from isotherm.theory import freezing_threshold, gaussian_row

CONFIG = Text("set {key} = {value} in the configuration", "在配置中设 {key} = {value}")
HANDED = Text("pass scaling = {value:.4g} to the attention function", "把 scaling = {value:.4g} 传给注意力函数")
WEIGHT = Text(
    "multiply {source}.weight (and its bias) by {factor:.3g}", "将 {source}.weight（及其偏置）乘以 {factor:.3g}"
)
GAIN = Text(
    "multiply the gain of the layer's query norm by {factor:.3g}: rescaling the projection does nothing, the norm cancels that",
    "将该层查询归一化的增益乘以 {factor:.3g}：改投影权重无效，归一化会抵消它",
)
PART = Text(
    "multiply the part of {source}.weight (and its bias) that gives the queries by {factor:.3g}, and leave the rest",
    "将 {source}.weight（及其偏置）中产生查询的那部分乘以 {factor:.3g}，其余不动",
)
"""For a projection that gives keys as well, and perhaps values."""
POWERS = {"query_pre_attn_scalar": -2, "attention_multiplier": 1}
"""Configuration keys that set the scale. To multiply the scale by f, multiply the key's value by f to this power."""
ALTERNATIVELY = Text("{first}; or {second}", "{first}；或者{second}")


def advise(
    heads: tuple[HeadStats, ...],
    keys: int,
    capture: Capture,
    declared: Declared,
    place: LayerPlace,
    *,
    at_initialisation: bool,
) -> Advice | None:
    """The factor that brings a layer's logit spread to its target, or None if the spread is fine.

    At initialisation the target is 1, which is what 1/√d is for, and more than 2 is wrong. A trained model may have learnt
    a wide spread: more than the freezing point σ_c is wrong, and the target is σ_c/2, where rows still share their weight.
    """
    spreads = [head.logit_std for head in heads if head.logit_std is not None]
    if not spreads or keys < 3:
        return None
    spread, edge = median(spreads), freezing_threshold(keys)
    target, limit = (1.0, 2.0) if at_initialisation else (edge / 2, edge)
    if spread <= limit:
        return None
    factor = target / spread
    return Advice(spread, target, factor, _how(capture, declared, place, factor))


def _how(capture: Capture, declared: Declared, place: LayerPlace, factor: float) -> Text:
    if capture.q_factor.kind == "normalised":
        return GAIN.format(factor=factor)
    handed = HANDED.format(value=capture.problem.scale * factor)
    key = declared.source.split(" ")[0]
    if key in POWERS:
        return CONFIG.format(key=key, value=f"{float(place.get(key)) * factor ** POWERS[key]:.4g}")
    if capture.q_factor.source is None:
        return handed
    shared = capture.q_factor.source == capture.k_factor.source
    first = (PART if shared else WEIGHT).format(source=capture.q_factor.source, factor=factor)
    return ALTERNATIVELY.format(first=first, second=handed)


LONGER = Text(
    "At {length} keys the same logit spread (σ = {sigma:.2f}) would give an entropy of {then:.2f} nats instead of {now:.2f};"
    " multiplying the scale by {factor:.3f} keeps it (log-n: ln {length} / ln {seen} = {log_n:.3f}).",
    "在 {length} 个键上，同样的 logits 标准差（σ = {sigma:.2f}）会使熵由 {now:.2f} 变为 {then:.2f} 纳特；"
    "将缩放乘以 {factor:.3f} 可保持不变（log-n：ln {length} / ln {seen} = {log_n:.3f}）。",
)


def context_of(layers: tuple[Layer, ...], length: int) -> Context | None:
    """Predict the entropy at another length for the same logit spread, and the factor that would keep the entropy."""
    spreads = [head.logit_std for layer in layers for head in layer.head_stats if head.logit_std is not None]
    seen = max((layer.keys for layer in layers), default=0)
    if not spreads or seen < 2 or length < 2:
        return None
    sigma = median(spreads)
    now, then = gaussian_row(seen, sigma), gaussian_row(length, sigma)
    factor = _factor_that_keeps(now.entropy, length, sigma)
    message = LONGER.format(
        length=length,
        sigma=sigma,
        then=then.entropy,
        now=now.entropy,
        factor=factor,
        seen=seen,
        log_n=log(length) / log(seen),
    )
    return Context(length, seen, now.entropy / log(seen), then.entropy / log(length), factor, message)


def _factor_that_keeps(entropy: float, length: int, sigma: float) -> float:
    """The multiplier of σ at which `length` keys have this entropy, by bisection: entropy falls as σ grows."""
    low, high = 1e-3, 1e3
    for _ in range(40):
        middle = (low * high) ** 0.5
        if gaussian_row(length, min(64.0, middle * sigma)).entropy > entropy:
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5
