"""What a scale rule is: something that turns q·k into logits, decided before any kernel runs.

A rule is asked once per call, at a `Site`, and answers with a `Resolved`: a multiplier folded into q, a normalisation
of q and k, a soft cap, a sink logit. Kernels only ever see the result, so any rule runs on any kernel that takes it.

Rules multiply: `QKNorm() * InverseSqrt()` normalises, then divides by √d. The order does not matter: q and k are always
normalised first, then multiplied, then capped.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from math import isfinite
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from isotherm.errors import ArgumentError
from isotherm.language import Text

T = TypeVar("T")
Normalise = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Fold(Enum):
    """Where a rule acts, and so what it costs: only K needs a kernel's help."""

    Q = Text("a multiplier on q", "乘到 q 上")
    N = Text("q and k are normalised first", "先归一化 q 与 k")
    L = Text("corrected after the kernel, from lse", "核函数之后由 lse 修正")
    K = Text("inside the kernel", "在核函数内部")
    W = Text("on the weights, outside attention", "作用于权重，在注意力之外")


@dataclass(frozen=True)
class Site:
    """Where a rule is applied: one call of attention.

    `positions` [T] is each query's own position among the keys, from 0; `visible` [B or 1, Hq or 1, T] is how many keys
    it sees, counted only when a rule asks.
    """

    head_dim: int
    heads: int
    positions: Tensor
    seen: Tensor | Callable[[], Tensor]

    def __post_init__(self) -> None:
        count("head_dim", self.head_dim)
        count("heads", self.heads)

    @property
    def visible(self) -> Tensor:
        """Keys each query sees."""
        return self.seen if isinstance(self.seen, Tensor) else self.seen()

    @classmethod
    def single(cls, head_dim: int, keys: int, heads: int = 1) -> "Site":
        """One query at the end of `keys` visible keys: enough to ask any rule for its number."""
        count("keys", keys)
        return cls(head_dim, heads, torch.tensor([keys - 1]), torch.tensor([[[keys]]]))


@dataclass(frozen=True)
class Resolved:
    """A rule's answer.

    `multiplier` broadcasts against q [B, Hq, T, D] and may be float64: cast the result, not the factor. `sink` [Hq] is
    the logit of a key that is not there. `sigmoid_bias` [B or 1, Hq or 1, T, 1] is added to the logits, and each key's
    weight is then its own sigmoid, with no softmax.
    """

    multiplier: float | Tensor = 1.0
    normalise: Normalise | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    sigmoid_bias: Tensor | None = None

    def combine(self, other: "Resolved") -> "Resolved":
        """Multipliers multiply; of everything else at most one of the two may speak."""
        both = Resolved(
            multiplier=self.multiplier * other.multiplier,
            normalise=_only(Text("a normalisation", "归一化"), self.normalise, other.normalise),
            softcap=_only(Text("a soft cap", "软上限"), self.softcap, other.softcap),
            sink=_only(Text("a sink", "汇聚项"), self.sink, other.sink),
            sigmoid_bias=_only(Text("a sigmoid", "sigmoid"), self.sigmoid_bias, other.sigmoid_bias),
        )
        if both.sink is not None and both.sigmoid_bias is not None:
            expected = Text(
                "a sink or a sigmoid (a sigmoid has no denominator)", "汇聚项或 sigmoid 之一（sigmoid 没有分母）"
            )
            raise ArgumentError("scale", expected, got="both")
        return both

    def apply(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise q and k, then multiply q; at least in float32, given back in q's own dtype."""
        if self.normalise is not None:
            q, k = self.normalise(q, k)
        if isinstance(self.multiplier, Tensor):
            working = torch.promote_types(q.dtype, torch.float32)
            return (q.to(working) * self.multiplier.to(working)).to(q.dtype), k
        return q * self.multiplier, k


def _only(what: Text, a: T | None, b: T | None) -> T | None:
    if a is not None and b is not None:
        expected = Text("at most one rule with {what}", "至多一条带{what}的规则").format(what=what)
        raise ArgumentError("scale", expected, got="two")
    return a if b is None else b


class Rule(ABC):
    """One scale rule. Subclasses are frozen dataclasses; their docstring's first line is the formula."""

    name: ClassVar[str]
    formula: ClassVar[str]
    citation: ClassVar[str]
    sentence: ClassVar[Text]
    fold: ClassVar[Fold]
    config_keys: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def resolve(self, site: Site) -> Resolved:
        """What this rule does at this site."""

    def __mul__(self, other: "Rule") -> "Rule":
        return Product((*factors(self), *factors(other)))

    def __str__(self) -> str:
        """The rule as `parse` reads it: its name and, after a colon, what differs from the defaults."""
        arguments = fields(self)  # type: ignore[arg-type]  # every concrete rule is a dataclass
        words = [_word(getattr(self, argument.name)) for argument in arguments]
        while words and words[-1] == _word(arguments[len(words) - 1].default):
            words.pop()
        return ":".join([self.name, ",".join(words)] if words else [self.name])


@dataclass(frozen=True)
class Product(Rule):
    """Rules applied together, written `a * b`."""

    rules: tuple[Rule, ...]

    name = "product"
    formula = "a · b"
    citation = ""
    sentence = Text("Several rules applied together.", "多条规则同时作用。")
    fold = Fold.Q

    def __str__(self) -> str:
        return "*".join(str(rule) for rule in self.rules)

    def resolve(self, site: Site) -> Resolved:
        """The factors' answers combined."""
        resolved = Resolved()
        for rule in self.rules:
            resolved = resolved.combine(rule.resolve(site))
        return resolved


def factors(rule: Rule) -> tuple[Rule, ...]:
    """The rules a product is made of; any other rule is its own only factor."""
    return rule.rules if isinstance(rule, Product) else (rule,)


def value(rule: Rule, head_dim: int, keys: int, heads: int = 1) -> float | None:
    """The number a rule multiplies q·k by, for the last of `keys` queries; None if it is no multiplier, or many.

    >>> from isotherm.scale import InverseSqrt, SoftCap
    >>> value(InverseSqrt(), 64, 1024), value(SoftCap(50.0), 64, 1024)
    (0.125, None)
    """
    multiplier = rule.resolve(Site.single(head_dim, keys, heads)).multiplier
    if isinstance(multiplier, Tensor):
        low, high = multiplier.detach().aminmax()
        return low.item() if bool(low == high) else None
    multiplies = multiplier != 1 or any(factor.fold is Fold.Q for factor in factors(rule))
    return float(multiplier) if multiplies else None


def positive(argument: str, value: object) -> float:
    """The value, if it is a finite number above zero."""
    if not (isinstance(value, (int, float)) and 0 < value < float("inf")):
        raise ArgumentError(argument, Text("a finite number above 0", "大于 0 的有限数"), got=repr(value))
    return value


def finite(argument: str, value: object) -> float:
    """The value, if it is a finite number."""
    if not (isinstance(value, (int, float)) and isfinite(value)):
        raise ArgumentError(argument, Text("a finite number", "有限数"), got=repr(value))
    return value


def count(argument: str, value: object, at_least: int = 1) -> int:
    """The value, if it is a whole number that is large enough."""
    if not (isinstance(value, int) and value >= at_least):
        expected = Text("a whole number, {least} or more", "不小于 {least} 的整数").format(least=at_least)
        raise ArgumentError(argument, expected, got=repr(value))
    return value


def vector(argument: str, value: object, length: int | None = None) -> Tensor:
    """The value, if it is a floating tensor [length]. Its entries are not looked at: that would wait for the device."""
    shape = "n" if length is None else str(length)
    if not isinstance(value, Tensor):
        got = repr(value)
    elif value.ndim != 1 or not value.is_floating_point() or length not in (None, value.shape[0]):
        got = f"{value.dtype} {list(value.shape)}"
    else:
        return value
    expected = Text("a floating-point tensor of shape [{shape}]", "形状为 [{shape}] 的浮点张量").format(shape=shape)
    raise ArgumentError(argument, expected, got=got)


def precise(numbers: Tensor) -> Tensor:
    """In float64, so that no rule is less exact than the q it multiplies; Apple's GPU has none, and takes float32."""
    return numbers.to(torch.float32 if numbers.device.type == "mps" else torch.float64)


def _word(value: object) -> str:
    if isinstance(value, Tensor):
        return "learned"
    return "none" if value is None else str(value)
