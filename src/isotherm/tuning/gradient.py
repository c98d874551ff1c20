"""The temperature gradient: by how much the loss changes with ln scale, for every layer and head, from one backward pass.

∂loss/∂ln f at f is f·∂loss/∂f, and the backward pass reaches the factors wherever it reaches q. Below 0 a head wants to be
sharper, above 0 softer. Weights get no gradient: only the factors are asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from isotherm.record.tune import TemperatureGradient
from isotherm.student import student
from isotherm.tuning.knobs import Knobs
from isotherm.tuning.losses import Task

Floats = NDArray[np.float64]
FEWEST = 4
"""With fewer groups of documents no head is judged."""


@dataclass(frozen=True)
class Slopes:
    """∂loss/∂ln scale of each group of documents [groups, heads of all layers], with each group's share and loss."""

    heads: dict[str, int]
    values: Floats
    shares: Floats
    losses: Floats

    def record(self, task: Task) -> TemperatureGradient:
        """Every layer and head with its mean and margin."""
        mean, margin = self._mean(self.values)
        ends = np.cumsum(list(self.heads.values()))[:-1]
        loss = float(self.shares @ self.losses)
        tables = [tuple(tuple(map(_known, part)) for part in np.split(side, ends)) for side in (mean, margin)]
        gradient, margins = tables
        return TemperatureGradient(
            task.name, task.length, task.count, loss, tuple(self.heads), gradient, margins, self._beyond()
        )

    def _beyond(self) -> float | None:
        """Margins of all heads at once over those of one (Bonferroni); None for so few groups that they may agree by chance."""
        groups, heads = self.values.shape
        return None if groups < FEWEST else student(groups - 1, 1 - 0.05 / heads) / student(groups - 1)

    def by_layer(self) -> dict[tuple[str, int | None], tuple[float, float]]:
        """The mean and the margin of each layer, all its heads together."""
        ends = np.cumsum(list(self.heads.values()))[:-1]
        sums = np.stack([part.sum(1) for part in np.split(self.values, ends, axis=1)], 1)
        pairs = zip(*self._mean(sums), strict=True)
        return {(name, None): (float(m), float(e)) for name, (m, e) in zip(self.heads, pairs, strict=True)}

    def by_head(self) -> dict[tuple[str, int | None], tuple[float, float]]:
        """The mean and the margin of each head."""
        places = [(name, head) for name, heads in self.heads.items() for head in range(heads)]
        pairs = zip(*self._mean(self.values), strict=True)
        return {place: (float(m), float(e)) for place, (m, e) in zip(places, pairs, strict=True)}

    def _mean(self, values: Floats) -> tuple[Floats, Floats]:
        """The mean over groups and its 95 % margin, NaN where there is one group."""
        mean, count = self.shares @ values, len(values)
        if count < 2:
            return mean, np.full_like(mean, np.nan)
        variance = self.shares @ (values - mean) ** 2 / (count - 1)
        return mean, student(count - 1) * np.sqrt(variance)


def slopes(model: nn.Module, knobs: Knobs, task: Task, tell: Callable[[float], object] = lambda _: None) -> Slopes:
    """The gradient at the factors as they are: one forward and one backward pass over all documents."""
    found, sizes, losses = [], [], []
    leaves = knobs.leaves()
    for number, group in enumerate(task.groups):
        with torch.enable_grad():
            each = task.losses(model, group)
            gradients = torch.autograd.grad(each.mean(), leaves, allow_unused=True)
        rows = [torch.zeros_like(a) if g is None else g * a for a, g in zip(leaves, gradients, strict=True)]
        found.append(torch.cat(rows).detach().double().cpu().numpy())
        sizes.append(len(each))
        losses.append(float(each.detach().double().mean()))
        tell((number + 1) / len(task.groups))
    shares = np.array(sizes, float) / sum(sizes)
    return Slopes({name: knobs.heads[name] for name in knobs.names}, np.stack(found), shares, np.array(losses))


def _known(value: float) -> float | None:
    return float(value) if isfinite(value) else None
