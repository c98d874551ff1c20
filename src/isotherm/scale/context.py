"""Rules that sharpen the softmax as the context grows: a query with more keys to choose from needs larger logits.

Each returns only its own factor and is used beside another rule: `LogN(2048) * InverseSqrt()`. Log-n and scalable
softmax count the keys a query *sees*, so they restart at the border of a packed document and stop growing in a sliding
window. The two temperature rules use the position, as the models that have them do.
"""

from dataclasses import dataclass
from math import log

from torch import Tensor

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.scale.rule import Fold, Resolved, Rule, Site, finite, number_or_vector, positive, precise, start, vector

__all__ = ["Llama4Temperature", "LogN", "Ministral3Temperature", "ScalableSoftmax"]


@dataclass(frozen=True)
class LogN(Rule):
    """max(1, ln n/ln L): nothing up to the training length L, then logarithmic in the n keys that are visible."""

    train_length: float = 512

    name = "log-n"
    formula = "max(1, ln n/ln L)"
    citation = "Su 2021, kexue.fm/archives/8823; Chiang & Cholak 2022, arXiv:2202.12172; Qwen, arXiv:2309.16609"
    sentence = Text(
        "Keeps the entropy of attention steady when the context is longer than in training. Without log-n:L, L is 512.",
        "上下文超过训练长度时，保持注意力的熵稳定。不写 log-n:L 时，L 为 512。",
    )
    fold = Fold.Q
    per_query = True
    config_keys = ("use_logn_attn", "seq_length")

    def __post_init__(self) -> None:
        if positive("train_length", self.train_length) <= 1:
            raise ArgumentError("train_length", Text("a length above 1", "大于 1 的长度"), got=self.train_length)

    def resolve(self, site: Site) -> Resolved:
        """[B or 1, Hq or 1, T, 1]."""
        return Resolved(multiplier=(log_visible(site) / log(self.train_length)).clamp(min=1))


@dataclass(frozen=True, eq=False)
class ScalableSoftmax(Rule):
    """s·ln n: the softmax in base n^s, so that the largest weight no longer fades as n grows; s is learned per head."""

    s: float | Tensor = 0.43

    name = "ssmax"
    formula = "s·ln n"
    citation = "Nakanishi 2025, arXiv:2501.19399"
    sentence = Text(
        "Grows with the logarithm of the number of visible keys, at a rate learned per head, which starts at 0.43.",
        "随可见键数的对数增长，增长率按头学习，起初为 0.43。",
    )
    fold = Fold.Q
    per_query = True

    def __post_init__(self) -> None:
        number_or_vector("s", self.s, positive)

    def resolve(self, site: Site) -> Resolved:
        """[B or 1, Hq or 1, T, 1]. 0 for a query with one key, whose weight is 1 at any scale."""
        s = vector("s", self.s, site.heads).view(-1, 1, 1) if isinstance(self.s, Tensor) else float(self.s)
        return Resolved(multiplier=s * log_visible(site))

    def learns(self, heads: int, head_dim: int) -> dict[str, Tensor]:  # noqa: ARG002
        """s [H]."""
        return {"s": start(self.s, heads)}


@dataclass(frozen=True)
class Llama4Temperature(Rule):
    """1 + attn_scale·ln(1 + ⌊(pos + 1)/floor_scale⌋), in the layers without rotary embedding."""

    floor_scale: float = 8192
    attn_scale: float = 0.1

    name = "llama-4"
    formula = "1 + 0.1·ln(1 + ⌊(pos + 1)/8192⌋)"
    citation = "Llama 4, Meta 2025: attn_temperature_tuning; after Nakanishi 2025, arXiv:2501.19399"
    sentence = Text(
        "Raises the scale in steps of 8192 positions, in the layers without rotary embedding.",
        "在没有旋转位置编码的层中，每 8192 个位置将缩放提高一级。",
    )
    fold = Fold.Q
    per_query = True
    config_keys = ("attn_temperature_tuning", "floor_scale", "attn_scale")

    def __post_init__(self) -> None:
        positive("floor_scale", self.floor_scale)
        finite("attn_scale", self.attn_scale)

    def resolve(self, site: Site) -> Resolved:
        """[T, 1]."""
        return Resolved(multiplier=_staircase(_standing(site) + 1, self.floor_scale, self.attn_scale))


@dataclass(frozen=True)
class Ministral3Temperature(Rule):
    """1 + β·ln(1 + ⌊pos/L⌋), L the context length before extension: Llama 4's rule without its + 1, in all layers."""

    original_length: float = 16384
    beta: float = 0.1

    name = "ministral-3"
    formula = "1 + β·ln(1 + ⌊pos/L⌋)"
    citation = "Ministral 3, Mistral AI 2025: llama_4_scaling_beta"
    sentence = Text(
        "Raises the scale each time the position passes another multiple of the original context length L, by default 16384.",
        "位置每超过原始上下文长度 L（默认 16384）的一个整数倍，就提高一次缩放。",
    )
    fold = Fold.Q
    per_query = True
    config_keys = ("rope_parameters.llama_4_scaling_beta", "rope_parameters.original_max_position_embeddings")

    def __post_init__(self) -> None:
        positive("original_length", self.original_length)
        finite("beta", self.beta)

    def resolve(self, site: Site) -> Resolved:
        """[T, 1]."""
        return Resolved(multiplier=_staircase(_standing(site), self.original_length, self.beta))


def log_visible(site: Site) -> Tensor:
    """ln n [B or 1, Hq or 1, T, 1]. A query that sees no key counts as one: its output is 0 at any scale."""
    return precise(site.visible).clamp(min=1).log().unsqueeze(-1)


def _standing(site: Site) -> Tensor:
    """The queries' positions. A query before the first key sees none and stands at 0: its output is 0 at any scale."""
    return site.positions.clamp(min=0)


def _staircase(positions: Tensor, step: float, rise: float) -> Tensor:
    return (1 + float(rise) * (precise(positions) / float(step)).floor().log1p()).unsqueeze(-1)
