"""A mask as models write it (bool, 0 and −inf, 0 and the smallest number, −10000, a bias mixed in) taken apart into
what may be seen and what is added."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

NEVER = -1e4
"""An added number below this hides its key: e^-10000 is 0 in every precision."""
TWO_VALUED = -100.0
"""A mask of 0 and one other number hides already at this number (Swin uses −100)."""


class Terms(NamedTuple):
    """`mask` True where visible, `bias` added to the logits; both [B, H, T, S] with 1 where they do not vary."""

    mask: Tensor | None = None
    bias: Tensor | None = None

    def __and__(self, other: "Terms") -> "Terms":
        mask = _both(self.mask, other.mask, torch.logical_and)
        return Terms(mask, _both(self.bias, other.bias, torch.add))


def _both(one: Tensor | None, other: Tensor | None, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return combine(one, other)


class Masks:
    """Takes each mask apart once: a model hands the same tensor to all of its layers."""

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()

    def visible(self, mask: Tensor) -> Terms:
        """A bool mask, True where visible, as it is; any other is added to the logits."""
        return Terms(mask.detach()) if mask.dtype is torch.bool else self.added(mask)

    def hidden(self, mask: Tensor) -> Terms:
        """A mask, True or not 0 where hidden."""
        return self._once(mask, "hidden", lambda: Terms(~mask.detach().bool()))

    def added(self, mask: Tensor, coefficient: float = 1.0) -> Terms:
        """Something added to the logits, times `coefficient`."""
        return self._once(mask, coefficient, lambda: _split(mask, coefficient))

    def _once(self, mask: Tensor, key: object, make: Callable[[], Terms]) -> Terms:
        known: dict[object, Terms] = self._known.get(mask) or {}
        if key not in known:
            known[key] = make()
            self._known[mask] = known
        return known[key]


def _split(mask: Tensor, coefficient: float) -> Terms:
    mask = mask.detach() if mask.dtype.is_floating_point else mask.float()
    values = mask if coefficient == 1.0 else mask * coefficient
    hidden = values < NEVER
    rest = values.masked_fill(hidden, 0.0)
    if rest.numel() and not hidden.any():
        lowest = rest.min()
        if lowest <= TWO_VALUED and bool(((rest == lowest) | (rest == 0)).all()):
            hidden, rest = rest == lowest, torch.zeros((), dtype=rest.dtype, device=rest.device)
    return Terms(~hidden if hidden.any() else None, rest if bool((rest != 0).any()) else None)
