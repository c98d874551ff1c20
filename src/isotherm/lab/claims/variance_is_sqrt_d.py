"""«The variance of q·k is √d»: a slip of the pen, and what difference the missing square makes."""

from math import sqrt

from isotherm import scale, theory
from isotherm.lab.claim import Claim, Result, Setting, all_hold, conclude
from isotherm.lab.dots import BlockPlan, independent, moments, normal
from isotherm.lab.figures import D, curve, figure, predicted
from isotherm.lab.interval import interval, line_over_seeds, over_seeds, powers
from isotherm.lab.mathml import equation, root, row
from isotherm.lab.numerals import numeral
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Measured, Step

NEAR = 0.05


def experiment(setting: Setting) -> Result:
    """Variance and standard deviation of unscaled q·k against √d, and the power of d each follows."""
    dimensions, plans = setting["dimensions"], {}
    for i, d in enumerate(dimensions):
        plan = BlockPlan(d, setting["components"])
        plans[d] = moments(setting, plan, independent(normal), scale.NoScale(), d).variance
        setting.progress((i + 1) / len(dimensions))
    seeds = min(len(values) for values in plans.values())
    variance = {d: values[:seeds] for d, values in plans.items()}
    deviation = {d: [sqrt(value) for value in values] for d, values in variance.items()}
    above = [d for d in dimensions if d > 1]
    exponents, root_exponents = (powers(above, [table[d] for d in above]) for table in (variance, deviation))
    exponent = interval(exponents).mean
    numbers = (
        *(_ratio(AS_WORDED, d, variance[d]) for d in dimensions),
        *(_ratio(AS_MEANT, d, deviation[d], counts=False) for d in dimensions),
        over_seeds(POWER, exponents, predicted=1.0, document=0.5, holds=abs(exponent - 0.5) < NEAR),
        over_seeds(DEVIATION_POWER, root_exponents, predicted=0.5),
    )
    at = setting["document"]
    measured = numeral(interval(variance[at]).mean)
    sentence = SENTENCE.format(d=at, variance=measured, root=numeral(sqrt(at)), power=numeral(exponent))
    return conclude(all_hold(numbers), sentence, numbers, [_figure(dimensions, variance, deviation)])


def _ratio(name: Text, d: int, values: list[float], *, counts: bool = True) -> Measured:
    ratios = [value / sqrt(d) for value in values]
    near = abs(interval(ratios).mean - 1) <= NEAR
    variance = theory.dot_product_moments(d).variance
    predicted = (variance if counts else sqrt(variance)) / sqrt(d)
    return over_seeds(
        name.format(d=d), ratios, predicted=predicted, document=1.0 if counts else None, holds=near if counts else None
    )


def _figure(dimensions: tuple[int, ...], variance: dict[int, list[float]], deviation: dict[int, list[float]]) -> Figure:
    called = Text("√d, what document 002 calls the variance", "√d，文档 002 称之为方差")
    lines = (
        line_over_seeds(Text("variance, measured", "方差，实测"), dimensions, variance.values()),
        line_over_seeds(Text("standard deviation, measured", "标准差，实测"), dimensions, deviation.values()),
        predicted(Text("d", "d"), dimensions, float),
        curve(called, dimensions, sqrt, "document"),
    )
    caption = Text(
        "Variance and standard deviation of q·k. The document's √d is the lower line: the standard deviation.",
        "q·k 的方差与标准差。文档所说的 √d 是下面那条线：标准差。",
    )
    y = Text("variance (nats²), standard deviation (nats)", "方差（nat²）、标准差（nat）")
    return figure("variance-is-sqrt-d", caption, D, y, lines, log="xy")


AS_WORDED = Text("variance of q·k over √d, d = {d}", "q·k 的方差与 √d 之比，d = {d}")
AS_MEANT = Text("standard deviation of q·k over √d, d = {d}", "q·k 的标准差与 √d 之比，d = {d}")
POWER = Text("power of d in the variance of q·k", "q·k 的方差随 d 的幂次")
DEVIATION_POWER = Text("power of d in the standard deviation of q·k", "q·k 的标准差随 d 的幂次")
SENTENCE = Text(
    "At d = {d} the variance of q·k is {variance}, not {root}; it grows like d to the power {power}. As worded the "
    "statement holds at d = 1 only; with «standard deviation» for «variance» it holds for every d.",
    "d = {d} 时 q·k 的方差是 {variance}，不是 {root}；它随 d 的 {power} 次幂增长。照字面只在 d = 1 时成立；把「方差」"
    "换成「标准差」，则对每个 d 都成立。",
)
STEPS = (
    Step(
        Text("The variance of q·k is a sum of d variances of 1.", "q·k 的方差是 d 个 1 之和。"),
        equation("Var ( q · k )", "d"),
    ),
    Step(
        Text(
            "Its square root, the standard deviation, has the unit of the scores themselves. That is what the scores "
            "are divided by.",
            "它的平方根是标准差，单位与得分相同。得分除以的正是它。",
        ),
        equation("σ", root("Var ( q · k )"), root("d")),
    ),
    Step(
        Text(
            "If the variance were √d one would have to divide by the fourth root of d, and at d = 512 the variance "
            "would stay at 22.6.",
            "倘若方差真是 √d，就该除以 d 的四次方根；那样 d = 512 时方差仍有 22.6。",
        ),
        row("Var ( q · k ) =", root("d"), "⇒ σ =", root(root("d"))),
    ),
)
ERRATA = (
    Erratum(
        "002",
        Text(
            "So the variance of the product of q and k is √d. (And later: «when the variance is √512».)",
            "所以 qk 向量相乘的方差为根号 d。（后文又有：「在方差为根号 512 的时候」。）",
        ),
        Text(
            "The variance is d, the standard deviation √d. The document's code is right where its words are not: it "
            "draws with scale = √512, and NumPy's scale is a standard deviation.",
            "方差为 d，标准差为 √d。文档的文字有误，代码却是对的：它用 scale = √512 抽样，而 NumPy 的 scale 正是标准"
            "差。",
        ),
    ),
)

CLAIM = Claim(
    id="variance-is-sqrt-d",
    title=Text("«The variance of q·k is √d»", "「q·k 的方差是根号 d」"),
    question=Text("Is √d the variance of q·k, or its standard deviation?", "√d 是 q·k 的方差，还是标准差？"),
    statement=Text(
        "q and k are independent random vectors with mean 0 and variance 1, so the variance of their product is √d.",
        "q 向量和 k 向量都是均值为 0、方差为 1 的独立随机向量，所以 qk 相乘的方差为根号 d。",
    ),
    sources=("002",),
    hypothesis=Text(
        "For every d the variance of q·k lies within 5 % of √d, and the variance grows like d^½ (power within 0.05).",
        "对每个 d，q·k 的方差与 √d 相差在 5 % 以内，且方差按 d^½ 增长（幂次误差在 0.05 以内）。",
    ),
    expected="refuted",
    experiment=experiment,
    quick={"dimensions": (1, 2, 8, 32, 128, 512, 2048), "components": 1 << 19, "document": 512},
    full={"components": 1 << 24},
    steps=STEPS,
    errata=ERRATA,
)
