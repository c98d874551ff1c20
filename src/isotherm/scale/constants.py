"""Rules that are one number, fixed by the head dimension, the layer, or the model's configuration."""

from dataclasses import dataclass
from math import sqrt

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.scale.rule import Fold, Resolved, Rule, Site, count, positive

__all__ = ["ByLayer", "Fixed", "InverseSqrt", "MuP", "NoScale", "QueryPreAttnScalar", "Relative"]

LARGEST_POWER = 16


@dataclass(frozen=True)
class InverseSqrt(Rule):
    """1/√d: unit-variance q and k give unit-variance logits."""

    name = "1/sqrt(d)"
    formula = "1/√d"
    citation = "Vaswani et al. 2017, arXiv:1706.03762, §3.2.1"
    sentence = Text(
        "Divides by the standard deviation of the dot product of two independent unit-variance vectors.",
        "除以两个独立单位方差向量点积的标准差。",
    )
    fold = Fold.Q
    sets_scale = True

    def resolve(self, site: Site) -> Resolved:
        return Resolved(multiplier=1 / sqrt(site.head_dim))


@dataclass(frozen=True)
class MuP(Rule):
    """√base/d^power, by default 1/d: after training q and k are correlated, so their dot product grows like d, not √d.

    With `base_head_dim` the scale equals 1/√d at that head dimension, so that a tuned small model keeps its scale.
    """

    base_head_dim: float | None = None
    power: float = 1.0

    name = "1/d"
    formula = "1/d, or √base/d^power"
    citation = "Yang et al. 2022, arXiv:2203.03466 (μP); Megatron-LM use_mup"
    sentence = Text(
        "Divides by d, so that hyperparameters tuned on a narrow model hold on a wide one.",
        "除以 d，使窄模型上调好的超参数可直接用于宽模型。",
    )
    fold = Fold.Q
    sets_scale = True
    config_keys = ("mup_base_head_dim", "mup_attn_scale_power", "mup_scale_qk_dot_by_d")

    def __post_init__(self) -> None:
        if positive("power", self.power) > LARGEST_POWER:  # far larger ones overflow even float64
            expected = Text("a number above 0, at most {most}", "大于 0 且不超过 {most} 的数").format(
                most=LARGEST_POWER
            )
            raise ArgumentError("power", expected, got=self.power)
        if self.base_head_dim is not None:
            positive("base_head_dim", self.base_head_dim)

    def resolve(self, site: Site) -> Resolved:
        base = 1.0 if self.base_head_dim is None else self.base_head_dim
        return Resolved(multiplier=sqrt(base) / site.head_dim**self.power)


@dataclass(frozen=True)
class NoScale(Rule):
    """1: the scale is left to the initialisation of W_q (T5) or to the gain of a QK-norm (Gemma 3n)."""

    name = "none"
    formula = "1"
    citation = "T5: Raffel et al. 2019, arXiv:1910.10683"
    sentence = Text("The dot product is used as it is.", "直接使用点积，不作缩放。")
    fold = Fold.Q
    sets_scale = True

    def resolve(self, site: Site) -> Resolved:  # noqa: ARG002
        return Resolved()


@dataclass(frozen=True)
class Fixed(Rule):
    """A constant from the model's configuration."""

    value: float

    name = "fixed"
    formula = "c"
    citation = "Granite, IBM 2024: attention_multiplier"
    sentence = Text("A constant written in the model's configuration.", "写在模型配置里的常数。")
    fold = Fold.Q
    sets_scale = True
    config_keys = ("attention_multiplier",)

    def __post_init__(self) -> None:
        positive("scale", self.value)

    def __str__(self) -> str:
        return str(self.value)

    def resolve(self, site: Site) -> Resolved:  # noqa: ARG002
        return Resolved(multiplier=self.value)


@dataclass(frozen=True)
class Relative(Rule):
    """A factor on top of the scale in force, written `x0.5`."""

    factor: float

    name = "relative"
    formula = "c·(the other rule)"
    citation = ""
    sentence = Text("A factor on top of another rule.", "在另一条规则之上再乘的系数。")
    fold = Fold.Q

    def __post_init__(self) -> None:
        positive("factor", self.factor)

    def __str__(self) -> str:
        return f"x{self.factor}"

    def resolve(self, site: Site) -> Resolved:  # noqa: ARG002
        return Resolved(multiplier=self.factor)


@dataclass(frozen=True)
class QueryPreAttnScalar(Rule):
    """scalar^-½: 1/√d with a d that need not be the head's own (Gemma 2 27B: 144 with heads of 128)."""

    scalar: float = 256

    name = "query-pre-attn-scalar"
    formula = "1/√scalar"
    citation = "Gemma 2, 2024, arXiv:2408.00118"
    sentence = Text(
        "One over the square root of a number from the configuration, not of the head dimension.",
        "取配置中某数（而非头维度）的平方根的倒数。",
    )
    fold = Fold.Q
    sets_scale = True
    config_keys = ("query_pre_attn_scalar",)

    def __post_init__(self) -> None:
        positive("query_pre_attn_scalar", self.scalar)

    def resolve(self, site: Site) -> Resolved:  # noqa: ARG002
        return Resolved(multiplier=1 / sqrt(self.scalar))


@dataclass(frozen=True)
class ByLayer(Rule):
    """1/(layer + 1), layers counted from 0: a factor beside 1/√d, to keep float16 logits small in deep layers."""

    layer: int = 0

    name = "by-layer"
    formula = "1/(layer + 1)"
    citation = "Mistral, Stanford CRFM 2021; transformers GPT-2 scale_attn_by_inverse_layer_idx"
    sentence = Text("Divides by the layer's number.", "除以层的序号。")
    fold = Fold.Q
    per_layer = True
    config_keys = ("scale_attn_by_inverse_layer_idx", "scale_attn_weights")

    def __post_init__(self) -> None:
        count("layer", self.layer, at_least=0)

    def resolve(self, site: Site) -> Resolved:  # noqa: ARG002
        return Resolved(multiplier=1 / (self.layer + 1))

    def at_layer(self, layer: int) -> "ByLayer":
        return ByLayer(layer)
