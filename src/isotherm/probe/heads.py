"""Fold any number of leading dimensions into [batch, heads]."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from isotherm.probe.masks import Terms

COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead", "h")


def head_count(module: nn.Module | None) -> int | None:
    """The number of heads that a module's attributes declare."""
    for name in COUNTS:
        count = getattr(module, name, None)
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return count
    return None


@dataclass(frozen=True)
class HeadFold:
    """How the leading dimensions `lead` of the scores become batch and heads: the first `batch` of them are the batch, the
    others are heads. If there is only one, it holds the batch times `split` heads."""

    lead: tuple[int, ...]
    batch: int
    split: int | None = None

    @classmethod
    def of(cls, lead: tuple[int, ...], keys: tuple[int, ...], module: nn.Module | None) -> "HeadFold":
        """Choose a fold from the leading dimensions of q (or of the scores) and of k, and from what the module declares."""
        declared = head_count(module)
        if len(lead) == 1:
            return cls(lead, 1, declared if declared is not None and lead[0] % declared == 0 else 1)
        batch = 1
        if declared is not None and len(lead) > 2 and prod(lead[1:]) != declared and 1 not in keys[1:]:
            batch = next((cut for cut in range(1, len(lead)) if prod(lead[cut:]) == declared), 1)
        return cls(lead, batch)

    def queries(self, tensor: Tensor) -> Tensor:
        """[*lead, T, D] → [B, H, T, D]."""
        return self._fold(tensor.expand(*self.lead, *tensor.shape[-2:]))

    def keys(self, tensor: Tensor) -> Tensor:
        """[*lead, S, D] → [B, Hkv, S, D]. Keys may have fewer heads than queries; these are not repeated where possible."""
        lead = tuple(tensor.shape[:-2])
        lead = (1,) * (len(self.lead) - len(lead)) + lead
        if self.split is not None or not lead:
            return self.queries(tensor)
        batch, heads = lead[: self.batch], lead[self.batch :]
        varies = [size for size, full in zip(heads, self.lead[self.batch :], strict=True) if size != 1 or full == 1]
        grouped = heads[: len(varies)] == tuple(varies) or len(heads) == 1
        if not grouped:
            return self.queries(tensor)
        tensor = tensor.expand(*self.lead[: len(batch)], *heads, *tensor.shape[-2:])
        return tensor.reshape(prod(self.lead[: self.batch]), prod(heads), *tensor.shape[-2:])

    def term(self, tensor: Tensor) -> Tensor:
        """A mask or bias that broadcasts against [*lead, T, S] → [B, H, T, S], with size 1 where it is constant."""
        tensor = tensor.reshape((1,) * (len(self.lead) + 2 - tensor.dim()) + tuple(tensor.shape))
        own = tuple(tensor.shape[:-2])
        if all(size == 1 for size in own):
            return tensor.reshape(1, 1, *tensor.shape[-2:])
        if self.split is None and len(self.lead) == 2:
            return tensor
        return self._fold(tensor.expand(*self.lead, *tensor.shape[-2:]))

    def _fold(self, tensor: Tensor) -> Tensor:
        tail = tuple(tensor.shape[-2:])
        if self.split is not None:
            return tensor.reshape(-1, self.split, *tail)
        return tensor.reshape(prod(self.lead[: self.batch]), prod(self.lead[self.batch :]), *tail)


def fold_terms(fold: HeadFold, terms: Terms) -> Terms:
    """HeadFold the mask and the bias."""
    return Terms(*(None if tensor is None else fold.term(tensor) for tensor in terms))


def reshape_lead(tensor: Tensor, old: Sequence[int], new: Sequence[int]) -> Tensor:
    """Reshape a term that broadcasts against [*old, T, S] so that it broadcasts against [*new, T, S]."""
    own, tail = tuple(tensor.shape[:-2]), tuple(tensor.shape[-2:])
    if all(size == 1 for size in own):
        return tensor.reshape(*(1,) * len(new), *tail)
    return torch.broadcast_to(tensor, (*old, *tail)).reshape(*new, *tail)
