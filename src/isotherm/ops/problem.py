"""What an implementation is given: q, k and v with the rule already applied, and which keys each query sees."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from isotherm.stats import RowStats

MASK_AT_ONCE = 1 << 20
"""Mask entries read at once when visible keys are counted."""
UNLIMITED = 1 << 30
"""How far a query without a window sees: beyond any key, and a sum with a position fits 32 bits, in which compilers index."""


@dataclass(frozen=True)
class Visibility:
    """Which of `keys` keys each query sees: those that causality, a sliding window, documents and a boolean mask all allow.

    `positions` [T], ascending, places each query among the keys. The query at position p sees key j when j ≤ p (`causal`) and
    |p − j| < `window`. `documents` [2, B or 1, T] has, for each query, the first key of its document and the one after its
    last; both ascend. `mask` is True where visible: [B, Hq, T, S], with size 1 where it broadcasts. `first` is the position of
    the first query where that is known, since reading it would wait for a GPU and break a graph.
    """

    positions: Tensor
    keys: int
    causal: bool = False
    window: int | None = None
    mask: Tensor | None = None
    documents: Tensor | None = None
    first: int | None = None

    @property
    def places(self) -> Tensor:
        """`positions`, counted from the first key of each query's document: [T], or [B, 1, T] where documents differ."""
        if self.documents is None:
            return self.positions
        places = self.positions - self.documents[0]
        return places[0] if len(places) == 1 else places.unsqueeze(1)

    @property
    def behind(self) -> int:
        """How far back a query sees."""
        return UNLIMITED if self.window is None else min(self.window - 1, UNLIMITED)

    @property
    def ahead(self) -> int:
        """How far forward a query sees."""
        return 0 if self.causal else self.behind

    @cached_property
    def position_list(self) -> list[int]:
        """`positions` as Python numbers."""
        return [int(position) for position in self.positions.tolist()]

    def take(self, rows: Tensor) -> "Visibility":
        """The visibility of some of the queries."""
        documents = None if self.documents is None else self.documents[..., rows]
        mask = take_rows(self.mask, rows)
        return replace(self, positions=self.positions[rows], mask=mask, documents=documents, first=None)

    def geometry(self, rows: slice, columns: slice) -> bool | Tensor:
        """Causality and window on a block: True (all visible), False (none), or bool [rows, columns]."""
        positions = self.position_list[rows]
        least, most = columns.start - max(positions), columns.stop - 1 - min(positions)
        if least > self.ahead or most < -self.behind:
            return False
        if least >= -self.behind and most <= self.ahead:
            return True
        keys = torch.arange(columns.start, columns.stop, device=self.positions.device)
        offset = keys - self.positions[rows].unsqueeze(-1)
        return (offset >= -self.behind) & (offset <= self.ahead)

    def matrix(self) -> Tensor:
        """The whole n × n matrix, bool [B or 1, Hq or 1, T, S]."""
        keys = torch.arange(self.keys, device=self.positions.device)
        offset = keys - self.positions.unsqueeze(-1)
        seen = ((offset >= -self.behind) & (offset <= self.ahead)).view(1, 1, *offset.shape)
        if self.documents is not None:
            first, end = self.documents[:, :, None, :, None]
            seen = seen & (keys >= first) & (keys < end)
        return seen if self.mask is None else seen & self.mask

    def counts(self) -> Tensor:
        """Visible keys per query, [B or 1, Hq or 1, T], without holding the matrix."""
        if self.mask is None:
            last = (self.positions + self.ahead).clamp(max=self.keys - 1)
            first = (self.positions - self.behind).clamp(min=0)
            if self.documents is not None:
                own, end = self.documents
                last, first = torch.minimum(last, end - 1), torch.maximum(first, own)
            count = (last - first + 1).clamp(min=0)
            return torch.atleast_2d(count).unsqueeze(1)
        batch = self.mask.shape[0] if self.documents is None else max(self.mask.shape[0], self.documents.shape[1])
        step = max(1, MASK_AT_ONCE // max(1, batch * self.mask.shape[1] * self.keys))
        rows = torch.arange(len(self.positions), device=self.positions.device)
        return torch.cat([self.take(block).matrix().sum(-1) for block in rows.split(step)], -1)


def take_rows(tensor: Tensor | None, rows: Tensor) -> Tensor | None:
    """Some query rows of a mask or bias [B, Hq, T or 1, S]."""
    return tensor if tensor is None or tensor.shape[2] == 1 else tensor.index_select(2, rows)


@dataclass(frozen=True)
class Problem:
    """logits = cap(scale·q·k) + bias over visible keys. A multiplier that is not one number is already in q.

    q [B, Hq, T, D], k [B, Hkv, S, D], v [B, Hkv, S, Dv]; `bias` [B, Hq, T, S], with size 1 where it broadcasts.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    visibility: Visibility
    scale: float = 1.0
    bias: Tensor | None = None
    softcap: float | None = None

    @property
    def groups(self) -> int:
        """Query heads per key head."""
        return self.q.shape[1] // self.k.shape[1] if self.k.shape[1] else 1

    @property
    def dtype(self) -> torch.dtype:
        """The precision logits are held in: at least float32. Outputs have the precision of v."""
        return torch.promote_types(self.v.dtype, torch.float32)

    @property
    def needs_gradient(self) -> bool:
        """Whether autograd will ask for a backward pass."""
        tensors = (self.q, self.k, self.v, *([] if self.bias is None else [self.bias]))
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)

    def take(self, rows: Tensor) -> "Problem":
        """The problem of some of the queries."""
        return replace(
            self,
            q=self.q.index_select(2, rows),
            visibility=self.visibility.take(rows),
            bias=take_rows(self.bias, rows),
        )


class Solution(NamedTuple):
    """What an implementation returns: output [B, Hq, T, Dv]; lse [B, Hq, T], differentiable, −inf for an empty row."""

    output: Tensor
    lse: Tensor | None
    stats: RowStats | None
