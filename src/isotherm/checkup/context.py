"""What a longer context would do to the entropy, and the factor that would keep it."""

from math import log
from statistics import median

from isotherm.language import Text
from isotherm.record import Context, Layer
from isotherm.theory import gaussian_row

WIDEST = 64.0
"""The largest logit spread to look for."""
LONGER = Text(
    "At {length} keys the same logit spread (σ = {sigma:.2f}) would give an entropy of {then:.2f} nats instead of {now:.2f};"
    " multiplying the scale by {factor:.3f} keeps it at {now:.2f} (log-n: ln {length} / ln {seen} = {log_n:.3f}).",
    "在 {length} 个键上，同样的 logits 标准差（σ = {sigma:.2f}）会使熵由 {now:.2f} 变为 {then:.2f} 奈特；"
    "将缩放乘以 {factor:.3f} 可使其仍为 {now:.2f}（log-n：ln {length} / ln {seen} = {log_n:.3f}）。",
)


def context_of(layers: tuple[Layer, ...], length: int) -> Context | None:
    """Predict the entropy at another length for the same logit spread, and the factor that would keep the entropy."""
    spreads = [head.logit_std for layer in layers for head in layer.head_stats if head.logit_std is not None]
    seen = max((layer.keys for layer in layers), default=0)
    sigma = median(spreads) if spreads else 0.0
    if not sigma or seen < 2 or length < 2:  # without a spread the entropy is ln n, and no factor changes that
        return None
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
    low, high = 1e-3, max(1e3, WIDEST / sigma)
    for _ in range(40):
        middle = (low * high) ** 0.5
        if gaussian_row(length, min(WIDEST, middle * sigma)).entropy > entropy:
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5
