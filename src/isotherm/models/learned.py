"""A scale rule inside a model: what it can learn becomes a parameter, what is one number is worked out once.

A rule is a frozen record and holds no weights. In a model each attention layer holds one `LayerRule`, which starts every
learnable part where the rule stands (a scale per head at 1/√d, the gain of a QK-norm at 1, a sink at its α) and hands out
the rule with the present parameters in it.
"""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.scale import (
    ByLayer,
    Cosine,
    InverseSqrt,
    PerDim,
    PerHead,
    Product,
    QKNorm,
    Resolved,
    Rule,
    ScalableSoftmax,
    Sinks,
    Site,
)
from isotherm.scale.rule import factors


class LayerRule(nn.Module):
    """The rule of one attention layer; None means 1/√d. A `ByLayer` in it counts the layer it stands in.

    Of a product, the factors that are constant numbers are worked out here, once: `number` is what they come to, and
    `asked` holds the others, which each call has to ask.
    """

    def __init__(self, rule: Rule | None, *, heads: int, head_dim: int, layer: int = 0) -> None:
        super().__init__()
        self.number, self.asked, self.constant = 1.0, list[Rule](), list[Rule]()
        site = Site.single(head_dim, 1, heads)
        for factor in factors(InverseSqrt() if rule is None else rule):
            one = replace(factor, layer=layer) if isinstance(factor, ByLayer) else factor
            learns = _learns(one, heads, head_dim)
            number = None if learns else _number(one.resolve(site))
            if number is not None:
                self.number *= number
            (self.asked if number is None else self.constant).append(one)
            for name, start in learns.items():
                if name in self._parameters:
                    expected = Text("at most one rule that learns {name}", "至多一条学习 {name} 的规则")
                    raise ArgumentError("rule", expected.format(name=name), got=str(rule))
                self.register_parameter(name, nn.Parameter(start))

    def now(self) -> Rule | None:
        """What has to be asked at this call, with the parameters as they are; None if nothing."""
        return _product([self._filled(rule) for rule in self.asked]) if self.asked else None

    def whole(self) -> Rule:
        """The whole rule, with the parameters as they are."""
        return _product([*(self._filled(rule) for rule in self.asked), *self.constant])

    def _filled(self, rule: Rule) -> Rule:
        own: dict[str, Any] = {
            field.name: getattr(self, field.name)
            for field in fields(rule)  # type: ignore[arg-type]  # every concrete rule is a dataclass
            if field.name in self._parameters
        }
        return replace(rule, **own) if own else rule  # type: ignore[type-var]

    def extra_repr(self) -> str:
        """The rule as it was given."""
        return str(_product([*self.asked, *self.constant]))


def _product(rules: list[Rule]) -> Rule:
    return rules[0] if len(rules) == 1 else Product(tuple(rules))


def _learns(rule: Rule, heads: int, head_dim: int) -> dict[str, Tensor]:
    """What a rule learns, and where that starts; a tensor the rule was given is copied, so that layers do not share it."""
    match rule:
        case PerHead():
            start = {"scale": _start(rule.scale, heads, head_dim**-0.5)}
        case PerDim():
            start = {"weight": _start(rule.weight, head_dim, 0.0)}
        case ScalableSoftmax():
            start = {"s": _start(rule.s, heads)}
        case Cosine():
            start = {"logit_scale": _start(rule.logit_scale, heads)}
        case Sinks():
            start = {"alpha": _start(rule.alpha, heads)}
        case QKNorm():
            size = heads * head_dim if rule.over == "width" else head_dim
            start = {"q_gain": _start(rule.q_gain, size, 1.0), "k_gain": _start(rule.k_gain, size, 1.0)}
        case _:
            start = {}
    return start


def _start(given: float | Tensor | None, size: int, default: float = 0.0) -> Tensor:
    if isinstance(given, Tensor):
        return given.detach().clone()
    return torch.full((size,), float(default if given is None else given))


def _number(resolved: Resolved) -> float | None:
    """The multiplier, if it is one number and the rule does nothing else."""
    more = (resolved.normalise, resolved.softcap, resolved.sink, resolved.sigmoid_bias)
    alone = all(part is None for part in more) and not isinstance(resolved.multiplier, Tensor)
    return float(resolved.multiplier) if alone else None
