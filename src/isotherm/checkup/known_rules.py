"""Scales other than 1/√d that are in use, and the mistakes that give others: what a number means."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import e, log2, sqrt

from isotherm.checkup.declare import CONVENTION, first_source
from isotherm.checkup.thresholds import SCALE_TOLERANCE
from isotherm.record import Layer, ScaleAudit


@dataclass(frozen=True)
class KnownRule:
    """A scale in use: its formula, its number for a head dimension d, so many heads and the layer's place among its siblings,
    and how to declare it at such a layer."""

    formula: str
    number: Callable[[int, int, int], float]
    declare: Callable[[int, int], str]


def _scalar(of: Callable[[int, int], float]) -> Callable[[int, int], str]:
    return lambda d, heads: f"query-pre-attn-scalar:{of(d, heads):g}"


KNOWN_RULES = (
    KnownRule("1/d", lambda d, _heads, _at: 1 / d, lambda _d, _heads: "1/d"),
    KnownRule("1 (no scale)", lambda _d, _heads, _at: 1.0, lambda _d, _heads: "none"),
    KnownRule("1/√(d/2)", lambda d, _heads, _at: sqrt(2 / d), _scalar(lambda d, _heads: d / 2)),
    KnownRule("1/√(2d)", lambda d, _heads, _at: 1 / sqrt(2 * d), _scalar(lambda d, _heads: 2 * d)),
    KnownRule("1/√(3d)", lambda d, _heads, _at: 1 / sqrt(3 * d), _scalar(lambda d, _heads: 3 * d)),
    KnownRule("1/√width", lambda d, heads, _at: 1 / sqrt(heads * d), _scalar(lambda d, heads: heads * d)),
    KnownRule("1/width", lambda d, heads, _at: 1 / (heads * d), lambda d, heads: f"{1 / (heads * d)!r}"),
    KnownRule("2/√d", lambda d, _heads, _at: 2 / sqrt(d), lambda _d, _heads: "x2*1/sqrt(d)"),
    KnownRule("1/(2√d)", lambda d, _heads, _at: 0.5 / sqrt(d), lambda _d, _heads: "x0.5*1/sqrt(d)"),
    KnownRule("d^-¼", lambda d, _heads, _at: d**-0.25, lambda d, _heads: f"{d**-0.25!r}"),
    KnownRule("log₂e/√d", lambda d, _heads, _at: log2(e) / sqrt(d), lambda _d, _heads: f"x{log2(e)!r}*1/sqrt(d)"),
    KnownRule("1/((layer + 1)√d)", lambda d, _heads, at: 1 / (at + 1) / sqrt(d), lambda *_: "by-layer*1/sqrt(d)"),
)  # fmt: skip


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """A layer's name without its numbers: siblings share it.

    >>> kind_of("encoder.layer.11.attention")
    'encoder.layer.#.attention'
    """
    return re.sub(r"\d+", "#", name)


def recognised(layers: Sequence[Layer]) -> dict[int, tuple[KnownRule, ...]]:
    """Known rules other than the convention that layers without a declaration follow, by layer index.

    A rule is one that all siblings follow. A layer that alone departs from the convention follows no rule; something is wrong
    with it.
    """
    kinds: dict[str, list[Layer]] = {}
    for layer in layers:
        if first_source(layer.scale.source) == CONVENTION and without_factors(layer) is not None:
            kinds.setdefault(kind_of(layer.name), []).append(layer)
    found: dict[int, tuple[KnownRule, ...]] = {}
    for siblings in kinds.values():
        if all(near(without_factors(layer), layer.head_dim**-0.5) for layer in siblings):
            continue
        rules = tuple(
            rule for rule in KNOWN_RULES if all(_follows(layer, at, rule) for at, layer in enumerate(siblings))
        )
        found |= {layer.index: rules for layer in siblings if rules}
    return found


def without_factors(layer: Layer) -> float | None:
    """The scale in force without the factors that the configuration adds (YaRN's); None where it cannot be compared."""
    scale = layer.scale
    if scale.effective is None or scale.declared is None or (scale.agrees is None and scale.note is not None):
        return None
    return scale.effective / (scale.declared * sqrt(layer.head_dim))


def likely(scale: ScaleAudit, head_dim: int, heads: int) -> str:
    """Name the common mistake that would give this scale."""
    if scale.effective is None or scale.declared is None:
        return NO_MISTAKE
    ratio, declared, conventional = scale.effective / scale.declared, scale.declared, head_dim**-0.5
    usual = {
        "scale missing": 1 / declared,
        # One number, two mistakes: what the attention function was handed tells them apart.
        "1/d for 1/sqrt(d)": conventional if near(scale.passed, 1 / head_dim) else None,
        "scale applied twice": declared,
        "inverted scale": 1 / declared**2,
        "d^-1/4 on one side only": head_dim**-0.25 / declared,
        "1/sqrt(width) for 1/sqrt(d)": heads**-0.5,
        "twice the scale": 2.0,
        "half the scale": 0.5,
        "log2(e) too many": log2(e),
    }  # fmt: skip
    return next(
        (name for name, expected in usual.items() if expected is not None and near(ratio, expected)), NO_MISTAKE
    )


NO_MISTAKE = "none of the usual mistakes"


def _follows(layer: Layer, at: int, rule: KnownRule) -> bool:
    return near(without_factors(layer), rule.number(layer.head_dim, layer.heads, at))


def near(number: float | None, expected: float) -> bool:
    """Whether a scale is this number, within the tolerance for scales."""
    return number is not None and abs(number / expected - 1) <= SCALE_TOLERANCE.value
