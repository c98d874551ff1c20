"""Of all powers of d, only the square root keeps the logits' spread the same for every d."""

from math import sqrt

import torch

from isotherm import scale, theory
from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.dots import BlockPlan, independent, moments, multiplier, normal, row_stats
from isotherm.lab.figures import D, figure, predicted
from isotherm.lab.interval import groups, interval, line_over_seeds, over_seeds, powers
from isotherm.lab.mathml import equation, frac, root, row, sup
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.record import Figure, Measured, Step

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
        SENTENCE.format(worst=worst, d=last, below=below, above=above, low=f"{low:g}", high=f"{high:g}"),
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
            WORST.format(a=f"{a:g}"),
            worst,
            predicted=max(abs(d ** (1 - 2 * a) - 1) for d in found),
            holds=stays == (a == HALF),
        ),
        over_seeds(SLOPE.format(a=f"{a:g}"), exponents, predicted=1 - 2 * a, holds=constant == (a == HALF)),
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
        numbers.append(over_seeds(CORRELATED.format(a=f"{a:g}", d=d), values, predicted=expected))
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
            ENTROPY.format(a=f"{a:g}", d=d, n=setting["keys"]), entropies[a][d], predicted=_predicted(setting, a, d)
        )
        for a in setting["shown"]
    ]


def _predicted(setting: Setting, a: float, d: int) -> float:
    n = setting["keys"]
    return theory.gaussian_attention(n, d, d**-a).entropy / float(torch.tensor(n, dtype=torch.float64).log())


def _figure(table: Table) -> Figure:
    lines = []
    for a, found in table.items():
        lines.append(line_over_seeds(DIVIDED.format(a=f"{a:g}"), list(found), found.values()))
        formula = Text("d^{p}", "d^{p}").format(p=f"{1 - 2 * a:g}")
        lines.append(predicted(formula, list(found), [float(d) ** (1 - 2 * a) for d in found]))
    caption = Text(
        "Variance of q·k/d^a for independent unit-variance vectors. One line is level: a = ½. Every smaller power "
        "lets the variance grow without end, every larger one lets it fade to nothing.",
        "独立单位方差向量的 q·k/d^a 的方差。只有一条水平线：a = ½。幂次更小，方差无限增长；幂次更大，方差趋于零。",
    )
    y_label = Text("variance of q·k/d^a (nats²)", "q·k/d^a 的方差（nat²）")
    return figure("sqrt-power-variance", caption, D, y_label, lines, log="xy")


def _entropy_figure(setting: Setting, entropies: Table) -> Figure:
    lines = []
    for a, found in entropies.items():
        lines.append(line_over_seeds(DIVIDED.format(a=f"{a:g}"), list(found), found.values()))
        exact = Text("a = {a}, exact expectation", "a = {a}，精确期望").format(a=f"{a:g}")
        lines.append(predicted(exact, list(found), [_predicted(setting, a, d) for d in found]))
    caption = Text(
        "What the softmax over {n} keys makes of it: 1 is a plain average, 0 an arg-max. Below ½ it freezes as d "
        "grows, above ½ it stops choosing; at ½ it does the same thing at every d.",
        "softmax 对 {n} 个键的结果：1 为简单平均，0 为 arg-max。幂次低于 ½，d 一大就冻结；高于 ½，就不再作选择；等于 "
        "½，则在任何 d 下表现一致。",
    ).format(n=setting["keys"])
    y = Text("entropy/ln n (of 1)", "熵/ln n（满为 1）")
    return figure("sqrt-power-entropy", caption, D, y, lines, log="x")


DIVIDED = Text("q·k/d^{a}, measured", "q·k/d^{a}，实测")
WORST = Text("largest |Var(q·k/d^{a}) − 1| over all d", "所有 d 中 |Var(q·k/d^{a}) − 1| 的最大值")
SLOPE = Text("power of d in Var(q·k/d^{a})", "Var(q·k/d^{a}) 随 d 的幂次")
CORRELATED = Text(
    "mean of (q·k/d^{a})² for pairs with correlation ½, d = {d}", "相关系数为 ½ 的向量对，(q·k/d^{a})² 的均值，d = {d}"
)
ENTROPY = Text("mean entropy/ln n with q·k/d^{a}, d = {d}, n = {n}", "q·k/d^{a} 的平均熵/ln n，d = {d}，n = {n}")
SENTENCE = Text(
    "Divided by √d the variance stays within {worst} of 1 for every d; at d = {d} dividing by d^{low} leaves {below} "
    "and dividing by d^{high} leaves {above}.",
    "除以 √d 后，方差对每个 d 与 1 的偏差都在 {worst} 以内；d = {d} 时，除以 d^{low} 得 {below}，除以 d^{high} 得 "
    "{above}。",
)
STEPS = (
    Step(
        Text("A factor c multiplies a variance by c². Take c = d^(−a).", "乘以 c，方差乘以 c²。取 c = d^(−a)。"),
        equation(
            row("Var", "(", frac("q · k", sup("d", "a")), ")"),
            frac("Var ( q · k )", sup("d", "2 a")),
            sup("d", "1 − 2 a"),
        ),
    ),
    Step(
        Text("This is 1 for every d exactly if the exponent is 0.", "对每个 d 都等于 1，当且仅当指数为 0。"),
        row("1 − 2 a = 0 ⇔ a =", frac("1", "2")),
    ),
    Step(
        Text(
            "Other powers are right under other assumptions: if q and k have correlation ρ, the mean ρd of q·k "
            "outgrows its spread √d, and μP divides by d.",
            "假设不同，合适的幂次也不同：若 q 与 k 相关系数为 ρ，q·k 的均值 ρd 会超过其离散 √d，此时 μP 除以 d。",
        ),
        row("E [ q · k ] = ρ d ≫", root("d")),
    ),
)

CLAIM = Claim(
    id="sqrt-is-the-right-power",
    title=Text("The square root is the right power of d", "平方根是 d 的合适幂次"),
    question=Text(
        "Why the square root of d, and not d itself or some other number?",
        "为什么是 d 的平方根，而不是 d 本身或别的数？",
    ),
    statement=Text(
        "Dividing the dot product by √d_k brings its variance back to 1: D(q·k/√d_k) = d_k/(√d_k)² = 1; no other "
        "power of d_k does so for all d_k.",
        "点积除以 √d_k 就把方差稳定到 1：D(q·k/√d_k) = d_k/(√d_k)² = 1；d_k 的其他幂次都做不到对一切 d_k 如此。",
    ),
    sources=("000", "001", "002", "003", "004"),
    hypothesis=Text(
        "For independent unit-variance q and k: divided by d^½ the variance is within 1 % of 1 at every d, and the 95 "
        "% interval of its power of d contains 0. For each other power tried the variance is further than 1 % from 1 "
        "at some d, and that interval does not contain 0.",
        "对独立单位方差的 q、k：除以 d^½ 后，方差在每个 d 都与 1 相差 1 % 以内，且其随 d 的幂次的 95 % 区间包含 0。对"
        "试过的每个其他幂次，方差在某个 d 与 1 相差超过 1 %，且该区间不含 0。",
    ),
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
    steps=STEPS,
)
