"""Shares: what is normalised over an axis, but was not made of a product of two activations that was followed.

A softmax over scores that a learned vector, an added query and key, or a library in C made is such a thing, and so are
exponentials divided by their sum. If shares take means of activations over positions, that is attention, and its logits are
what the softmax was given. If they are over the features of a projection, a router, a gate or a classifier made them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from isotherm.probe.frames import Record
from isotherm.probe.functions import PASSED_ON
from isotherm.probe.groups import Groups, groups_of
from isotherm.probe.keep import storage_of
from isotherm.probe.masks import NEVER
from isotherm.probe.reasons import AFTERWARDS
from isotherm.probe.recognise import recognise_logits
from isotherm.probe.session import Session
from isotherm.probe.trail import Trail
from isotherm.probe.weights import ModelWeights

KEPT = frozenset({*PASSED_ON, "mul", "multiply", "div", "exp", "masked_fill", "where", "add", "index_select", "gather"})
"""Functions whose result still has the shares of its first argument, although perhaps not all of them."""
SUMMED = frozenset({"sum", "cumsum", "add", "reciprocal", "index_select", "gather"})
"""Functions whose result is still made of exponentials."""
DIVISIONS = frozenset({"div", "divide", "true_divide", "mul", "multiply"})
SLICES = 16
"""How many slices of a projection's features are compared with logits at most."""
ALIKE = 0.5
"""A correlation from which on logits are taken for a changed output of a projection."""
NEAR = 1e-2
"""How far the sums of shares may be from one."""


@dataclass(eq=False)
class Exponentials:
    """Exponentials of `logits`. `groups` are those that a scatter added up."""

    logits: Tensor
    groups: Groups | None = None


@dataclass(eq=False)
class Share:
    """Logits whose softmax over `axis` was taken. `seen` says that it was captured."""

    logits: Tensor
    axis: int
    seen: bool = False


class Shares:
    """The tensors of a forward pass that are shares, and the exponentials that may become some."""

    def __init__(self, session: Session, weights: ModelWeights) -> None:
        self._session, self._weights = session, weights
        self._known, self._exponentials = WeakTensorKeyDictionary(), WeakTensorKeyDictionary()
        self._sums = WeakTensorKeyDictionary()

    @property
    def any(self) -> bool:
        """Whether anything is known."""
        return bool(self._known.data or self._exponentials.data)

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor in self._known

    def softmaxed(self, logits: Tensor, axis: int, result: Tensor) -> None:
        """Note what a softmax over something that is not followed gave."""
        if logits in self._weights or self._along_features(logits, axis):
            return
        overwritten = storage_of(result) == storage_of(logits)
        self._known[result] = Share(result.log() if overwritten else logits.detach(), axis % logits.dim())

    def exponentiated(self, logits: Tensor, result: Tensor) -> None:
        """Note exponentials of something that is not followed."""
        if logits not in self._weights:
            self._exponentials[result] = Exponentials(logits.detach())

    def pass_on(self, name: str, given: Sequence[Tensor], result: Tensor) -> None:
        """Note that a result was made of shares, or of exponentials."""
        for one in given[:2]:
            if one in self._known and (name in KEPT or (len(given) > 1 and given[1] in self._weights)):
                self._known[result] = self._known[one]
            if one in self._exponentials and (name in SUMMED or name in PASSED_ON):
                self._exponentials[result] = self._exponentials[one]
            if one in self._sums and (name in SUMMED or name in PASSED_ON):
                self._sums[result] = True
        if name in DIVISIONS and len(given) > 1 and any(one in self._exponentials for one in given[:2]):
            self._divided(given, result)

    def summed(self, tensor: Tensor, axis: object, result: Tensor) -> None:
        """Note sums of exponentials over positions."""
        of = self._exponentials.get(tensor)
        if of is None or not isinstance(axis, int):
            return
        place = axis % tensor.dim()
        if place >= of.logits.dim() or not self._along_features(of.logits, place):
            self._sums[result] = True

    def scattered(self, args: Sequence[Any], result: Tensor) -> None:
        """Note sums of exponentials by groups."""
        of = self._exponentials.get(args[3]) if isinstance(args[3], Tensor) else None
        if of is not None:
            of.groups = groups_of(args, result)
            self._exponentials[result], self._sums[result] = of, True

    def _divided(self, given: Sequence[Tensor], result: Tensor) -> None:
        """Exponentials divided by sums of theirs are shares, along the axis over which these are constant. If something else
        was divided by sums over positions, its rows cannot be read."""
        of, axis = self._exponentials.get(given[0]), normalised_along(given, result)
        if of is not None and of.groups is not None and of.groups.are_normalised(result):
            recognise_logits(self._session, Trail.unknown(), of.groups.rows(result.detach().double().log()), -1)
        elif of is not None and axis is not None:
            if not (of.logits.shape == result.shape and self._along_features(of.logits, axis)):
                self._known[result] = Share(result.double().log(), axis)
        elif given[1] in self._sums and (frame := self._session.frames.attending) is not None:
            self._session.miss(AFTERWARDS, frame.name, frame.kind)

    def used(self, tensor: Tensor, axis: int) -> bool:
        """Capture shares that take means over `axis` of activations. False if the tensor is no such thing."""
        share = self._known.get(tensor)
        if share is None or tensor.shape[axis] != share.logits.shape[share.axis] or tensor.shape[axis] < 2:
            return False
        if not share.seen:
            share.seen = True
            recognise_logits(self._session, Trail.unknown(), share.logits, share.axis)
        return True

    def _along_features(self, logits: Tensor, axis: int) -> bool:
        """Whether an axis of the logits runs along the features of a projection that made them, or along several of those."""
        single = set[str]()
        for record in self._projections():
            found = _is_of_features(logits, axis, record, self._session.frames.modules.get(record.name))
            if found is not None:
                return found
            if record.output.numel() * logits.shape[axis] == logits.numel():
                single.add(record.name)
        return len(single) >= logits.shape[axis]

    def _projections(self) -> Iterator[Record]:
        for frame in reversed(self._session.frames.stack):
            yield from (record for record in reversed(frame.records) if record.kind == "projection")


def _is_of_features(logits: Tensor, axis: int, record: Record, module: nn.Module | None) -> bool | None:
    """Whether the axis runs along the projection's features; None if the logits were not made of its output alone, by all that
    can be told: they are in its memory, or their numbers go with its own and its features, or some of them, are their axes."""
    output = record.output
    features = 1 if isinstance(module, (nn.Conv1d, nn.Conv2d)) else output.dim() - 1
    step, count = output.stride(features), output.shape[features]
    if storage_of(logits) != record.made:
        vectors = output.numel() // max(1, count)
        if not output.is_contiguous() or not vectors or logits.numel() % vectors:
            return None
        kept = logits.numel() // vectors
        if not {step, step * kept} <= _borders(logits) or not _are_made_of(logits, output, features, kept):
            return None
        count = kept
    return count > 1 and step <= logits.stride(axis) < step * count


def _borders(tensor: Tensor) -> set[int]:
    """How many numbers lie within the innermost axis in memory, the two innermost, and so on."""
    places = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    return {1, *accumulate((size for _, size in places), mul)}


def _are_made_of(logits: Tensor, output: Tensor, features: int, kept: int) -> bool:
    """Whether the logits go with the output, or with `kept` of its features that lie together."""
    count = output.shape[features]
    if kept > count or (kept < count and kept == 1):
        return False
    if count == 1:
        return True
    starts = sorted({*range(0, count - kept + 1, kept), count - kept})[:SLICES]
    return any(_go_together(logits, output.narrow(features, start, kept)) for start in starts)


def normalised_along(given: Sequence[Tensor], result: Tensor) -> int | None:
    """The axis along which a product or quotient sums to one, if one of the two it was made of is constant along it."""
    for axis in range(result.dim() - 1, -1, -1):
        back = axis - result.dim()
        constant = any(one.dim() < -back or one.shape[back] == 1 for one in given[:2])
        if constant and result.shape[axis] > 1:
            sums = result.sum(axis, dtype=torch.promote_types(result.dtype, torch.float32))
            if bool(((sums - 1).abs() < NEAR).all()):
                return axis
    return None


def _go_together(logits: Tensor, output: Tensor) -> bool:
    """Whether logits, in the order of their memory, rise and fall with an output. A scale, a mask or some noise may lie between
    the two."""
    steps = logits.stride()
    order = sorted(range(logits.dim()), key=lambda axis: -steps[axis])
    x, y = logits.permute(order).flatten().double(), output.flatten().double()
    seen = x.isfinite() & (x > NEVER) & y.isfinite()
    x, y = x[seen] - x[seen].mean(), y[seen] - y[seen].mean()
    return bool((x @ y) ** 2 >= ALIKE**2 * (x @ x) * (y @ y))
