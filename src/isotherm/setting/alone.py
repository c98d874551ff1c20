"""Whether what makes a layer's queries makes nothing else: a model may add them to its output, or gate its values by them.

It is tried. The queries are halved where a factor would be put, and doubled again at the call. Both are exact in every
precision, so the model gives what it gave before, unless something else was halved, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from isotherm.checkup.examine import without_gradients
from isotherm.checkup.measure import Batch, call
from isotherm.probe import probe
from isotherm.probe.functions import MATRICES, known, positional
from isotherm.probe.sdpa import ARGUMENTS
from isotherm.setting.at_call import KERNEL
from isotherm.setting.places import Held
from isotherm.setting.scaled import OnOutput, hold, release

NEAR = 1e-2
"""How much of the difference that the halved queries make may be left after they were doubled."""


class Doubling(TorchFunctionMode):
    """Doubles what equals half of these queries, where it is multiplied with keys."""

    def __init__(self, queries: Sequence[Tensor]) -> None:
        super().__init__()
        self._halves = [q / 2 for q in queries]
        self.met = [False for _ in queries]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass one call on."""
        kwargs = {} if kwargs is None else kwargs
        name = known(func).name
        if name == KERNEL:
            given = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
            return func(**{**given, "query": self._doubled(given["query"])})
        if name in MATRICES and name != "linear":
            args, kwargs = positional(name, args, kwargs)
            first = MATRICES[name]
            args = (*args[:first], self._doubled(args[first]), *args[first + 1 :])
        return func(*args, **kwargs)

    def _doubled(self, q: Tensor) -> Tensor:
        for place, half in enumerate(self._halves):
            if q.dtype is half.dtype and q.numel() == half.numel() and torch.equal(q.reshape(half.shape), half):
                self.met[place] = True
                return q * 2
        return q


def makes_only_queries(model: nn.Module, batch: Batch, held: Sequence[Held], queries: Sequence[Tensor]) -> bool | None:
    """Whether modules make these queries, which were seen whole in the model's calls, and nothing else. None where that cannot
    be tried: the queries were not found at a call."""
    halved = [Held(one.module, _half(one.by)) for one in held if isinstance(one.by, OnOutput)]
    before = _outputs(model, batch, [])
    doubling = Doubling(queries)
    after = _outputs(model, batch, halved, doubling)
    if not all(doubling.met) or len(before) != len(after):
        return None
    difference = _largest(before, after)
    if difference == 0:
        return True
    return difference <= NEAR * _largest(before, _outputs(model, batch, halved))


def _half(by: OnOutput) -> OnOutput:
    """A half of every head, or of the whole."""
    return replace(by, factor=torch.full_like(by.factor, 0.5) if isinstance(by.factor, Tensor) else 0.5)


def _outputs(
    model: nn.Module, batch: Batch, held: Sequence[Held], mode: TorchFunctionMode | None = None
) -> list[Tensor]:
    """The tensors that a forward gives, with the same random numbers each time. Under a probe compiled code does not run: it
    would have to be compiled for each of these forwards."""
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(probe(model))
        for one in held:
            hold(one.module, one.by)
            stack.callback(release, one.module, one.by)
        if mode is not None:
            stack.enter_context(mode)
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
