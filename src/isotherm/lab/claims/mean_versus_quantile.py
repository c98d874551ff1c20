"""«The gradient vanishes»: which one? The mean hardly does, the median does, and the lower tenth is gone first."""

from functools import partial
from math import log, sqrt

import torch
from torch import Tensor

from isotherm import scale, theory
from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.dots import logits, normal
from isotherm.lab.figures import MEAN, QUANTILES, D, figure, predicted
from isotherm.lab.interval import MeanInterval, geometric, interval, line_over_seeds, over_seeds, power, powers
from isotherm.lab.mathml import equation, frac, root, row, sup
from isotherm.lab.numerals import numeral
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Measured, Step
from isotherm.stats import RowStats

VANISHES = 1000
"""A number that falls by this factor from the smallest to the largest d is said to vanish."""
QUANTILE_OF = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
RULES: dict[str, scale.Rule] = {"none": scale.NoScale(), "1/√d": scale.InverseSqrt()}
Values = dict[str, dict[int, list[float]]]


def experiment(setting: Setting) -> Result:
    """The gate of unscaled and of scaled attention over d: its mean and its quantiles, one number of each per seed."""
    found = _measure(setting)
    unscaled, scaled = found["none"], found["1/√d"]
    dimensions = setting["dimensions"]
    first, last, large = dimensions[0], dimensions[-1], dimensions[len(dimensions) // 2 :]
    falls = {name: _fall(table, first, last) for name, table in unscaled.items()}
    gone = {name: fall.low >= VANISHES for name, fall in falls.items()}
    open_ = min(interval(scaled["p10"][d]).low for d in dimensions)
    exponents = powers(large, [unscaled["mean"][d] for d in large])
    expected = power(large, [_predicted(setting, "mean", d) for d in large])
    numbers = (
        *(_fallen(setting, name, fall, gone[name]) for name, fall in falls.items()),
        over_seeds(SLOPE, exponents, predicted=expected),
        *(_at(setting, name, table[last]) for name, table in unscaled.items()),
        Measured(OPEN, open_, holds=open_ > 0.5),
    )
    typical = gone["p10"] and gone["p50"] and open_ > 0.5
    mean, median, p10 = (numeral(falls[name].mean, digits) for name, digits in (("mean", 2), ("p50", 1), ("p10", 1)))
    return conclude(
        typical and gone["mean"],
        SENTENCE.format(a=first, b=last, n=setting["keys"], mean=mean, median=median, p10=p10),
        numbers,
        [_figure(setting, unscaled, scaled)],
        under=typical,
        condition=CONDITION,
    )


def _fallen(setting: Setting, name: str, fall: MeanInterval, gone: bool) -> Measured:
    first, last = setting["dimensions"][0], setting["dimensions"][-1]
    expected = _predicted(setting, name, first) / _predicted(setting, name, last) if name == "mean" else None
    return Measured(
        FALL.format(what=FALLING[name], a=first, b=last), fall.mean, fall.low, fall.high, expected, None, gone
    )


def _at(setting: Setting, name: str, values: list[float]) -> Measured:
    last = setting["dimensions"][-1]
    return over_seeds(AT[name].format(d=last), values, KINDS[name], predicted=_predicted(setting, name, last))


def _measure(setting: Setting) -> dict[str, Values]:
    """Both rules on the same q and k."""
    found: dict[str, Values] = {rule: {name: {} for name in NAMES} for rule in RULES}
    for d in setting["dimensions"]:
        gates = [_gates(setting, d, generator) for generator in setting.generators(d)]
        for rule, table in found.items():
            table["mean"][d] = [float(gate[rule].mean()) for gate in gates]
            for name, q in QUANTILE_OF.items():
                table[name][d] = [float(gate[rule].quantile(q)) for gate in gates]
        setting.progress(d / setting["dimensions"][-1])
    return found


def _gates(setting: Setting, d: int, generator: torch.Generator) -> dict[str, Tensor]:
    """The gate of every row of one draw, under each rule."""
    q, k = (normal((rows, d), generator) for rows in (setting["queries"], setting["keys"]))
    return {name: RowStats.from_logits(logits(q, k, rule)).jacobian_trace for name, rule in RULES.items()}


def _fall(table: dict[int, list[float]], first: int, last: int) -> MeanInterval:
    """By what factor a number falls from the first to the last d, over seeds (draws at the two are independent)."""
    return geometric([before / after for before, after in zip(table[first], table[last], strict=True)])


def _predicted(setting: Setting, name: str, d: int) -> float:
    n = setting["keys"]
    if name == "mean":
        return theory.gaussian_attention(n, d, 1.0).jacobian_trace
    return theory.jacobian_trace_floor(n, sqrt(d), QUANTILE_OF[name])


def _figure(setting: Setting, unscaled: Values, scaled: Values) -> Figure:
    d = setting["dimensions"]
    limit = sqrt(2 * log(setting["keys"]))
    rescued = Text("10th percentile with 1/√d", "用 1/√d 时的 10 % 分位")
    lines = (
        *(line_over_seeds(NAMES[name], d, table.values(), KINDS[name]) for name, table in unscaled.items()),
        *(predicted(PREDICTED[name], d, partial(_predicted, setting, name)) for name in ("mean", "p50", "p10")),
        predicted(Text("√(2 ln n/d)", "√(2 ln n/d)"), d, lambda d: min(1.0, limit / sqrt(d))),
        line_over_seeds(rescued, d, scaled["p10"].values()),
    )
    caption = Text(
        "The gradient gate 1 − Σp² of unscaled attention over {n} keys. The mean falls like 1/√d and looks almost "
        "harmless; the median and the 10th percentile fall exponentially in √d. With 1/√d even the lowest tenth stays "
        "open at every d.",
        "未缩放注意力（{n} 个键）的梯度闸门 1 − Σp²。均值按 1/√d 下降，看上去几乎无害；中位数与 10 % 分位按 √d 的指数"
        "下降。用 1/√d 后，即使最低的十分之一在任何 d 下也保持畅通。",
    ).format(n=setting["keys"])
    y = Text("gate, 1 − Σp² (1 open, 0 shut)", "闸门 1 − Σp²（1 开，0 闭）")
    return figure("mean-versus-quantile", caption, D, y, lines, log="xy")


NAMES = {"mean": MEAN, **{name: QUANTILES[q] for name, q in QUANTILE_OF.items()}}
KINDS = {name: interval if name == "mean" else geometric for name in NAMES}
PREDICTED = {
    "mean": Text("mean, exact expectation", "均值，精确期望"),
    "p10": Text("10th percentile, lower bound", "10 % 分位，下界"),
    "p50": Text("median, lower bound", "中位数，下界"),
}
FALL = Text(
    "factor by which the {what} falls from d = {a} to {b}, unscaled", "未缩放时{what}从 d = {a} 到 {b} 的下降倍数"
)
FALLING = {
    "mean": Text("mean gate", "闸门均值"),
    "p10": Text("10th percentile", " 10 % 分位"),
    "p50": Text("median", "中位数"),
    "p90": Text("90th percentile", " 90 % 分位"),
}
AT = {
    "mean": Text("mean gate at d = {d}, unscaled", "未缩放、d = {d} 时闸门的均值"),
    "p10": Text("10th percentile of the gate at d = {d}, unscaled", "未缩放、d = {d} 时闸门的 10 % 分位"),
    "p50": Text("median gate at d = {d}, unscaled", "未缩放、d = {d} 时闸门的中位数"),
    "p90": Text("90th percentile of the gate at d = {d}, unscaled", "未缩放、d = {d} 时闸门的 90 % 分位"),
}
SLOPE = Text("power of d in the mean gate, larger half of the dimensions", "闸门均值随 d 的幂次（较大的一半维度）")
OPEN = Text("lowest 10th percentile of the gate with 1/√d, over all d", "用 1/√d 时闸门 10 % 分位在所有 d 中的最小值")
SENTENCE = Text(
    "From d = {a} to {b} without a scale (n = {n}) the mean gate falls {mean}-fold, the median {median}-fold and the "
    "10th percentile {p10}-fold.",
    "不缩放（n = {n}）、d 从 {a} 到 {b}，闸门的均值降为 1/{mean}，中位数降为 1/({median})，10 % 分位降为 1/({p10})。",
)
CONDITION = Text(
    "It vanishes in the median and below: there ln(gate) ≈ −c·√d. In the mean it does not: that falls like √(2 ln "
    "n/d), because the share of rows with two leading keys closer than one nat shrinks only like 1/√d, and those rows "
    "keep their gradient whole.",
    "在中位数及以下确实消失：ln(闸门) ≈ −c·√d。在均值上则不然：均值按 √(2 ln n/d) 下降，因为前两名的键相差不到 1 nat "
    "的行所占比例只按 1/√d 缩小，而这些行的梯度完整保留。",
)
STEPS = (
    Step(
        Text(
            "Unscaled scores have standard deviation √d, so the gap Δ between the two largest of n is about this, "
            "with X drawn from the exponential distribution.",
            "未缩放得分的标准差为 √d，所以 n 个得分中前两名之差 Δ 约为下式，其中 X 服从指数分布。",
        ),
        row("Δ ≈", frac(root("d"), root("2 ln n")), "X ,", "P ( X > t ) =", sup("e", "− t")),
    ),
    Step(
        Text("The gate is small once the gap is large.", "差距一大，闸门就小。"),
        row("1 −", row("∑", "p^2"), "≈ 2", sup("e", "− Δ")),
    ),
    Step(
        Text(
            "A quantile of the gate is this at a quantile of X: exponentially small in √d. For the 10th percentile X "
            "= ln 10 = 2.3, for the median ln 2 = 0.69.",
            "闸门的分位数就是把 X 的分位数代入：随 √d 指数减小。10 % 分位对应 X = ln 10 = 2.3，中位数对应 ln 2 = "
            "0.69。",
        ),
        equation("gate_q", row("2", sup("e", row("−", frac(root("d"), root("2 ln n")), "ln", frac("1", "q"))))),
    ),
    Step(
        Text(
            "The mean is carried by the rows where X is near 0. Their share is √(2 ln n/d), and their gate is of "
            "order one.",
            "均值由 X 接近 0 的那些行撑着。它们占 √(2 ln n/d)，闸门为一的量级。",
        ),
        equation("E [ gate ]", root(frac("2 ln n", "d")), sign="≈"),
    ),
)
ERRATA = (
    Erratum(
        "000",
        Text(
            "Large dot products push the softmax to where the gradient is extremely small; it vanishes. (The other "
            "documents say the same.)",
            "点积过大把 softmax 推到梯度极小的区域，梯度消失。（其他文档说法相同。）",
        ),
        Text(
            "True of the typical row, not of the average one: with n = 1024 keys the mean gate at d = 1024 is still "
            "about 0.1. Training goes on, noisily, on the few rows that have two leaders.",
            "对典型的行成立，对平均值不成立：n = 1024 个键、d = 1024 时闸门均值仍约为 0.1。训练仍会靠少数有两个领先者"
            "的行、噪声很大地进行下去。",
        ),
    ),
)

CLAIM = Claim(
    id="mean-versus-quantile",
    title=Text(
        "The gradient vanishes: in the mean, or in the typical row?", "梯度消失：是平均消失，还是典型的行消失？"
    ),
    question=Text(
        "If unscaled attention kills the gradient, why do some unscaled models still train?",
        "既然不缩放会让梯度消失，为什么有些不缩放的模型还能训练？",
    ),
    statement=Text(
        "As d_k grows the dot products grow, and push the softmax into regions where the gradient vanishes.",
        "随着 d_k 增大，点积也增大，把 softmax 推入梯度消失的区域。",
    ),
    sources=("000", "001", "002", "003", "004"),
    hypothesis=Text(
        "From the smallest to the largest d the gate of unscaled attention falls at least a thousandfold (95 % "
        "interval over seeds) in its mean, its median and its 10th percentile, while with 1/√d the 10th percentile "
        "stays above ½ at every d.",
        "从最小到最大的 d，未缩放注意力的闸门在均值、中位数和 10 % 分位上都至少降为千分之一（按种子的 95 % 区间），而"
        "用 1/√d 时 10 % 分位在每个 d 都高于 ½。",
    ),
    expected="conditional",
    experiment=experiment,
    quick={"dimensions": (4, 16, 64, 256, 1024, 4096), "keys": 1024, "queries": 256, "seeds": 16},
    full={"dimensions": (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096), "queries": 512, "seeds": 32},
    steps=STEPS,
    errata=ERRATA,
)
