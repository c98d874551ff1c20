"""Ways in which q and k are not what «independent, mean 0, variance 1» assumes, each with the formula that then holds."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from isotherm import scale, theory
from isotherm.lab.dots import Pairs, normal
from isotherm.language import Text

CORRELATION, MEAN, SHARED = 0.5, 1.0, 0.5


@dataclass(frozen=True)
class Departure:
    """A way in which q and k are not as assumed: how to draw N pairs [N, d], and mean and variance by the right formula."""

    name: Text
    draw: Pairs
    moments: Callable[[int], theory.DotProductMoments]


def _correlated(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    q, other = normal(shape, generator), normal(shape, generator)
    return q, CORRELATION * q + sqrt(1 - CORRELATION**2) * other


def _offset(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return normal(shape, generator) + MEAN, normal(shape, generator) + MEAN


def _shared(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Vectors whose components are correlated with one another through a common part."""

    def one() -> Tensor:
        common = normal((*shape[:-1], 1), generator)
        return sqrt(SHARED) * common + sqrt(1 - SHARED) * normal(shape, generator)

    return one(), one()


def _normalised(rule: scale.QKNorm) -> Pairs:
    def draw(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        resolved = rule.resolve(scale.Site.single(shape[-1], 1))
        q, k = resolved.apply(*(normal((1, 1, *shape), generator) for _ in range(2)))
        return q[0, 0], k[0, 0]

    return draw


DEPARTURES = (
    Departure(
        Text("q and k correlated, ρ = ½", "q 与 k 相关，ρ = ½"),
        _correlated,
        lambda d: theory.dot_product_moments(d, correlation=CORRELATION),
    ),
    Departure(
        Text("components with mean 1", "分量均值为 1"),
        _offset,
        lambda d: theory.dot_product_moments(d, mean_q=MEAN, mean_k=MEAN),
    ),
    Departure(
        Text("components of each vector correlated, r = ½", "每个向量内部分量相关，r = ½"),
        _shared,
        lambda d: theory.DotProductMoments(0.0, d + d * (d - 1) * SHARED**2),
    ),
    Departure(
        Text("both after LayerNorm", "两者都经过 LayerNorm"),
        _normalised(scale.QKNorm(kind="layer", eps=1e-12)),
        lambda d: theory.DotProductMoments(0.0, d * d / (d - 1)),
    ),
    Departure(
        Text("both after RMSNorm", "两者都经过 RMSNorm"),
        _normalised(scale.QKNorm(kind="rms", eps=1e-12)),
        lambda d: theory.DotProductMoments(0.0, float(d)),
    ),
)
