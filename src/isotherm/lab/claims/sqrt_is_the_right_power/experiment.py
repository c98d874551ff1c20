"""Of all powers of d, only the square root keeps the logits' spread the same for every d."""

from math import sqrt

import torch

from isotherm import scale, theory
from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import BlockPlan, independent, moments, multiplier, normal, row_stats
from isotherm.lab.figures import D, figure, predicted
from isotherm.lab.interval import groups, interval, line_over_seeds, over_seeds, powers
from isotherm.lab.numerals import numeral, percent
from isotherm.record import Figure, Measured

SAYS = read_content(__file__)
ONE_PERCENT = 0.01
CORRELATION = 0.5
HALF = 0.5


def rule_of(exponent: float) -> scale.Rule:
    """q·k divided by d to this power."""
    if exponent == HALF:
        return scale.InverseSqrt()
    return scale.MuP(power=exponent) if exponent else scale.NoScale()


Table = dict[float, dict[int, list[float]]]


def experiment(setting: Setting) -> Result:
    """The variance of q·k/d^a for each a and d, what the softmax makes of it, and what correlation changes."""
    table: Table = {a: {} for a in setting["powers"]}
    for i, d in enumerate(setting["dimensions"]):
        plan = BlockPlan(d, setting["components"])
        plain = moments(setting, plan, independent(normal), scale.NoScale(), d).variance
        for a in setting["powers"]:
            factor = multiplier(rule_of(a), d, plan.block)
            table[a][d] = [value * factor**2 for value in plain]
        setting.progress(0.5 * (i + 1) / len(setting["dimensions"]))
    numbers = [number for a in setting["powers"] for number in _power(a, table[a])]
    stays, others = numbers[0::2], [a for a in setting["powers"] if a != HALF]
    half = next(number for a, number in zip(setting["powers"], stays, strict=True) if a == HALF)
    entropies = {a: {d: _entropy(setting, a, d) for d in setting["softmax_dimensions"]} for a in setting["shown"]}
    last = setting["dimensions"][-1]
    low, high = max(a for a in others if a < HALF), min(a for a in others if a > HALF)
    below, above = (numeral(interval(table[a][last]).mean) for a in (low, high))
    worst = percent(half.value, 2)
    return conclude(
        all(number.holds for number in numbers),
        SAYS["outcome"].format(worst=worst, d=last, below=below, above=above, low=f"{low:g}", high=f"{high:g}"),
        (*numbers, *_correlated(setting), *_softmax(setting, entropies)),
        (_figure(table), _entropy_figure(setting, entropies)),
    )


def _power(a: float, found: dict[int, list[float]]) -> tuple[Measured, Measured]:
    """How far the variance strays from 1 over all d (only a = ½ may stay within 1 %), and the power of d it follows."""
    away = {d: abs(interval(values).mean - 1) for d, values in found.items()}
    exponents = powers(list(found), found.values())
    slope = interval(exponents)
    constant = slope.low <= 0 <= slope.high
    worst = max(away.values())
    stays = worst <= ONE_PERCENT
    return (
        Measured(
            SAYS["worst"].format(a=f"{a:g}"),
            worst,
            predicted=max(abs(d ** (1 - 2 * a) - 1) for d in found),
            holds=stays == (a == HALF),
        ),
        over_seeds(SAYS["slope"].format(a=f"{a:g}"), exponents, predicted=1 - 2 * a, holds=constant == (a == HALF)),
    )


def _correlated(setting: Setting) -> list[Measured]:
    """q·k for correlated pairs has a mean that grows like d: there 1/d is the power that keeps the size."""
    numbers = []
    d = setting["dimensions"][-1]
    generator = setting.generator(7, d)
    q, other = (normal((setting["components"] // (4 * d), d), generator) for _ in range(2))
    s = (q * (CORRELATION * q + sqrt(1 - CORRELATION**2) * other)).sum(-1)
    moment = theory.dot_product_moments(d, correlation=CORRELATION)
    for a in (HALF, 1.0):
        factor = multiplier(rule_of(a), d, 1)
        values = groups((factor * s).square(), 32)
        expected = factor**2 * (moment.variance + moment.mean**2)
        numbers.append(over_seeds(SAYS["correlated"].format(a=f"{a:g}", d=d), values, predicted=expected))
    return numbers


def _entropy(setting: Setting, a: float, d: int) -> list[float]:
    """Mean entropy fraction of a softmax row, one number per seed."""
    found = []
    for generator in setting.generators(9, d):
        q, k = (normal((1, 1, rows, d), generator) for rows in (setting["queries"], setting["keys"]))
        found.append(float(row_stats(q, k, rule_of(a)).entropy_fraction.mean()))
    return found


def _softmax(setting: Setting, entropies: Table) -> list[Measured]:
    d = setting["softmax_dimensions"][-1]
    return [
        over_seeds(
            SAYS["entropy"].format(a=f"{a:g}", d=d, n=setting["keys"]),
            entropies[a][d],
            predicted=_predicted(setting, a, d),
        )
        for a in setting["shown"]
    ]


def _predicted(setting: Setting, a: float, d: int) -> float:
    n = setting["keys"]
    return theory.gaussian_attention(n, d, d**-a).entropy / float(torch.tensor(n, dtype=torch.float64).log())


def _figure(table: Table) -> Figure:
    lines = []
    for a, found in table.items():
        lines.append(line_over_seeds(SAYS["divided"].format(a=f"{a:g}"), list(found), found.values()))
        formula = SAYS["power-of-d"].format(p=f"{1 - 2 * a:g}")
        lines.append(predicted(formula, list(found), [float(d) ** (1 - 2 * a) for d in found]))
    return figure("sqrt-power-variance", SAYS["variance-caption"], D, SAYS["variance-y"], lines, log="xy")


def _entropy_figure(setting: Setting, entropies: Table) -> Figure:
    lines = []
    for a, found in entropies.items():
        lines.append(line_over_seeds(SAYS["divided"].format(a=f"{a:g}"), list(found), found.values()))
        exact = SAYS["exact-expectation"].format(a=f"{a:g}")
        lines.append(predicted(exact, list(found), [_predicted(setting, a, d) for d in found]))
    caption = SAYS["entropy-caption"].format(n=setting["keys"])
    return figure("sqrt-power-entropy", caption, D, SAYS["entropy-y"], lines, log="x")


CLAIM = SAYS.claim(
    id="sqrt-is-the-right-power",
    sources=("000", "001", "002", "003", "004"),
    expected="confirmed",
    experiment=experiment,
    quick={
        "dimensions": (2, 8, 32, 128, 512, 2048),
        "components": 1 << 21,
        "powers": (0.0, 0.25, 0.4, 0.5, 0.6, 0.75, 1.0),
        "shown": (0.0, 0.25, 0.5, 0.75, 1.0),
        "softmax_dimensions": (4, 16, 64, 256, 1024),
        "seeds": 8,
        "queries": 32,
        "keys": 256,
    },
    full={
        "components": 1 << 25,
        "powers": (0.0, 0.25, 0.4, 0.45, 0.49, 0.5, 0.51, 0.55, 0.6, 0.75, 1.0),
        "seeds": 32,
        "keys": 1024,
    },
)
