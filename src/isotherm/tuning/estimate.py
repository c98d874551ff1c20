"""The factor with the least loss, with its interval, from the losses of the same documents at a few factors.

Everything happens over x = ln factor. Near its minimum the mean loss is fitted by a cubic (a parabola where there are fewer
than five points): too sharp and too flat by as much do not cost the same.
The fit is linear in the losses, so

- resampling documents gives the interval of the minimum without another run of the model, and
- each document has a fitted curve of its own. The gain is cross-validated with them: the optimum of the other documents is
  judged on those left out, so that noise alone gains nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isotherm.student import Z, mean_interval
from isotherm.tuning.search import FARTHEST, Evaluate, Floats, search

Losses = Mapping[float, Floats]
"""The loss of each document, always in the same order, at each x that was tried."""

REACHES = (0.45, 0.9, 1.8, 8.0)
"""Points as far from the lowest one as this, in ln factor, take part in the fit. A wider reach is taken where the interval of
the optimum would end at the edge of a narrower one."""
BEYOND, WIDER = 4, 0.35
"""So many more points, so far from the outermost one, are tried to enclose a wide interval."""
RESAMPLES = 2000
FOLDS = 10
FINE = 801
"""Places of the window at which fitted curves are compared."""


@dataclass(frozen=True)
class Optimum:
    """Where the fitted loss is least, in ln factor, and the 95 % interval of that place.

    `loss` is the fitted loss there. `gain` is what the documents gain from x = 0 to there, cross-validated, with its
    interval. `enclosed` says whether that of the place ends before the outermost factors that were tried.
    """

    x: float
    low: float
    high: float
    loss: float
    gain: float
    gain_low: float
    gain_high: float
    enclosed: bool


class FittedCurve:
    """A polynomial in x − centre through losses at a few x, by least squares; `places` are where it can be trusted."""

    def __init__(self, xs: Floats, centre: float) -> None:
        self.centre = centre
        degree = 3 if len(xs) >= 5 else 2
        self.solve = np.linalg.pinv(np.vander(xs - centre, degree + 1))
        self.places = np.linspace(xs.min(), xs.max(), FINE)
        self._powers = np.vander(self.places - centre, degree + 1)

    def at(self, losses: Floats, x: float) -> Floats:
        """The fitted losses [...] at x, from losses [..., points]."""
        fitted: Floats = losses @ self.solve.T @ np.vander(np.array([x - self.centre]), self.solve.shape[0])[0]
        return fitted

    def lowest(self, losses: Floats) -> Floats:
        """Where the fit of losses [..., points] is least: [...]. Between two places by the parabola through three."""
        values = losses @ self.solve.T @ self._powers.T
        at = values.argmin(-1)
        inner = at.clip(1, len(self.places) - 2)
        left, middle, right = (np.take_along_axis(values, (inner + by)[..., None], -1)[..., 0] for by in (-1, 0, 1))
        bend = left - 2 * middle + right
        step = np.where((at == inner) & (bend > 0), 0.5 * (left - right) / np.where(bend > 0, bend, 1), 0.0)
        found: Floats = self.places[at] + step * (self.places[1] - self.places[0])
        return found


def around(losses: Losses, reach: float = REACHES[0]) -> tuple[Floats, Floats]:
    """The x within reach of the lowest mean loss, at least three where there are, and the losses there [documents, points]."""
    xs = np.array(sorted(x for x in losses if np.isfinite(losses[x]).all()))
    table = np.stack([np.asarray(losses[float(x)], float) for x in xs], -1)
    lowest = int(table.mean(0).argmin())
    near = np.abs(xs - xs[lowest]) <= reach
    near[max(lowest - 1, 0) : lowest + 2] = True
    return xs[near], table[:, near]


def optimum(losses: Losses, seed: int = 0) -> Optimum:
    """The optimum of losses that were measured at x = 0 and around their minimum."""
    as_is = np.asarray(losses[0.0], float)
    for reach in REACHES:
        xs, table = around(losses, reach)
        curve = FittedCurve(xs, float(xs.mean()))
        x = float(curve.lowest(table.mean(0)))
        low, high = map(float, np.quantile(curve.lowest(_resampled(table, seed)), [0.025, 0.975]))
        if xs[0] < low <= high < xs[-1]:
            break
    gain = mean_interval(_gains(curve, table, as_is))
    loss = float(curve.at(table.mean(0), x))
    return Optimum(x, min(low, x), max(high, x), loss, *gain, enclosed=bool(xs[0] < low and high < xs[-1]))


def enclosed(evaluate: Evaluate, most: int) -> dict[float, Floats]:
    """The losses at what a search tries and, where the interval of the optimum reaches the end of that, a little beyond."""
    tried = search(evaluate, most)
    for _ in range(BEYOND):
        found, first, last = optimum(tried), min(tried), max(tried)
        if found.enclosed or not -FARTHEST < first < last < FARTHEST:
            break
        x = first - WIDER if found.low - first < last - found.high else last + WIDER
        tried[x] = np.asarray(evaluate(x), float)
    return tried


def _resampled(table: Floats, seed: int) -> Floats:
    """Means over documents drawn with replacement: [RESAMPLES, points]."""
    count = len(table)
    chance = np.random.default_rng(seed)
    drawn = chance.multinomial(count, np.full(count, 1 / count), RESAMPLES) / count
    means: Floats = drawn @ table
    return means


def _gains(curve: FittedCurve, table: Floats, as_is: Floats) -> Floats:
    """For each document, its loss as it is less its fitted loss at the optimum of the documents in other folds."""
    count = len(table)
    folds = np.arange(count) % min(FOLDS, count)
    gains = np.zeros(count)
    for fold in range(folds.max() + 1):
        out = folds == fold
        chosen = table if out.all() else table[~out]
        gains[out] = as_is[out] - curve.at(table[out], float(curve.lowest(chosen.mean(0))))
    return gains


def spread(low: float, high: float) -> float:
    """The standard deviation that a 95 % interval of ln factor stands for."""
    return (high - low) / (2 * Z)
