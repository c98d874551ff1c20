"""Whether what makes a layer's queries makes nothing else. It is tried, on a copy of the model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from isotherm.checkup.changes import Members
from isotherm.checkup.measure import Batch
from isotherm.checkup.restoring import Queries
from isotherm.checkup.trial import Bench
from isotherm.checkup.ways import CallSite
from isotherm.probe import Capture
from isotherm.setting.places import Held, place_name
from isotherm.setting.scaled import OnOutput, hold


def other_uses(
    model: nn.Module, batch: Batch, captures: Sequence[Capture], placed: Mapping[int, Sequence[Held]]
) -> set[int]:
    """The layers, of those whose queries something is to multiply before the call, in which that multiplies more."""
    members = Members(model)
    served = {index: [one for one in captures if place_name(one) == place_name(captures[index])] for index in placed}
    tried = [(index, one) for index, calls in served.items() for one in calls if all(x.rows is None for x in calls)]
    halved = [(one.module, one.by) for index in dict(tried) for one in placed[index] if isinstance(one.by, OnOutput)]
    if not halved:
        return set()
    queries = [Queries(one.problem.q, range(one.problem.q.shape[1]), _around(members, one)) for _, one in tried]
    names = {id(module): name for name, module in model.named_modules()}

    def halve(copied: nn.Module) -> None:
        for module, by in halved:
            hold(copied.get_submodule(names[id(module)]), _half(by))

    around = {name for one in queries for name in one.around} | {capture.name for capture in captures}
    used = Bench(model, batch, captures, around).other_uses(halve, queries)
    return {index for (index, _), other in zip(tried, used, strict=True) if other}


def _around(members: Members, capture: Capture) -> frozenset[str]:
    return CallSite(members, capture, "").around


def _half(by: OnOutput) -> OnOutput:
    """A half of every head, or of the whole."""
    return replace(by, factor=torch.full_like(by.factor, 0.5) if isinstance(by.factor, Tensor) else 0.5)
