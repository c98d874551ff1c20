"""Student's interval of a mean over documents, without torch."""

from collections.abc import Sequence
from math import atan, cos, inf, pi, sin, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Z = 1.959964
"""The normal distribution's 97.5 % quantile."""
MANY = 200
"""With more degrees of freedom than this, Student's distribution is taken as normal (t differs by less than 0.7 %)."""


def mean_interval(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float, float]:
    """The mean of independent values and its 95 % interval; one value has none, and gets the whole line.

    >>> [round(number, 3) for number in mean_interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    known = np.asarray(values, float)
    mean = float(known.mean())
    if len(known) < 2:
        return mean, -inf, inf
    half = student(len(known) - 1) * float(known.std(ddof=1)) / sqrt(len(known))
    return mean, mean - half, mean + half


def student(freedom: int, coverage: float = 0.95) -> float:
    """The t with P(|T| ≤ t) = 0.95, or another coverage, at so many degrees of freedom.

    >>> round(student(4), 4), round(student(9), 4), round(student(9, 0.99), 4)
    (2.7764, 2.2622, 3.2498)
    """
    if freedom > MANY:
        return Z if coverage == 0.95 else NormalDist().inv_cdf((1 + coverage) / 2)
    low, high = 0.0, 20.0
    while _within(high, freedom) < coverage:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < coverage else (low, middle)
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
