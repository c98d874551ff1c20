"""Rules that normalise q and k first, so that growing W_q or W_k cannot change the logits.

They act on the q and k that attention receives, after the rotary embedding; models normalise before it. RMS and L2 without
a gain give the same logits either way, because a rotation keeps lengths. With a gain, or with LayerNorm, they do not.
"""

from dataclasses import dataclass
from math import exp, log
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.scale.rule import Fold, Resolved, Rule, Site, number_or_vector, positive, start, vector

__all__ = ["Cosine", "QKNorm"]

LN_10 = log(10)
Kind = Literal["rms", "layer", "l2"]
Over = Literal["head", "width"]


@dataclass(frozen=True, eq=False)
class QKNorm(Rule):
    """gain·q/‖q‖ and gain·k/‖k‖: q and k are normalised over each head, or over all heads together (`over="width"`).

    A gain is [D] or [H, D] (over heads), or [H·D] (over the width); for `k_gain`, H counts the key heads. Gemma stores
    its gain minus 1: pass 1 + weight. Rescaling W_q changes nothing under this rule: rescale the gain instead. `eps` is
    added to the mean square (rms, layer), or is the smallest length to divide by (l2).
    """

    kind: Kind = "rms"
    over: Over = "head"
    eps: float = 1e-6
    q_gain: Tensor | None = None
    k_gain: Tensor | None = None

    name = "qk-norm"
    formula = "norm(q)·norm(k)"
    citation = "Henry et al. 2020, arXiv:2010.04245 (L2); Dehghani et al. 2023, arXiv:2302.05442 (LayerNorm)"
    sentence = Text(
        "Bounds the logits whatever the weights do, by giving every query and key the same length.",
        "让所有查询与键等长，无论权重如何变化，logits 都有界。",
    )
    fold = Fold.N
    config_keys = ("use_qk_norm", "qk_layernorm")

    def __post_init__(self) -> None:
        for argument, choices in (("kind", get_args(Kind)), ("over", get_args(Over))):
            if getattr(self, argument) not in choices:
                names = ", ".join(choices)
                expected = Text("one of {names}", "{names} 之一").format(names=names)
                raise ArgumentError(argument, expected, got=repr(getattr(self, argument)))
        positive("eps", self.eps)
        for argument in ("q_gain", "k_gain"):
            gain = getattr(self, argument)
            if not (gain is None or isinstance(gain, Tensor)):
                raise ArgumentError(argument, Text("a tensor", "张量"), got=repr(gain))

    def resolve(self, site: Site) -> Resolved:  # noqa: ARG002
        """A normalisation of q [B, Hq, T, D] and k [B, Hkv, S, D], and no multiplier."""
        return Resolved(normalise=self._both)

    def learns(self, heads: int, head_dim: int) -> dict[str, Tensor]:
        size = heads * head_dim if self.over == "width" else head_dim
        return {"q_gain": start(self.q_gain, size, 1.0), "k_gain": start(self.k_gain, size, 1.0)}

    def _both(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self._one("q_gain", q, self.q_gain), self._one("k_gain", k, self.k_gain)

    def _one(self, argument: str, x: Tensor, gain: Tensor | None) -> Tensor:
        heads, dim = x.shape[1], x.shape[3]
        rows = x.to(torch.promote_types(x.dtype, torch.float32)).transpose(1, 2)
        rows = self._normed(rows.flatten(2) if self.over == "width" else rows)
        if gain is not None:
            shapes = [[heads * dim]] if self.over == "width" else [[dim], [heads, dim]]
            if list(gain.shape) not in shapes:
                expected = Text("a tensor of shape {shape}", "形状为 {shape} 的张量")
                raise ArgumentError(argument, expected.format(shape=" / ".join(map(str, shapes))), got=list(gain.shape))
            if gain.device != x.device:
                expected = Text("a tensor on {device}", "{device} 上的张量").format(device=x.device)
                raise ArgumentError(argument, expected, got=gain.device)
            rows = rows * gain.to(rows.dtype)
        return rows.reshape(x.shape[0], x.shape[2], heads, dim).transpose(1, 2).to(x.dtype)

    def _normed(self, x: Tensor) -> Tensor:
        if self.kind == "l2":
            return normalize(x, dim=-1, eps=self.eps)
        if self.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


@dataclass(frozen=True, eq=False)
class Cosine(Rule):
    """min(e^τ_h, 100)·cos(q, k): logits bounded by a learned number per head, e^τ = 10 at the start."""

    logit_scale: float | Tensor = LN_10

    name = "cosine"
    formula = "exp(min(τ_h, ln 100))·cos(q, k)"
    citation = "Swin v2: Liu et al. 2021, arXiv:2111.09883, §3.2"
    sentence = Text(
        "Attention by the angle between query and key, at a temperature learned per head.",
        "按查询与键的夹角计算注意力，温度按头学习。",
    )
    fold = Fold.N
    sets_scale = True

    def __post_init__(self) -> None:
        number_or_vector("logit_scale", self.logit_scale)

    def resolve(self, site: Site) -> Resolved:
        """L2 normalisation, and e^τ: a number or [H, 1, 1]."""
        if isinstance(self.logit_scale, Tensor):
            scales = vector("logit_scale", self.logit_scale, site.heads)
            return Resolved(multiplier=scales.clamp(max=log(100)).exp().view(-1, 1, 1), normalise=_unit)
        return Resolved(multiplier=exp(min(self.logit_scale, log(100))), normalise=_unit)

    def learns(self, heads: int, head_dim: int) -> dict[str, Tensor]:  # noqa: ARG002
        """τ [H]."""
        return {"logit_scale": start(self.logit_scale, heads)}


def _unit(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return normalize(q, dim=-1), normalize(k, dim=-1)
