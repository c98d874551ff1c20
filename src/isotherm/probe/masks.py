"""Split a mask as models write it (bool, 0 and −inf, 0 and the smallest number, −10000, mixed with a bias) into the keys that
are visible and the bias that is added; and find the padding that a mask hides."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from isotherm.ops import Visibility

NEVER = -1e4
"""An added number below this hides its key: e^-10000 is 0 in every precision."""
TWO_VALUED = -100.0
"""In a mask of only 0 and one other number, that number hides its key if it is at most this (Swin uses −100)."""


class Terms(NamedTuple):
    """`mask` is True where a key is visible, `bias` is added to the logits. Both [B, H, T, S], with size 1 where constant."""

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
    """Splits each mask once: a model passes the same tensor to all of its layers."""

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()
        self._padded = WeakTensorKeyDictionary()

    def padded(self, seen: Visibility) -> Tensor | None:
        """`padded_positions`, once for each mask and number of queries."""
        if seen.mask is None:
            return None
        known: dict[object, Tensor | None] = self._padded.get(seen.mask) or {}
        key = len(seen.positions), seen.keys, seen.causal, seen.window
        if key not in known:
            known[key] = padded_positions(seen)
            self._padded[seen.mask] = known
        return known[key]

    def visible(self, mask: Tensor) -> Terms:
        """A mask as PyTorch's kernel takes it: bool, True where visible, or numbers that are added to the logits."""
        return Terms(mask.detach()) if mask.dtype is torch.bool else self.added(mask)

    def hidden(self, mask: Tensor) -> Terms:
        """A mask that is True, or not 0, where a key is hidden."""
        return self._once(mask, "hidden", lambda: Terms(~mask.detach().bool()))

    def added(self, mask: Tensor, coefficient: float = 1.0) -> Terms:
        """A mask that is multiplied by `coefficient` and added to the logits."""
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


ENTRIES_AT_ONCE = 1 << 22
"""Mask entries read at once when padding is looked for."""


def padded_keys(seen: Visibility) -> Tensor | None:
    """The keys that no query of their sequence may see, in any head, bool [B, S]. None if there is no mask over keys."""
    mask = seen.mask
    if mask is None or mask.shape[-1] != seen.keys or not len(seen.positions):
        return None
    if not seen.causal and seen.window is None:
        return ~mask.any(1).any(1)
    step = max(1, ENTRIES_AT_ONCE // (mask.shape[0] * mask.shape[1] * max(1, seen.keys)))
    rows = torch.arange(len(seen.positions), device=mask.device)
    return ~torch.stack([seen.take(block).matrix().any(1).any(1) for block in rows.split(step)]).any(0)


def padded_positions(seen: Visibility) -> Tensor | None:
    """The positions of self-attention that are padding, bool [B, S], or None if there are none.

    A position is padding if no query of its sequence may see its key. Causality and windows hide no key from the query at its
    own position, so what they hide is not padding. A mask that hides other positions from themselves too (strict causality,
    which hides the last key from all queries) says nothing about padding; such a sequence has none. Packed sequences see
    themselves, so they have none either.
    """
    mask = seen.mask
    if mask is None or len(seen.positions) != seen.keys or not seen.keys or seen.position_list[0] != 0:
        return None
    hidden = padded_keys(seen)
    if hidden is None:
        return None
    if mask.shape[2] > 1:
        seen_by_itself = mask.any(1).diagonal(dim1=1, dim2=2)
        hidden &= (seen_by_itself | hidden).all(-1, keepdim=True)
    return hidden if bool(hidden.any()) else None
