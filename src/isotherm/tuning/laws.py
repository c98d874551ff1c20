"""Which law over the length n the tuned factors follow.

Each law has one free number, a constant c, so they are compared by χ² alone: the sum over lengths of
((ln factor − ln c·g(n)) / its standard deviation)². A law is supported if its χ² is within 3.84 of the least one (the 95 %
quantile of one degree of freedom): lengths that cannot tell two laws apart support both. If even the least χ² is beyond the
95 % quantile of its degrees of freedom, no law fits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

WITHIN = 3.841
"""The 95 % quantile of χ² with one degree of freedom."""
ONE_SIDED = 1.644854
"""The normal distribution's 95 % quantile."""


@dataclass(frozen=True)
class Law:
    """A name, a formula and g(n): the factor is c·g(n). `first` is the shortest length."""

    name: str
    formula: str
    shape: Callable[[float, float], float]


LAWS = (
    Law("constant", "c", lambda n, first: 1.0),  # noqa: ARG005
    Law("sqrt-log", "c·√(ln n)", lambda n, first: sqrt(log(n))),  # noqa: ARG005
    Law("log", "c·ln n", lambda n, first: log(n)),  # noqa: ARG005
    Law("log-squared", "c·(ln n)²", lambda n, first: log(n) ** 2),  # noqa: ARG005
    Law("yarn", "c·(0.1·ln(n/{first}) + 1)²", lambda n, first: (0.1 * log(n / first) + 1) ** 2),
)


@dataclass(frozen=True)
class Fit:
    """A law with its constant, its χ², and whether the lengths support it."""

    law: Law
    constant: float
    chi_squared: float
    supported: bool


def fit(lengths: Sequence[int], xs: Sequence[float], sigmas: Sequence[float]) -> tuple[Fit, ...]:
    """Every law fitted to ln factors with these standard deviations, best first. None of them with one length."""
    if len(lengths) < 2 or min(lengths) < 2:
        return ()
    weights = [1 / max(sigma, 1e-6) ** 2 for sigma in sigmas]
    found = []
    for law in LAWS:
        rest = [x - log(law.shape(n, min(lengths))) for n, x in zip(lengths, xs, strict=True)]
        level = sum(w * r for w, r in zip(weights, rest, strict=True)) / sum(weights)
        found.append((law, exp(level), sum(w * (r - level) ** 2 for w, r in zip(weights, rest, strict=True))))
    least = min(chi for *_, chi in found)
    fits = [Fit(law, constant, chi, chi - least <= WITHIN) for law, constant, chi in found]
    return tuple(sorted(fits, key=lambda one: one.chi_squared))


def any_fits(fits: Sequence[Fit], lengths: int) -> bool:
    """Whether the best law's χ² is within what chance allows."""
    return bool(fits) and fits[0].chi_squared <= chi_squared_95(lengths - 1)


def chi_squared_95(freedom: int) -> float:
    """The 95 % quantile of χ², by Wilson and Hilferty's cube (within 2 % of the exact one).

    >>> round(chi_squared_95(4), 2)
    9.46
    """
    part = 2 / (9 * freedom)
    return freedom * (1 - part + ONE_SIDED * sqrt(part)) ** 3
