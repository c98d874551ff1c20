"""A scale rule inside a model: what it can learn becomes a parameter, what is one number is worked out once.

A rule is a frozen record and holds no weights. In a model each attention layer holds one `LayerRule`, which starts every
learnable part where the rule stands (a scale per head at 1/√d, the gain of a QK-norm at 1, a sink at its α) and hands out
the rule with the present parameters in it.
"""

from dataclasses import fields, replace
from typing import Any

from torch import nn

from isotherm.scale import InverseSqrt, Product, Rule


class LayerRule(nn.Module):
    """The rule of one attention layer; None means 1/√d. A `ByLayer` in it counts the layer it stands in.

    Of a product, the factors that are constant numbers are worked out here, once: `number` is what they come to, and
    `asked` holds the others, which each call has to ask.
    """

    def __init__(self, rule: Rule | None, *, heads: int, head_dim: int, layer: int = 0) -> None:
        super().__init__()
        self.number, self.asked, self.constant = 1.0, list[Rule](), list[Rule]()
        whole = (InverseSqrt() if rule is None else rule).at_layer(layer)
        for factor in whole.factors:
            number = factor.number(head_dim, heads)
            if number is not None:
                self.number *= number
            (self.asked if number is None else self.constant).append(factor)
        for name, start in whole.learns(heads, head_dim).items():
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
