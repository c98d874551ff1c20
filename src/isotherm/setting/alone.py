"""Whether what makes a layer's queries makes nothing else: it is tried, with halved queries."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.checkup.examine import without_gradients
from isotherm.checkup.measure import Batch, call
from isotherm.checkup.restoring import Restoring
from isotherm.probe import probe
from isotherm.setting.places import Held
from isotherm.setting.scaled import OnOutput, hold, release

NEAR = 1e-2
"""How much of the difference that the halved queries make may be left after they were restored."""


def makes_only_queries(model: nn.Module, batch: Batch, held: Sequence[Held], queries: Sequence[Tensor]) -> bool | None:
    """Whether modules make these queries, which were seen whole in the model's calls, and nothing else. None where that cannot
    be tried: the queries were not found at a call."""
    halved = [Held(one.module, _half(one.by)) for one in held if isinstance(one.by, OnOutput)]
    before = _outputs(model, batch, [])
    restoring = Restoring([(q, range(q.shape[1])) for q in queries])
    after = _outputs(model, batch, halved, restoring)
    if not all(restoring.met) or len(before) != len(after):
        return None
    difference = _largest(before, after)
    if difference == 0:
        return True
    return difference <= NEAR * _largest(before, _outputs(model, batch, halved))


def _half(by: OnOutput) -> OnOutput:
    """A half of every head, or of the whole."""
    return replace(by, factor=torch.full_like(by.factor, 0.5) if isinstance(by.factor, Tensor) else 0.5)


def _outputs(model: nn.Module, batch: Batch, held: Sequence[Held], restoring: Restoring | None = None) -> list[Tensor]:
    """The tensors that a forward gives, with the same random numbers each time. Under a probe compiled code does not run: it
    would have to be compiled for each of these forwards."""
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(probe(model))
        for one in held:
            hold(one.module, one.by)
            stack.callback(release, one.module, one.by)
        if restoring is not None:
            stack.enter_context(restoring)
        return list(_tensors(without_gradients(lambda: call(model, batch))))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value.detach().clone()
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)


def _largest(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The largest difference."""
    found = [
        float((x.double() - y.double()).abs().nan_to_num().max())
        for x, y in zip(one, other, strict=True)
        if x.shape == y.shape and x.numel()
    ]
    return max(found, default=0.0)
