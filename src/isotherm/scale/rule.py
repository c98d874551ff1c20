"""The scale rule: what turns q·k into logits, decided before any kernel runs.

A rule is resolved once per call of attention. It gets the `Site` of the call and returns a `Resolved`: a multiplier, a
normalisation of q and k, a soft cap, a sink logit. Kernels see only the result, so any rule runs on any kernel.

Rules multiply: `QKNorm() * InverseSqrt()` normalises, then divides by √d. The order of factors does not matter: q and k
are always normalised first, then multiplied, then capped.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from sys import float_info
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from isotherm.errors import ArgumentError, shown
from isotherm.language import Text

LARGEST_FLOAT32 = torch.finfo(torch.float32).max
T = TypeVar("T")
Normalise = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Fold(Enum):
    """Where a rule acts. Only K needs support from the kernel."""

    Q = Text("a multiplier on q", "乘到 q 上")
    N = Text("q and k are normalised first", "先归一化 q 与 k")
    L = Text("corrected after the kernel, from lse", "核函数之后由 lse 修正")
    K = Text("inside the kernel", "在核函数内部")
    W = Text("on the weights, outside attention", "作用于权重，在注意力之外")


@dataclass(frozen=True)
class Site:
    """One call of attention, as a rule sees it.

    `positions` [T] or [B, 1, T] is each query's position in its document, from 0. `visible` [B or 1, Hq or 1, T] is how many
    keys each query sees; it is counted only when a rule reads it.
    """

    head_dim: int
    heads: int
    positions: Tensor
    seen: Tensor | Callable[[], Tensor]

    def __post_init__(self) -> None:
        for name, size in (("head_dim", self.head_dim), ("heads", self.heads)):
            if not isinstance(size, torch.SymInt):  # which a graph that leaves the size open has
                count(name, size)

    @property
    def visible(self) -> Tensor:
        """The number of keys each query sees."""
        return self.seen if isinstance(self.seen, Tensor) else self.seen()

    @classmethod
    def single(cls, head_dim: int, keys: int, heads: int = 1) -> "Site":
        """One query that sees `keys` keys: enough to get any rule's number."""
        count("keys", keys)
        return cls(head_dim, heads, torch.tensor([keys - 1]), torch.tensor([[[keys]]]))


@dataclass(frozen=True)
class Resolved:
    """What a rule does at one site.

    `multiplier` broadcasts against q [B, Hq, T, D] and may be float64: cast the result, not the factor. `sink` [Hq] is a
    logit without a key: it takes weight and gives no output. `sigmoid_bias` [B or 1, Hq or 1, T, 1] replaces the softmax:
    each key's weight is the sigmoid of its logit plus this bias.
    """

    multiplier: float | Tensor = 1.0
    normalise: Normalise | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    sigmoid_bias: Tensor | None = None

    def combine(self, other: "Resolved") -> "Resolved":
        """Multiply the multipliers. Everything else may come from only one of the two."""
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
        """Normalise q and k, then multiply q, in float32 or better. The result has q's dtype."""
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
    """One scale rule. Subclasses are frozen dataclasses whose docstrings start with the formula.

    A subclass overrides the questions below where the answer is not the usual one.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    citation: ClassVar[str]
    sentence: ClassVar[Text]
    fold: ClassVar[Fold]
    config_keys: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def resolve(self, site: Site) -> Resolved:
        """What this rule does at this site."""

    @property
    def sets_scale(self) -> bool:
        """True for a whole scale (1/√d, none, 0.1), which replaces another; False for a factor beside one (log-n, x0.5)."""
        return False

    @property
    def per_query(self) -> bool:
        """True if the multiplier depends on the query's position or on how many keys it sees."""
        return False

    @property
    def per_layer(self) -> bool:
        """True if the multiplier depends on the layer."""
        return False

    @property
    def has_softmax(self) -> bool:
        """False if the rule replaces the softmax, so that there are no rows to measure."""
        return True

    @property
    def factors(self) -> "tuple[Rule, ...]":
        """The rules that a product is made of; any other rule is its own only factor."""
        return (self,)

    def at_layer(self, layer: int) -> "Rule":  # noqa: ARG002
        """The rule as it applies in this layer, counted from 0."""
        return self

    def learns(self, heads: int, head_dim: int) -> dict[str, Tensor]:  # noqa: ARG002
        """The fields that a model trains, with the tensor each starts from. A tensor the rule holds is copied."""
        return {}

    def number(self, head_dim: int, heads: int = 1) -> float | None:
        """The multiplier, if the rule is one fixed number for every head and query and does nothing else; None if not."""
        if self.learns(heads, head_dim):
            return None
        resolved = self.resolve(Site.single(head_dim, 1, heads))
        more = (resolved.normalise, resolved.softcap, resolved.sink, resolved.sigmoid_bias)
        if isinstance(resolved.multiplier, Tensor) or any(part is not None for part in more):
            return None
        return float(resolved.multiplier)

    def __mul__(self, other: "Rule") -> "Rule":
        return Product((*self.factors, *other.factors))

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
        resolved = Resolved()
        for rule in self.rules:
            resolved = resolved.combine(rule.resolve(site))
        return resolved

    @property
    def sets_scale(self) -> bool:
        return any(rule.sets_scale for rule in self.rules)

    @property
    def per_query(self) -> bool:
        return any(rule.per_query for rule in self.rules)

    @property
    def per_layer(self) -> bool:
        return any(rule.per_layer for rule in self.rules)

    @property
    def has_softmax(self) -> bool:
        return all(rule.has_softmax for rule in self.rules)

    @property
    def factors(self) -> tuple[Rule, ...]:
        return self.rules

    def at_layer(self, layer: int) -> Rule:
        return Product(tuple(rule.at_layer(layer) for rule in self.rules))

    def learns(self, heads: int, head_dim: int) -> dict[str, Tensor]:
        """What all factors learn; two may not learn a field of one name."""
        found: dict[str, Tensor] = {}
        for rule in self.rules:
            more = rule.learns(heads, head_dim)
            if both := found.keys() & more.keys():
                expected = Text("at most one rule that learns {name}", "至多一条学习 {name} 的规则")
                raise ArgumentError("rule", expected.format(name=min(both)), got=str(self))
            found |= more
        return found


def value(rule: Rule, head_dim: int, keys: int, heads: int = 1) -> float | None:
    """The number a rule multiplies q·k by, for the last of `keys` queries. None if it has no multiplier, or several.

    >>> from isotherm.scale import InverseSqrt, SoftCap
    >>> value(InverseSqrt(), 64, 1024), value(SoftCap(50.0), 64, 1024)
    (0.125, None)
    """
    multiplier = rule.resolve(Site.single(head_dim, keys, heads)).multiplier
    if isinstance(multiplier, Tensor):
        low, high = multiplier.detach().aminmax()
        return low.item() if bool(low == high) else None
    multiplies = multiplier != 1 or any(factor.fold is Fold.Q for factor in rule.factors)
    return float(multiplier) if multiplies else None


def positive(argument: str, value: object) -> float:
    """Return the value if it is a number above zero that float32 holds, else raise an `ArgumentError`."""
    if not (isinstance(value, (int, float)) and 0 < value <= float_info.max):
        raise ArgumentError(argument, Text("a finite number above 0", "大于 0 的有限数"), got=shown(value))
    return finite(argument, value)


def finite(argument: str, value: object) -> float:
    """Return the value if it is a number that float32 holds, else raise an `ArgumentError`."""
    if not (isinstance(value, (int, float)) and abs(value) <= float_info.max):
        raise ArgumentError(argument, Text("a finite number", "有限数"), got=shown(value))
    if abs(value) > LARGEST_FLOAT32:
        expected = Text("a number within ±{most:.3g}", "±{most:.3g} 以内的数").format(most=LARGEST_FLOAT32)
        raise ArgumentError(argument, expected, got=shown(value))
    return value


def count(argument: str, value: object, at_least: int = 1) -> int:
    """Return the value if it is a whole number of at least `at_least`, else raise an `ArgumentError`."""
    if not (isinstance(value, int) and value >= at_least):
        expected = Text("a whole number, {least} or more", "不小于 {least} 的整数").format(least=at_least)
        raise ArgumentError(argument, expected, got=shown(value))
    return value


def vector(argument: str, value: object, length: int | None = None) -> Tensor:
    """Return the value if it is a floating-point tensor [length]. Its entries are not read: that would wait for the GPU."""
    if not isinstance(value, Tensor):
        got = repr(value)
    elif value.ndim != 1 or not value.is_floating_point() or length not in (None, value.shape[0]):
        got = f"{value.dtype} {list(value.shape)}"
    else:
        return value
    shape = Text("a floating-point tensor of shape [{n}]", "形状为 [{n}] 的浮点张量")
    expected = shape.format(n="n" if length is None else length)
    raise ArgumentError(argument, expected, got=got)


def number_or_vector(argument: str, value: object, number: Callable[[str, object], float] = finite) -> None:
    """Raise an `ArgumentError` unless the value is a number that passes `number`, or a floating-point tensor [n]."""
    (vector if isinstance(value, Tensor) else number)(argument, value)


def precise(numbers: Tensor) -> Tensor:
    """Convert to float64, so that no rule is less exact than the q it multiplies. Apple's GPU has only float32."""
    return numbers.to(torch.float32 if numbers.device.type == "mps" else torch.float64)


def start(given: float | Tensor | None, size: int, default: float = 0.0) -> Tensor:
    """Where a learned field starts: a copy of the tensor it was given, or a vector filled with one number."""
    if isinstance(given, Tensor):
        return given.detach().clone()
    return torch.full((size,), float(default if given is None else given))


def _word(value: object) -> str:
    if isinstance(value, Tensor):
        return "learned"
    return "none" if value is None else str(value)
