"""Rows that are groups of one long axis: attention over the edges of a graph, normalised by scatter.

Exponentials of all edges are added up by the node that they lead to, and each is divided by the sum of its node. The index of
the addition says which edges are one row.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SCATTERS = frozenset({"index_add", "scatter_add", "scatter_reduce", "index_reduce", "scatter"})
"""Functions that add up groups: (input, dim, index, source)."""
NEAR = 1e-2


@dataclass(frozen=True, eq=False)
class Groups:
    """Along `axis` the entry e belongs to group `index[e]` of `count`."""

    axis: int
    index: Tensor
    count: int

    def are_normalised(self, weights: Tensor) -> bool:
        """Whether the weights of each group sum to one, or are none."""
        if weights.dim() <= self.axis or weights.shape[self.axis] != len(self.index):
            return False
        sums = weights.movedim(self.axis, -1).double()
        sums = sums.new_zeros(*sums.shape[:-1], self.count).index_add(-1, self.index, sums)
        return bool((((sums - 1).abs() < NEAR) | (sums == 0)).all()) and bool((weights >= 0).all())

    def rows(self, logits: Tensor) -> Tensor:
        """The logits of each group as a row, [*, groups, entries of the largest group], with −inf where a group has fewer."""
        order = self.index.argsort(stable=True)
        sizes = self.index.bincount(minlength=self.count)
        group = self.index[order]
        place = torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes)[group]
        flat = logits.movedim(self.axis, -1)[..., order]
        rows = flat.new_full((*flat.shape[:-1], self.count, int(sizes.max())), -torch.inf)
        rows[..., group, place] = flat
        return rows


def groups_of(args: Any, result: Tensor) -> Groups | None:
    """The groups that a scatter adds up; None if they differ between the other axes of its source."""
    dim, index, source = args[1:4]
    if not (isinstance(dim, int) and isinstance(index, Tensor) and isinstance(source, Tensor)):
        return None
    axis = dim % result.dim()
    if index.dim() > 1:
        lines = index.movedim(axis, -1).flatten(0, -2)
        if not bool((lines == lines[:1]).all()):
            return None
        index = lines[0]
    return Groups(axis, index, result.shape[axis]) if len(index) == source.shape[axis] else None
