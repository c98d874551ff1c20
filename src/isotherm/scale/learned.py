"""Rules whose multiplier is trained. Without a tensor the multiplier is 1/√d, where training starts in the papers.

The tensor belongs to the model: keep it there as an `nn.Parameter` and build the rule around it where it is used.
"""

from dataclasses import dataclass
from math import log, sqrt

import torch
from torch import Tensor
from torch.nn.functional import softplus

from isotherm.language import Text
from isotherm.scale.rule import Fold, Resolved, Rule, Site, start, vector

__all__ = ["PerDim", "PerHead"]


@dataclass(frozen=True, eq=False)
class PerHead(Rule):
    """τ_h, one number per head, from d^-½ at the start."""

    scale: Tensor | None = None

    name = "per-head"
    formula = "τ_h, initially 1/√d"
    citation = "Lee et al. 2021, arXiv:2112.13492 (locality self-attention)"
    sentence = Text("Each head learns its own scale.", "每个头学习自己的缩放。")
    fold = Fold.Q
    sets_scale = True

    def __post_init__(self) -> None:
        if self.scale is not None:
            vector("scale", self.scale)

    def resolve(self, site: Site) -> Resolved:
        """scale [H] as [H, 1, 1]."""
        if self.scale is None:
            return Resolved(multiplier=1 / sqrt(site.head_dim))
        return Resolved(multiplier=vector("scale", self.scale, site.heads).view(-1, 1, 1))

    def learns(self, heads: int, head_dim: int) -> dict[str, Tensor]:
        """τ [H]."""
        return {"scale": start(self.scale, heads, head_dim**-0.5)}


@dataclass(frozen=True, eq=False)
class PerDim(Rule):
    """softplus(w_i)/(ln 2·√d), one number per dimension of the head; w = 0 gives 1/√d, since softplus(0) = ln 2."""

    weight: Tensor | None = None

    name = "per-dim"
    formula = "softplus(w_i)·1.442695/√d"
    citation = "TimesFM: Das et al. 2023, arXiv:2310.10688"
    sentence = Text("Each dimension of the query learns its own positive scale.", "查询的每一维学习自己的正缩放。")
    fold = Fold.Q
    sets_scale = True

    def __post_init__(self) -> None:
        if self.weight is not None:
            vector("weight", self.weight)

    def resolve(self, site: Site) -> Resolved:
        """One multiplier per dimension, [D]."""
        if self.weight is None:
            return Resolved(multiplier=1 / sqrt(site.head_dim))
        weight = vector("weight", self.weight, site.head_dim)
        wide = softplus(weight.to(torch.promote_types(weight.dtype, torch.float32)))
        return Resolved(multiplier=wide / (log(2) * sqrt(site.head_dim)))

    def learns(self, heads: int, head_dim: int) -> dict[str, Tensor]:  # noqa: ARG002
        """w [D]."""
        return {"weight": start(self.weight, head_dim)}
