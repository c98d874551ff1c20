"""Weights that are not used as they were captured.

They are changed after their softmax, and divided by their sums again, before they take means or afterwards. Or they are
exponentials that take means, which are then divided by something else than the exponentials' sums.
"""

from dataclasses import replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from isotherm.language import Text
from isotherm.probe.blocks import Blocks
from isotherm.probe.reasons import AFTERWARDS, IN_PART
from isotherm.probe.recognise import recognise_logits, recognise_weights
from isotherm.probe.session import Session
from isotherm.probe.shares import normalised_along
from isotherm.probe.trail import Trail

KNOWN = frozenset({"softmax", "special_softmax", "safe_softmax", "log_softmax"})
"""Functions whose results are weights, or logarithms of these."""
SAME = 1e-3
"""Rows whose sums are nearer to one are as the softmax gave them."""
NEAR = 1e-2
"""How far a number may be from the sum of a row, as a part of it. What is added so as never to divide by 0 is less."""


class Captured(NamedTuple):
    """Weights that were captured: the index of the capture, their shape, and their axis of keys, counted from the end.
    `sums` are those of exponentials that were not divided yet; None after a softmax, where they are one."""

    capture: int
    shape: tuple[int, ...]
    axis: int
    sums: Tensor | None = None

    @property
    def keys(self) -> int:
        """How many keys each row has."""
        return self.shape[self.axis]


class Changed:
    """The rows that a forward pass has captured, by the products that they were made of."""

    def __init__(self, session: Session, blocks: Blocks) -> None:
        self._session, self._blocks = session, blocks
        self._rows: dict[frozenset[int], Captured] = {}
        self._used: set[frozenset[int]] = set()

    def softmaxed(self, trail: Trail, logits: Tensor, axis: int, capture: int) -> None:
        """Note the capture of a softmax of these logits."""
        self._rows[trail.origins] = Captured(capture, tuple(logits.shape), axis % logits.dim() - logits.dim())

    def after_softmax(self, trail: Trail, name: str) -> Trail:
        """The trail of what a softmax of this name gave. It may be changed later."""
        if name not in KNOWN or trail.captured or trail.exponential or trail.origins not in self._rows:
            return Trail(trail.origins, None, None, captured=True)
        return replace(trail, exponential=name != "log_softmax", captured=True, divided=True)

    def used(self, trail: Trail) -> None:
        """Note that the weights have taken means. What else is made of them does not matter."""
        self._used.add(trail.origins)

    def normalised_again(self, trail: Trail, given: list[Tensor], weights: Tensor) -> None:
        """Weights of a softmax that were changed, and divided by their sums: captured instead of what the softmax gave."""
        axis, sums = normalised_along(given, weights), min(given, key=Tensor.numel)
        if axis is None or bool(((sums - 1).abs() < SAME).all()):
            return
        if self._again(trail, weights, axis):
            self._blocks.take(trail.origins)
            recognise_weights(self._session, replace(trail, captured=False), weights, axis)

    def back_as_weights(self, trail: Trail, weights: Tensor) -> None:
        """Logarithms of weights, back as weights. Had they been changed, and their sums are one, these are captured instead."""
        rows = self._rows.get(trail.origins)
        if rows is None or trail.scores is not None or weights.dim() < -rows.axis:
            return
        sums = weights.sum(rows.axis, dtype=torch.promote_types(weights.dtype, torch.float32))
        if bool(((sums - 1).abs() < SAME).all()) and self._again(trail, weights, rows.axis):
            self._blocks.take(trail.origins)
            recognise_weights(self._session, replace(trail, captured=False, exponential=True), weights, rows.axis)

    def softmaxed_again(self, trail: Trail, given: Tensor, axis: int) -> None:
        """A softmax of weights, or of changed logarithms of weights: captured instead of these."""
        if not trail.exponential and bool((given.logsumexp(axis).abs() < SAME).all()):
            return
        if self._again(trail, given, axis):
            self._blocks.take(trail.origins)
            recognise_logits(self._session, replace(trail.now(None), captured=False, exponential=False), given, axis)

    def undivided(self, trail: Trail, weights: Tensor, axis: int) -> None:
        """Note the last capture: exponentials that took means, but that were divided by nothing so far."""
        if not trail.divided:
            sums = weights.sum(axis, dtype=torch.promote_types(weights.dtype, torch.float32))
            self._rows[trail.origins] = Captured(len(self._session.seen.captures) - 1, tuple(weights.shape), axis, sums)

    def divided(self, by: Trail, number: Tensor) -> None:
        """Note what means were divided by. If that is made of sums of weights, but not of those that were captured, the rows
        are not the model's."""
        rows = self._rows.get(by.origins)
        if rows is None or not by.reduced or number.numel() * rows.keys != prod(rows.shape):
            return
        sums = number.new_ones(1) if rows.sums is None else rows.sums.flatten().sort().values
        apart = number.flatten().sort().values / sums - 1
        if bool((apart.abs() > NEAR).any()) and self._session.frames.attending is not None:
            self._withdraw(rows)
            self._miss(AFTERWARDS)

    def multiplied(self, by: Trail, number: Tensor) -> None:
        """Note what means were multiplied by: one over the sums, if these were not divided before, or if it makes up for
        weights that a softmax gave and that were hidden. A gate is below one."""
        rows = self._rows.get(by.origins)
        if rows is not None and (rows.sums is not None or bool((number >= 1 - NEAR).all())):
            self.divided(by, 1 / number)

    def _again(self, trail: Trail, weights: Tensor, axis: int) -> bool:
        """Whether these are weights of a softmax, or their logarithms, that were changed before they took means: all its rows,
        with all their keys or some. The next capture replaces that one. If these are some of the rows, none can be read."""
        rows = self._rows.get(trail.origins)
        if rows is None or not trail.captured or trail.noisy or trail.origins in self._used:
            return False
        keys, same = weights.shape[axis], rows.shape == tuple(weights.shape)
        over_others = same and rows.axis != axis % weights.dim() - weights.dim()
        if over_others or not 1 < keys <= rows.keys:
            return False
        self._withdraw(rows)
        if not same and weights.numel() // keys != prod(rows.shape) // rows.keys:
            self._miss(IN_PART)
            return False
        self.softmaxed(trail, weights, axis, len(self._session.seen.captures))
        return True

    def _withdraw(self, rows: Captured) -> None:
        if self._session.frames.attending is not None:
            self._session.frames.attending.replaced.add(rows.capture)

    def _miss(self, why: Text) -> None:
        if (frame := self._session.frames.attending) is not None:
            self._session.miss(why, frame.name, frame.kind)
