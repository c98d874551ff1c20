"""Calls of the lesson's mathematics with the library's answers: one list for node and for the browser.

An expectation is a tree of numbers, and with it how far from it an answer may be: 1e-9 of each number's own size, and an
absolute part only where a number is a difference that may be 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import erfc, inf, nan, sqrt
from typing import Any

import numpy as np
import torch

from isotherm import scale, softmax, theory
from isotherm.stats import STATISTICS, RowStats

RELATIVE = 1e-9
ROW_STATISTICS = [name for name in STATISTICS if name != "sink"]  # a lesson's row has no first key that matters
EXPECTATIONS = ("n", "sigma", "jacobian_trace", "collision", "entropy", "lse", "max_logit")
RULES = [
    "none",
    "1/sqrt(d)",
    "1/d",
    "1/d:64",
    "1/d:none,0.75",
    "query-pre-attn-scalar",
    "query-pre-attn-scalar:144",
    "log-n",
    "log-n:16 * 1/sqrt(d)",
    "ssmax",
    "ssmax:0.2 * 1/sqrt(d)",
    "yarn:1",
    "yarn:32 * 1/sqrt(d)",
    "qk-norm",
    "cosine",
    "cosine:3",
    "cosine:9",
    "0.125",
    "x0.5 * 1/sqrt(d)",
]


@dataclass(frozen=True)
class Vector:
    """A call, the library's answer, and the absolute error allowed beside the relative one."""

    call: tuple[Any, ...]
    expected: Any
    absolute: float | dict[str, float] = 0.0


def rows() -> Iterator[list[float]]:
    """Rows of logits: ordinary, frozen, masked, broken, of every length and spread."""
    yield from ([1.0, 1.0, 2.0], [0.0], [3.0] * 7, [0.0, -69.07755], [1e4, 1e4 - 30.0, 1e4 - 800.0], [1e308, -1e308])
    yield from ([-inf, 0.0, 1.0], [-inf, -inf], [inf, 0.0], [nan, 1.0], [5e-324, 0.0])
    generator = np.random.default_rng(0)
    for n in (2, 3, 16, 512):
        for sigma in (0.0, 1e-8, 0.5, 2.0, 8.0, 60.0):
            yield (generator.normal(size=n) * sigma + generator.normal()).tolist()
    yield (generator.normal(size=65536) * 3).tolist()


def of_softmax() -> Iterator[Vector]:
    """softmax.py, on rows for which a matrix is small."""
    generator = np.random.default_rng(1)
    for logits in filter(lambda row: len(row) <= 16, rows()):
        x = np.array(logits)
        y = softmax.softmax(x)
        t = generator.normal(size=len(x))
        yield Vector(("softmax", logits), y, 1e-300)
        yield Vector(("logSoftmax", logits), softmax.log_softmax(x), 1e-14)
        yield Vector(("crossEntropyGradient", logits, len(x) - 1), _gradient(x, np.array(len(x) - 1)), 1e-15)
        yield Vector(("crossEntropyGradient", logits, list(map(abs, t))), _gradient(x, np.abs(t)), 1e-14)
        if np.isfinite(y).all():
            given = y.tolist()
            yield Vector(("jacobian", given), softmax.jacobian(y))
            yield Vector(("jacobianTrace", given), softmax.jacobian_trace(y), 1e-15)
            yield Vector(("jacobianMax", given), softmax.jacobian_max(y))
            yield Vector(("jacobianProduct", given, t.tolist()), softmax.jacobian_product(y, t), 1e-14)


def _gradient(x: Any, target: Any) -> Any:
    return softmax.cross_entropy_gradient(x, target)


def of_stats() -> Iterator[Vector]:
    """stats.py: every row as it is, and its finite logits alone. The mean of logits may be near 0, and their spread."""
    for logits in rows():
        masks = [None] if np.isfinite(logits).all() else [None, np.isfinite(logits).tolist()]
        for visible in masks:
            seen = None if visible is None else torch.tensor(visible)
            stats = RowStats.from_logits(torch.tensor(logits, dtype=torch.float64), seen)
            expected = {name: getattr(stats, name).item() for name in ROW_STATISTICS}
            size = max((abs(s) for s in logits if abs(s) < inf), default=0.0)
            yield Vector(
                ("rowStats", logits, visible), expected, {"logit_mean": 1e-13 * size, "logit_std": 1e-13 * size}
            )


def of_theory() -> Iterator[Vector]:
    """theory.py."""
    for d in (1, 3, 64, 1024):
        yield Vector(("dotProductMoments", d), {"mean": 0.0, "variance": float(d)})
        for correlation in (-1.0, 0.0, 0.3, 1.0):
            moments = {"mean_q": 0.5, "mean_k": -1.0, "var_q": 0.25, "var_k": 4.0, "correlation": correlation}
            found = theory.dot_product_moments(d, **moments)
            expected = {"mean": found.mean, "variance": found.variance}
            yield Vector(("dotProductMoments", d, moments), expected, 1e-12 * d)
    for n in (2, 3, 16, 512, 65536):
        yield Vector(("freezingThreshold", n), theory.freezing_threshold(n))
        yield Vector(("freezingDimension", n), theory.freezing_dimension(n))
        for sigma in (0.0, 0.5, 1.5, 3.0, 4.7, 4.71, 10.0, 60.0):
            yield Vector(("asymptoticEntropy", n, sigma), theory.asymptotic_entropy(n, sigma), 1e-12)
            yield Vector(("asymptoticJacobianTrace", n, sigma), theory.asymptotic_jacobian_trace(n, sigma))
        for sigma, quantile in ((0.0, 0.5), (1.0, 0.1), (8.0, 0.1), (32.0, 0.01), (60.0, 0.9)):
            yield Vector(("jacobianTraceFloor", n, sigma, quantile), theory.jacobian_trace_floor(n, sigma, quantile))
    for n in (1, 2, 3, 16, 100, 512, 4096, 65536):
        for sigma in (0.0, 1e-6, 0.01, 0.1, 0.3, 0.499, 0.5, 0.7, 1.0, 2.0, 4.0, 7.99, 8.0, 16.0, 32.0, 60.0):
            yield Vector(("gaussianRow", n, sigma), _numbers(theory.gaussian_row(n, sigma)))
    for n, d, factor in _heads():
        yield Vector(("gaussianAttention", n, d, factor), _numbers(theory.gaussian_attention(n, d, factor)))


def _heads() -> Iterator[tuple[int, int, float]]:
    for d in (1, 2, 16, 64, 1024):
        for n in (2, 16, 512):
            yield n, d, 1 / sqrt(d)
    yield from ((16, 64, 1.0), (16, 64, 1 / 64), (512, 1024, 1.0), (512, 1, 16.0), (65536, 64, 0.125), (16, 8, 0.0))


def _numbers(row: theory.RowExpectation) -> dict[str, float]:
    return {name: getattr(row, name) for name in EXPECTATIONS}


def of_tails() -> Iterator[Vector]:
    """The normal distribution's tails."""
    for x in [*np.linspace(-6, 26.5, 200).tolist(), 0.0, 0.4999999, 0.5, 5.999999, 6.0, 27.5]:
        yield Vector(("erfc", x), erfc(x), 1e-307)
    for z in np.linspace(-36, 9, 60).tolist():
        log_cdf = float(theory._log_normal_cdf(np.array([z]))[0])
        yield Vector(("logNormalCdf", z), log_cdf)


def of_rules() -> Iterator[Vector]:
    """scale/: the multiplier of a rule at many sites, and whether it normalises."""
    for text in RULES:
        rule = scale.parse(text)
        for d in (1, 2, 64, 100, 1024):
            for n in (2, 16, 511, 513, 65536):
                multiplier = float(rule.resolve(scale.Site.single(d, n)).multiplier)
                yield Vector(("scaleOf", text, {"d": d, "n": n}), multiplier)
        yield Vector(("normalises", text), normalisation(rule))


def normalisation(rule: scale.Rule) -> str:
    """What a rule does to the length of a vector, found by doing it."""
    normalise = rule.resolve(scale.Site.single(16, 4)).normalise
    if normalise is None:
        return "none"
    q = torch.full((1, 1, 1, 16), 3.0, dtype=torch.float64)
    length = normalise(q, q)[0].norm().item()
    return {4: "rms", 1: "unit"}[round(length, 5)]


def everything() -> list[Vector]:
    """All vectors."""
    return [*of_softmax(), *of_stats(), *of_theory(), *of_tails(), *of_rules()]


def departures(vector: Vector, answer: Any) -> list[str]:
    """Where an answer is too far from what was expected, in words."""
    return [
        f"{vector.call[0]}{_brief(vector.call[1:])}{where}: {got} is not {wanted}"
        for where, wanted, got in _far(vector.expected, answer, vector.absolute, "")
    ]


def _brief(given: tuple[Any, ...]) -> str:
    text = str(given)
    return text if len(text) < 120 else text[:120] + "…)"


def _far(wanted: Any, got: Any, absolute: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(wanted, dict):
        if not isinstance(got, dict) or set(wanted) != set(got):
            yield where, wanted, got
            return
        for name, value in wanted.items():
            allowed = absolute.get(name, 0.0) if isinstance(absolute, dict) else absolute
            yield from _far(value, got[name], allowed, f"{where}.{name}")
    elif isinstance(wanted, str):
        if wanted != got:
            yield where, wanted, got
    elif not _close(np.asarray(wanted, dtype=float), got, absolute):
        yield where, wanted, got


def _close(wanted: Any, got: Any, absolute: float) -> bool:
    try:
        numbers = np.array(got, dtype=float)
    except (TypeError, ValueError):
        return False
    if numbers.shape != wanted.shape:
        return False
    return bool(np.allclose(numbers, wanted, rtol=RELATIVE, atol=absolute, equal_nan=True))
