"""«The variance of q·k is √d»: a slip of the pen, and what difference the missing square makes."""

from math import sqrt

from isotherm import scale, theory
from isotherm.lab.claim import Result, Setting, all_hold, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import BlockPlan, independent, moments, normal
from isotherm.lab.figures import D, curve, figure, predicted
from isotherm.lab.interval import interval, line_over_seeds, over_seeds, powers
from isotherm.lab.numerals import numeral
from isotherm.language import Text
from isotherm.record import Figure, Measured

SAYS = read_content(__file__)
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
        *(_ratio(SAYS["variance-over-root"], d, variance[d]) for d in dimensions),
        *(_ratio(SAYS["deviation-over-root"], d, deviation[d], counts=False) for d in dimensions),
        over_seeds(SAYS["variance-power"], exponents, predicted=1.0, document=0.5, holds=abs(exponent - 0.5) < NEAR),
        over_seeds(SAYS["deviation-power"], root_exponents, predicted=0.5),
    )
    at = setting["document"]
    measured = numeral(interval(variance[at]).mean)
    sentence = SAYS["outcome"].format(d=at, variance=measured, root=numeral(sqrt(at)), power=numeral(exponent))
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
    lines = (
        line_over_seeds(SAYS["variance"], dimensions, variance.values()),
        line_over_seeds(SAYS["deviation"], dimensions, deviation.values()),
        predicted(SAYS["d"], dimensions, float),
        curve(SAYS["root-d"], dimensions, sqrt, "document"),
    )
    return figure("variance-is-sqrt-d", SAYS["caption"], D, SAYS["axis-y"], lines, log="xy")


CLAIM = SAYS.claim(
    id="variance-is-sqrt-d",
    sources=("002",),
    expected="refuted",
    experiment=experiment,
    quick={"dimensions": (1, 2, 8, 32, 128, 512, 2048), "components": 1 << 19, "document": 512},
    full={"components": 1 << 24},
)
