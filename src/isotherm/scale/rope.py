"""Factors that belong to a stretched rotary embedding and are often forgotten.

Implementations multiply cos and sin by m, so q and k each carry m and the logits m². Each rule here returns only its own
factor: `YaRN(4) * InverseSqrt()`.
"""

from dataclasses import dataclass
from math import log, sqrt

import torch
from torch import Tensor

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.scale.rule import Fold, Resolved, Rule, Site, count, finite, positive, precise

__all__ = ["DeepSeekMscale", "LongRoPE", "YaRN"]


@dataclass(frozen=True)
class YaRN(Rule):
    """m² with m = 0.1·ln s + 1, for a context stretched s times.

    `attention_factor`, if given, is m itself. With both `mscale` and `mscale_all_dim`, m is the ratio of their two values;
    it is 1 when they are equal, because the factor is then in `DeepSeekMscale`. With `rotary_dims`, only that many leading
    dimensions of q are multiplied: the others have no rotary embedding.
    """

    factor: float
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    rotary_dims: int | None = None

    name = "yarn"
    formula = "(0.1·ln s + 1)²"
    citation = "Peng et al. 2023, arXiv:2309.00071, §3.4"
    sentence = Text(
        "Makes logits larger when a rotary embedding is stretched to a longer context.",
        "旋转位置编码拉伸到更长上下文时，相应放大 logits。",
    )
    fold = Fold.Q
    config_keys = ("rope_parameters.factor", "rope_parameters.attention_factor", "rope_parameters.mscale")

    def __post_init__(self) -> None:
        positive("factor", self.factor)
        if self.attention_factor is not None:
            positive("attention_factor", self.attention_factor)
        for argument in ("mscale", "mscale_all_dim"):
            if getattr(self, argument) is not None:
                _not_negative(argument, getattr(self, argument))
        if self.rotary_dims is not None:
            count("rotary_dims", self.rotary_dims)

    def resolve(self, site: Site) -> Resolved:
        """m², or [D] with m² in its first `rotary_dims` places and 1 after."""
        if self.attention_factor is not None:
            m = self.attention_factor
        elif self.mscale and self.mscale_all_dim:
            m = yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)
        else:
            m = yarn_mscale(self.factor)
        return Resolved(multiplier=_on_rotary(float(m * m), self.rotary_dims, site))


@dataclass(frozen=True)
class LongRoPE(Rule):
    """1 + ln s/ln L: the square of m = √(1 + ln s/ln L), for a context of length L stretched s times."""

    factor: float
    original_length: float = 4096
    attention_factor: float | None = None
    rotary_dims: int | None = None

    name = "longrope"
    formula = "1 + ln s/ln L"
    citation = "Ding et al. 2024, arXiv:2402.13753; Phi-3, arXiv:2404.14219"
    sentence = Text(
        "Makes logits larger in proportion to the logarithm of the stretched context length; L is 4096 by default.",
        "按拉伸后上下文长度的对数放大 logits；L 默认为 4096。",
    )
    fold = Fold.Q
    config_keys = (
        "rope_parameters.factor",
        "rope_parameters.attention_factor",
        "rope_parameters.original_max_position_embeddings",
    )

    def __post_init__(self) -> None:
        positive("factor", self.factor)
        if positive("original_length", self.original_length) <= 1:
            raise ArgumentError("original_length", Text("a length above 1", "大于 1 的长度"), got=self.original_length)
        if self.attention_factor is not None:
            positive("attention_factor", self.attention_factor)
        if self.rotary_dims is not None:
            count("rotary_dims", self.rotary_dims)

    def resolve(self, site: Site) -> Resolved:
        """m², or [D] with m² in its first `rotary_dims` places and 1 after."""
        m = self.attention_factor
        if m is None:
            m = sqrt(1 + log(max(self.factor, 1)) / log(self.original_length))
        return Resolved(multiplier=_on_rotary(float(m * m), self.rotary_dims, site))


@dataclass(frozen=True)
class DeepSeekMscale(Rule):
    """m² with m = 0.1·mscale_all_dim·ln s + 1, on all dimensions; multi-head latent attention is this times 1/√d_qk.

    d_qk counts both parts of the query, without and with rotary embedding (128 + 64 in DeepSeek-V3).
    """

    factor: float
    mscale_all_dim: float = 1.0

    name = "deepseek-mscale"
    formula = "(0.1·mscale_all_dim·ln s + 1)²"
    citation = "DeepSeek-V2, arXiv:2405.04434; DeepSeek-V3, arXiv:2412.19437"
    sentence = Text(
        "YaRN's factor applied to the whole query, with and without rotary embedding.",
        "将 YaRN 的系数作用于整个查询，无论该维是否带旋转位置编码。",
    )
    fold = Fold.Q
    config_keys = ("rope_parameters.mscale_all_dim", "rope_parameters.factor")

    def __post_init__(self) -> None:
        positive("factor", self.factor)
        _not_negative("mscale_all_dim", self.mscale_all_dim)

    def resolve(self, site: Site) -> Resolved:  # noqa: ARG002
        return Resolved(multiplier=yarn_mscale(self.factor, self.mscale_all_dim) ** 2)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """m = 0.1·mscale·ln s + 1, or 1 when nothing is stretched."""
    return 0.1 * mscale * log(factor) + 1 if factor > 1 else 1.0


def _on_rotary(multiplier: float, rotary_dims: int | None, site: Site) -> float | Tensor:
    if rotary_dims is None:
        return multiplier
    if rotary_dims > site.head_dim:
        expected = Text("at most the head dimension, {d}", "不超过头维度 {d}").format(d=site.head_dim)
        raise ArgumentError("rotary_dims", expected, got=rotary_dims)
    multipliers = precise(torch.ones(site.head_dim, device=site.positions.device))
    multipliers[:rotary_dims] = multiplier
    return multipliers


def _not_negative(argument: str, value: float) -> None:
    if finite(argument, value) < 0:
        raise ArgumentError(argument, Text("0 or more", "不小于 0 的数"), got=value)
