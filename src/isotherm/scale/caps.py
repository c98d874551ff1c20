"""Rules that change the softmax itself: a cap on its logits, an extra term in its denominator, or a sigmoid instead."""

from dataclasses import dataclass

import torch
from torch import Tensor

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.scale.context import log_visible
from isotherm.scale.rule import Fold, Resolved, Rule, Site, number_or_vector, positive, precise, start, vector

__all__ = ["Sigmoid", "Sinks", "SoftCap", "SoftmaxPlusOne"]


@dataclass(frozen=True)
class SoftCap(Rule):
    """c·tanh(z/c): the scaled logit z, kept within ±c."""

    cap: float

    name = "softcap"
    formula = "c·tanh(z/c)"
    citation = "Gemma 2, 2024, arXiv:2408.00118; Grok-1, xAI 2024"
    sentence = Text("Squeezes every logit between −c and c, smoothly.", "将每个 logit 平滑地限制在 −c 与 c 之间。")
    fold = Fold.K
    config_keys = ("attn_logit_softcapping",)

    def __post_init__(self) -> None:
        if self.cap == 0:
            expected = Text(
                "a number above 0 (0 is «off» in some code and «every logit 0» in other code; "
                "to switch it off, leave it out)",
                "大于 0 的数（0 在有的代码里表示关闭，在有的代码里会把所有 logit 归零；要关闭请去掉此规则）",
            )
            raise ArgumentError("softcap", expected, got=self.cap)
        positive("softcap", self.cap)

    def resolve(self, site: Site) -> Resolved:  # noqa: ARG002
        return Resolved(softcap=float(self.cap))


@dataclass(frozen=True)
class SoftmaxPlusOne(Rule):
    """eˢ/(1 + Σeˢ): a sink whose logit is 0, so that a head can give no output."""

    name = "softmax1"
    formula = "eˢ/(1 + Σeˢ)"
    citation = "Miller 2023, evanmiller.org/attention-is-off-by-one.html"
    sentence = Text(
        "Adds 1 to the denominator, so that the weights may sum to less than 1.", "分母加 1，使权重之和可以小于 1。"
    )
    fold = Fold.L

    def resolve(self, site: Site) -> Resolved:
        return Resolved(sink=torch.zeros(site.heads, device=site.positions.device))


@dataclass(frozen=True, eq=False)
class Sinks(Rule):
    """eˢ/(e^α + Σeˢ), α learned per head. An ordinary kernel's output becomes out·exp(lse − logaddexp(lse, α))."""

    alpha: float | Tensor = 0.0

    name = "sinks"
    formula = "eˢ/(e^α + Σeˢ)"
    citation = "gpt-oss, OpenAI 2025, arXiv:2508.10925"
    sentence = Text(
        "A learned logit per head that takes weight and gives nothing back.",
        "每个头一个可学习的 logit，只吸收权重而不产生输出。",
    )
    fold = Fold.L
    config_keys = ("sinks", "s_aux")

    def __post_init__(self) -> None:
        number_or_vector("alpha", self.alpha)

    def resolve(self, site: Site) -> Resolved:
        """α [H]."""
        if isinstance(self.alpha, Tensor):
            return Resolved(sink=vector("alpha", self.alpha, site.heads))
        return Resolved(sink=precise(torch.zeros(site.heads, device=site.positions.device)) + float(self.alpha))

    def learns(self, heads: int, head_dim: int) -> dict[str, Tensor]:  # noqa: ARG002
        """α [H]."""
        return {"alpha": start(self.alpha, heads)}


@dataclass(frozen=True)
class Sigmoid(Rule):
    """σ(z − ln n): each key's weight depends on its own logit only. With the bias, n keys of z = 0 sum to about 1."""

    name = "sigmoid"
    formula = "σ(z − ln n)"
    citation = "Ramapuram et al. 2024, arXiv:2409.04431"
    sentence = Text(
        "Replaces the softmax by a sigmoid on each logit, shifted by the number of visible keys.",
        "以逐个 logit 的 sigmoid 代替 softmax，并按可见键数平移。",
    )
    fold = Fold.K
    has_softmax = False

    def resolve(self, site: Site) -> Resolved:
        """−ln n [B or 1, Hq or 1, T, 1]."""
        return Resolved(sigmoid_bias=-log_visible(site))
