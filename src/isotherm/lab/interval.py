"""How sure a number is: a mean over seeds, a quantile, a share, each with its 95 % interval; slopes and effect sizes.

Nothing here is drawn at random, so a record with intervals in it still reproduces bit for bit.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, copysign, exp, floor, inf, log, sqrt
from typing import Any

import torch
from torch import Tensor

from isotherm.language import Text
from isotherm.record import Line, Measured
from isotherm.student import Z, student

GROUPS = 40


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean over `count` seeds, its 95 % interval, and the standard deviation between seeds."""

    mean: float
    low: float
    high: float
    spread: float
    count: int

    @property
    def farthest(self) -> float:
        """The larger of |low| and |high|."""
        return max(abs(self.low), abs(self.high))


Kind = Callable[[Sequence[float]], MeanInterval]
"""`interval` or `geometric`."""


def interval(values: Sequence[float]) -> MeanInterval:
    """Student's 95 % interval of the mean; one value has none, and gets the whole line."""
    count = len(values)
    mean = sum(values) / count
    if count == 1:
        return MeanInterval(mean, float("-inf"), float("inf"), float("nan"), 1)
    spread = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    half = student(count - 1) * spread / sqrt(count)
    return MeanInterval(mean, mean - half, mean + half, spread, count)


def geometric(values: Sequence[float]) -> MeanInterval:
    """The same for numbers that differ by orders of magnitude (gates, surviving gradients): the interval of their logarithm."""
    found = interval([log(value) for value in values])
    return MeanInterval(exp(found.mean), exp(found.low), exp(found.high), exp(found.spread), found.count)


def bisect(below: Callable[[float], bool], low: float, high: float, rounds: int) -> tuple[float, float]:
    """The two sides of the point up to which `below` is true, after halving [low, high] so many times."""
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low, high


def effect_size(a: Sequence[float], b: Sequence[float]) -> float:
    """Cohen's d: how many (pooled) standard deviations between seeds the mean of `a` lies above that of `b`."""
    one, two = interval(a), interval(b)
    freedom = one.count + two.count - 2
    pooled = sqrt(((one.count - 1) * one.spread**2 + (two.count - 1) * two.spread**2) / freedom)
    gap = one.mean - two.mean
    return gap / pooled if pooled else copysign(inf, gap) if gap else 0.0


def power(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent a of y ∝ xᵃ by least squares of ln y on ln x."""
    return slope([log(value) for value in x], [log(value) for value in y])


def powers(x: Sequence[float], values: Iterable[Sequence[float]]) -> list[float]:
    """The exponent of y ∝ xᵃ for each seed; `values[i]` are the seeds' numbers at x[i]."""
    return [power(x, seed) for seed in zip(*values, strict=False)]


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares slope of y on x."""
    centre, level = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - centre) ** 2 for a in x)
    return sum((a - centre) * (b - level) for a, b in zip(x, y, strict=True)) / across


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


def over_seeds(name: Text, values: Sequence[float], kind: Kind = interval, **extra: Any) -> Measured:
    """The mean over seeds with its interval, as a record shows it; one seed has no interval."""
    found = kind(values)
    low, high = (found.low, found.high) if found.count > 1 else (None, None)
    return Measured(name, found.mean, low, high, **extra)


def line_over_seeds(name: Text, x: Sequence[float], values: Iterable[Sequence[float]], kind: Kind = interval) -> Line:
    """A curve of means with its band; `values[i]` are the seeds' numbers at x[i]."""
    found = [kind(seeds) for seeds in values]
    return Line(
        name,
        tuple(float(at) for at in x),
        tuple(at.mean for at in found),
        tuple(at.low if at.count > 1 else None for at in found),
        tuple(at.high if at.count > 1 else None for at in found),
    )


def quantile_of(name: Text, values: Tensor, q: float, **extra: Any) -> Measured:
    """A quantile as a record shows it."""
    return Measured(name, *quantile(values, q), **extra)


def share_of(name: Text, flags: Tensor, **extra: Any) -> Measured:
    """A share as a record shows it."""
    return Measured(name, *share(flags), **extra)


def quantile_line(name: Text, x: Sequence[float], rows: Iterable[Tensor], q: float) -> Line:
    """A curve of quantiles with its band; `rows[i]` are the draws at x[i]."""
    y, low, high = zip(*(quantile(values, q) for values in rows), strict=True)
    return Line(name, tuple(map(float, x)), y, low, high)


def share_line(name: Text, x: Sequence[float], rows: Iterable[Tensor]) -> Line:
    """A curve of shares with its band; `rows[i]` are the draws at x[i]."""
    y, low, high = zip(*(share(flags) for flags in rows), strict=True)
    return Line(name, tuple(map(float, x)), y, low, high)
