"""Quantiles and shares over many draws, with intervals that assume nothing about their distribution."""

from math import ceil, floor, sqrt
from typing import Any

import torch
from torch import Tensor

from isotherm.language import Text
from isotherm.record import Line, Measured

Z = 1.959964
GROUPS = 40


def quantile(values: Tensor, q: float) -> tuple[float, float, float]:
    """The q-quantile of independent values and its 95 % interval: the order statistics √(nq(1 − q))·1.96 ranks away.

    >>> quantile(torch.arange(101.0), 0.5)
    (50.0, 40.0, 60.0)
    """
    ordered = values.flatten().double().sort().values
    count = len(ordered)
    reach = Z * sqrt(count * q * (1 - q))
    at = (count - 1) * q
    low, high = max(floor(at - reach), 0), min(ceil(at + reach), count - 1)
    below, share = floor(at), at - floor(at)
    value = torch.lerp(ordered[below], ordered[min(below + 1, count - 1)], share)
    return float(value), float(ordered[low]), float(ordered[high])


def share(flags: Tensor) -> tuple[float, float, float]:
    """The share of true ones and Wilson's 95 % interval.

    >>> [round(number, 3) for number in share(torch.tensor([True] * 9 + [False]))]
    [0.9, 0.596, 0.982]
    """
    count, hits = flags.numel(), float(flags.sum())
    centre = (hits + Z**2 / 2) / (count + Z**2)
    half = Z / (count + Z**2) * sqrt(hits * (count - hits) / count + Z**2 / 4)
    value = hits / count
    return value, max(min(centre - half, value), 0.0), min(max(centre + half, value), 1.0)


def groups(values: Tensor, count: int = GROUPS) -> list[float]:
    """Means of equal groups of independent values: few numbers with the same mean, for Student's interval."""
    size = max(1, values.numel() // count)
    kept = values.flatten().double()[: values.numel() // size * size]
    return kept.reshape(-1, size).mean(-1).tolist()


def quantile_of(name: Text, values: Tensor, q: float, **extra: Any) -> Measured:
    """A quantile as a record shows it."""
    return Measured(name, *quantile(values, q), **extra)


def share_of(name: Text, flags: Tensor, **extra: Any) -> Measured:
    """A share as a record shows it."""
    return Measured(name, *share(flags), **extra)


def quantile_line(name: Text, x: tuple[float, ...], rows: list[Tensor], q: float) -> Line:
    """A curve of quantiles with its band; `rows[i]` are the draws at x[i]."""
    y, low, high = zip(*(quantile(values, q) for values in rows), strict=True)
    return Line(name, x, y, low, high)


def share_line(name: Text, x: tuple[float, ...], rows: list[Tensor]) -> Line:
    """A curve of shares with its band."""
    y, low, high = zip(*(share(flags) for flags in rows), strict=True)
    return Line(name, x, y, low, high)
