"""A bracketed search for the least loss over x = ln factor, in few evaluations.

It starts at 0 and at a step to either side, walks downhill with growing steps until the lowest point has a higher one on both
sides, goes to the vertex of the parabola through these three, and ends with points around it, so that the fit (`estimate.py`)
rests on the same pattern wherever the optimum lies.
"""

from collections.abc import Callable
from math import inf, isfinite, log

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Evaluate = Callable[[float], Floats]
"""The loss of each document at x = ln factor."""

STEP = 0.25
"""The first step, in ln factor: 28 % more or less."""
FARTHEST = log(32)
"""No factor beyond 32, or below 1/32, is tried."""
PATTERN = (-0.3, -0.15, 0.15, 0.3)
"""Where points are wanted around the vertex."""
CLOSE = 0.07
"""A point as close as this to a wanted place stands for it."""
MOST = 9
"""Evaluations, unless the optimum is far away."""


def search(evaluate: Evaluate, most: int = MOST) -> dict[float, Floats]:
    """The documents' losses at every x that was tried. 0 is always among them."""
    tried: dict[float, Floats] = {}

    def loss(x: float) -> float:
        x = min(max(x, -FARTHEST), FARTHEST)
        if x not in tried:
            tried[x] = np.asarray(evaluate(x), float)
        mean = float(tried[x].mean())
        return mean if isfinite(mean) else inf

    left, middle, right = bracket(loss)
    for _ in range(2):
        vertex = parabola((left, loss(left)), (middle, loss(middle)), (right, loss(right)))
        if abs(vertex - middle) < CLOSE / 2 or not left < vertex < right:
            break
        loss(vertex)
        around = sorted((left, middle, right, vertex))
        lowest = min(range(1, 3), key=lambda place: loss(around[place]))
        left, middle, right = around[lowest - 1 : lowest + 2]
    for away in PATTERN:
        if len(tried) < max(most, 3) and all(abs(x - middle - away) > CLOSE for x in tried):
            loss(middle + away)
    return tried


def bracket(loss: Callable[[float], float]) -> tuple[float, float, float]:
    """Three x of which the middle one has the least loss, or the last three on the way to the farthest factor."""
    left, middle, right, step = -STEP, 0.0, STEP, STEP
    while not loss(middle) <= min(loss(left), loss(right)):
        step = step * 1.6
        if loss(left) < loss(right):
            left, middle, right = max(left - step, -FARTHEST), left, middle
        else:
            left, middle, right = middle, right, min(right + step, FARTHEST)
        if middle in (-FARTHEST, FARTHEST, left, right):
            break
    return left, middle, right


def parabola(*points: tuple[float, float]) -> float:
    """The vertex of the parabola through three points; the middle one where they do not bend upwards."""
    (a, fa), (b, fb), (c, fc) = points
    one, two = (b - a) * (fb - fc), (b - c) * (fb - fa)
    down = one - two
    if not -inf < down < 0:
        return b
    return b - 0.5 * ((b - a) * one - (b - c) * two) / down
