"""What a tensor is, if it was made from a product of two activations: q·kᵀ scaled, capped, shifted, masked, turned.

`Scores` describes a tensor as cap(factor·a·bᵀ) + Σ cᵢ·termᵢ with some entries hidden and its axes in some order. Which factor
is q and which is k shows only when somebody normalises over an axis: the keys are along that axis. Until then they are rows
`a` and columns `b`. Every tensor of a description is in its canonical layout, [*lead, rows, columns].
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from isotherm.probe.heads import reshape_lead
from isotherm.probe.masks import NEVER

_origins = count()


def new_origin() -> int:
    """A number that no product had before."""
    return next(_origins)


class Added(NamedTuple):
    """A term that was added. `own` says that it was made of the scores themselves, so it is no bias."""

    coefficient: float
    term: Tensor
    own: bool


@dataclass(frozen=True, eq=False)
class Scores:
    """a [*, R, D] and b [*, C, D] as they were multiplied, with `lead` the leading axes of the result.

    - `order`: which canonical axis each axis of the tensor is.
    - `multipliers`: factors that differ between heads, rows or columns.
    - `cap`: the multiplier after a tanh, None without one.
    - `hidden`: True where a number so low was written that the entry is never attended.
    - `view`: the shape that the tensor has now, if that cuts rows or columns into pieces (of pictures, say).
    - `learned`: the rows are a parameter of the model, such as a learned query; the columns never are.
    - `zeroed`: True where the product was replaced by 0 (a multiplicative mask).
    """

    a: Tensor
    b: Tensor
    lead: tuple[int, ...]
    order: tuple[int, ...]
    origin: int
    factor: float = 1.0
    multipliers: tuple[Tensor, ...] = ()
    cap: float | None = None
    added: tuple[Added, ...] = ()
    hidden: tuple[Tensor, ...] = ()
    zeroed: tuple[Tensor, ...] = ()
    learned: bool = False
    view: tuple[int, ...] | None = None

    @classmethod
    def of(cls, a: Tensor, b: Tensor, lead: tuple[int, ...], order: tuple[int, ...]) -> "Scores":
        """The plain product a·bᵀ."""
        return cls(a, b, lead, order, new_origin())

    @property
    def canonical_shape(self) -> tuple[int, ...]:
        """The shape in the canonical layout."""
        return (*self.lead, self.a.shape[-2], self.b.shape[-2])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self._whole_shape if self.view is None else self.view

    @property
    def _whole_shape(self) -> tuple[int, ...]:
        return tuple(self.canonical_shape[axis] for axis in self.order)

    def canonical(self, tensor: Tensor) -> Tensor:
        """A tensor that broadcasts against this one, in the canonical layout."""
        if self.view is not None:
            tensor = torch.broadcast_to(tensor, self.view).reshape(self._whole_shape)
        if self.order == tuple(range(len(self.order))) and tensor.dim() >= 2:
            return (
                tensor  # the same object, since a model passes one mask to all of its layers, and it is split only once
            )
        full = tensor.detach().reshape((1,) * (len(self.order) - tensor.dim()) + tuple(tensor.shape))
        return full.permute([self.order.index(axis) for axis in range(len(self.order))])

    def times(self, by: object) -> "Scores | None":
        """The scores multiplied by a number, by one number for each head, row or column, or by a mask of zeros and ones."""
        factor = number(by)
        if factor is not None:
            added = tuple(term._replace(coefficient=factor * term.coefficient) for term in self.added)
            if self.cap is None:
                return replace(self, factor=self.factor * factor, added=added)
            return replace(self, cap=self.cap * factor, added=added)
        if not isinstance(by, Tensor) or by.dim() > len(self.shape):
            return None
        by = self.canonical(by)
        if by.shape[-1] != 1 and by.shape[-2] != 1 and not bool(((by == 0) | (by == 1)).all()):
            return None
        added = tuple(term._replace(term=term.term * by) for term in self.added)
        if by.shape[-1] != 1 and bool(((by == 0) | (by == 1)).all()):
            return replace(self, zeroed=(*self.zeroed, by == 0), added=added)
        return None if self.cap is not None else replace(self, multipliers=(*self.multipliers, by), added=added)

    def plus(self, term: object, coefficient: object = 1.0, *, own: bool = False) -> "Scores | None":
        """The scores with a term added."""
        times = number(coefficient)
        if times is None:
            return None
        if not isinstance(term, Tensor) or term.dim() == 0:
            return self
        if term.dim() > len(self.shape):
            return None
        return replace(self, added=(*self.added, Added(times, self.canonical(term), own)))

    def joined(self, other: "Scores") -> "Scores | None":
        """The sum of two scores: of one product with itself, or of two plain products, which is one of longer vectors."""
        if self.cap is not None or other.cap is not None or self.order != other.order or self.shape != other.shape:
            return None
        if self.a is other.a and self.b is other.b and not (self.multipliers or other.multipliers):
            added, hidden = (*self.added, *other.added), (*self.hidden, *other.hidden)
            together = replace(self, factor=self.factor + other.factor, added=added, hidden=hidden)
            return together if self.zeroed == other.zeroed == () else None
        if not (self.bare and other.bare) or self.origin == other.origin or self.factor != other.factor:
            return None
        a, b = (
            torch.cat([_expanded(one, self.lead), _expanded(two, self.lead)], -1)
            for one, two in ((self.a, other.a), (self.b, other.b))
        )
        return replace(self, a=a, b=b)

    @property
    def bare(self) -> bool:
        """Whether the tensor is a number times a·bᵀ."""
        return (
            self.cap is None
            and self.view is None
            and not (self.multipliers or self.added or self.hidden or self.zeroed)
        )

    def followed_by(self, others: "Sequence[Scores]", axis: int) -> "Scores | None":
        """Several scores put one after another along an axis: parts of the keys, of the queries, or of the heads."""
        alike = all(one.bare and (one.factor, one.order) == (self.factor, self.order) for one in (self, *others))
        if not alike or not -len(self.order) <= axis < len(self.order):
            return None
        place, every = self.order[axis], (self, *others)
        rows = len(self.lead)
        if place < rows:
            a, b = (torch.cat([_expanded(x, one.lead) for x, one in sides], place) for sides in _sides(every))
            return replace(self, a=a, b=b, lead=tuple(a.shape[:-2]))
        shared, parts = ([one.b for one in every], [one.a for one in every])
        if place > rows:
            shared, parts = parts, shared
        if any(_place(one) != _place(shared[0]) for one in shared):
            return None
        together = torch.cat([_expanded(part, one.lead) for part, one in zip(parts, every, strict=True)], -2)
        return replace(self, b=together) if place > rows else replace(self, a=together)

    def without(self, hidden: object, filled: object) -> "Scores | None":
        """The scores with `filled` written where `hidden` is true. None unless that hides an entry, or writes 0."""
        value = number(filled)
        if value is None or not isinstance(hidden, Tensor) or hidden.dim() > len(self.shape):
            return None
        where = self.canonical(hidden).bool()
        if value == 0:
            return replace(self, zeroed=(*self.zeroed, where))
        return replace(self, hidden=(*self.hidden, where)) if value <= NEVER else None

    def capped(self) -> "Scores | None":
        """The scores after a tanh."""
        plain = not (self.added or self.hidden or self.zeroed) and self.cap is None
        return replace(self, cap=1.0) if plain else None

    def turned(self) -> "Scores":
        """The same with rows and columns exchanged."""
        swap = len(self.lead), len(self.lead) + 1
        exchanged = {swap[0]: swap[1], swap[1]: swap[0]}
        return replace(
            self,
            a=self.b,
            b=self.a,
            order=tuple(exchanged.get(axis, axis) for axis in self.order),
            multipliers=tuple(one.mT for one in self.multipliers),
            added=tuple(term._replace(term=term.term.mT) for term in self.added),
            hidden=tuple(mask.mT for mask in self.hidden),
            zeroed=tuple(mask.mT for mask in self.zeroed),
        )

    def reordered(self, axes: tuple[int, ...]) -> "Scores | None":
        """The tensor with its axes in another order; None if they are cut into pieces."""
        return None if self.view is not None else replace(self, order=tuple(self.order[axis] for axis in axes))

    def viewed(self, shape: tuple[int, ...]) -> "Scores | None":
        """The tensor in another shape: other leading axes, axes of size 1 inserted or removed anywhere, or any other one, in
        which terms may be added until the tensor has its old shape again."""
        if shape == self.shape:
            return self
        if torch.Size(shape).numel() != torch.Size(self.shape).numel():
            return None if self.view is not None else self._broadcast(shape)
        if self.view is not None:
            whole = replace(self, view=None)
            return whole if shape == whole.shape else whole.viewed(shape)
        if self.order == tuple(range(len(self.order))) and shape[-2:] == self.shape[-2:]:
            return self._with_lead(shape[:-2], tuple(range(len(shape))))
        return self._with_ones(shape) or replace(self, view=shape)

    def _broadcast(self, shape: tuple[int, ...]) -> "Scores | None":
        """Leading axes of size 1 that a term has made longer."""
        if len(shape) != len(self.order):
            return None
        full = tuple(shape[self.order.index(axis)] for axis in range(len(shape)))
        grown = all(new in (old, new if old == 1 else old) for old, new in zip(self.lead, full, strict=False))
        return replace(self, lead=full[:-2]) if grown and full[-2:] == self.canonical_shape[-2:] else None

    def _with_ones(self, shape: tuple[int, ...]) -> "Scores | None":
        """The same axes in the same order, with others of size 1 between them."""
        rows, columns = len(self.lead), len(self.lead) + 1
        kept = [axis for axis in self.order if self.canonical_shape[axis] != 1]
        if {rows, columns} - {*kept} or tuple(x for x in shape if x != 1) != tuple(
            self.canonical_shape[a] for a in kept
        ):
            return None
        lead = [axis for axis in sorted(kept) if axis < rows]
        ones = sum(size == 1 for size in shape)
        place = {axis: index for index, axis in enumerate(lead)}
        place |= {rows: len(lead) + ones, columns: len(lead) + ones + 1}
        spare, axes = iter(range(len(lead), len(lead) + ones)), iter(kept)
        order = tuple(next(spare) if size == 1 else place[next(axes)] for size in shape)
        return self._with_lead((*(self.canonical_shape[axis] for axis in lead), *(1,) * ones), order)

    def _with_lead(self, lead: tuple[int, ...], order: tuple[int, ...]) -> "Scores":
        if lead == self.lead:
            return replace(self, order=order)
        return replace(
            self,
            a=_expanded(self.a, self.lead).reshape(*lead, *self.a.shape[-2:]),
            b=_expanded(self.b, self.lead).reshape(*lead, *self.b.shape[-2:]),
            lead=lead,
            order=order,
            multipliers=tuple(reshape_lead(one, self.lead, lead) for one in self.multipliers),
            added=tuple(term._replace(term=reshape_lead(term.term, self.lead, lead)) for term in self.added),
            hidden=tuple(reshape_lead(mask, self.lead, lead) for mask in self.hidden),
            zeroed=tuple(reshape_lead(mask, self.lead, lead) for mask in self.zeroed),
        )


def _sides(every: "Sequence[Scores]") -> "Iterator[list[tuple[Tensor, Scores]]]":
    """The vectors of the rows and those of the columns, each with its scores."""
    yield [(one.a, one) for one in every]
    yield [(one.b, one) for one in every]


def _place(vectors: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Where vectors are in memory: equal for tensors that show the same numbers."""
    return vectors.data_ptr(), vectors.shape, vectors.stride()


def _expanded(vectors: Tensor, lead: tuple[int, ...]) -> Tensor:
    return torch.broadcast_to(vectors, (*lead, *vectors.shape[-2:]))


def number(value: object) -> float | None:
    """A Python number, or a tensor of one element, as a float; None for anything else."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and value.dim() <= 1 else None
    return float(value) if isinstance(value, (int, float)) else None
