"""How sure a mean over seeds is: Student's interval, the size of an effect, the slope of a power law.

Nothing here is drawn at random, so a record with intervals in it still reproduces bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import atan, copysign, cos, exp, inf, log, pi, sin, sqrt
from typing import Any

from isotherm.language import Text
from isotherm.record import Line, Measured


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over `count` seeds, its 95 % interval, and the standard deviation between seeds."""

    mean: float
    low: float
    high: float
    spread: float
    count: int


Kind = Callable[[Sequence[float]], Interval]
"""`interval` or `geometric`."""


def interval(values: Sequence[float]) -> Interval:
    """Student's 95 % interval of the mean; one value has none, and gets the whole line."""
    count = len(values)
    mean = sum(values) / count
    if count == 1:
        return Interval(mean, float("-inf"), float("inf"), float("nan"), 1)
    spread = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    half = student(count - 1) * spread / sqrt(count)
    return Interval(mean, mean - half, mean + half, spread, count)


def geometric(values: Sequence[float]) -> Interval:
    """The same for numbers that differ by orders of magnitude (gates, surviving gradients): the interval of their logarithm."""
    found = interval([log(value) for value in values])
    return Interval(exp(found.mean), exp(found.low), exp(found.high), exp(found.spread), found.count)


def student(freedom: int) -> float:
    """The t with P(|T| ≤ t) = 0.95 at so many degrees of freedom.

    >>> round(student(4), 4), round(student(9), 4)
    (2.7764, 2.2622)
    """
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| ≤ t), the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term, total = (cos(angle) if odd else 1.0), 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k - 1) / k
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


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


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares slope of y on x."""
    centre, level = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - centre) ** 2 for a in x)
    return sum((a - centre) * (b - level) for a, b in zip(x, y, strict=True)) / across


def over_seeds(name: Text, values: Sequence[float], kind: Kind = interval, **extra: Any) -> Measured:
    """The mean over seeds with its interval, as a record shows it; one seed has no interval."""
    found = kind(values)
    low, high = (found.low, found.high) if found.count > 1 else (None, None)
    return Measured(name, found.mean, low, high, **extra)


def line_over_seeds(name: Text, x: Sequence[float], values: Sequence[Sequence[float]], kind: Kind = interval) -> Line:
    """A curve of means with its band; `values[i]` are the seeds' numbers at x[i]."""
    found = [kind(seeds) for seeds in values]
    return Line(
        name,
        tuple(float(at) for at in x),
        tuple(at.mean for at in found),
        tuple(at.low if at.count > 1 else None for at in found),
        tuple(at.high if at.count > 1 else None for at in found),
    )
