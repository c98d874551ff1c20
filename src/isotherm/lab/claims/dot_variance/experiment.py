"""q·k has variance d if components are independent with mean 0 and variance 1; beyond that, the formula that then holds."""

from math import sqrt

from torch import Tensor

from isotherm import scale
from isotherm.lab.claim import Result, Setting, at_most, conclude
from isotherm.lab.content import read_content
from isotherm.lab.departures import DEPARTURES
from isotherm.lab.dots import DISTRIBUTIONS, BlockPlan, DotMoments, independent, moments, multiplier, normal
from isotherm.lab.figures import D, curve, figure, level, predicted
from isotherm.lab.interval import groups, interval, line_over_seeds, over_seeds
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.record import Figure, Measured

SAYS = read_content(__file__)
ONE_PERCENT = 0.01
CORRECTED = 0.05
"""How near a corrected formula must come: its departures have heavier tails and fewer draws."""


def experiment(setting: Setting) -> Result:
    """Measure mean and variance for four distributions and every d, and for each departure from the assumptions."""
    dimensions = setting["dimensions"]
    found: dict[tuple[int, int], DotMoments] = {}
    for i, components in enumerate(DISTRIBUTIONS):
        for d in dimensions:
            plan = BlockPlan(d, setting["components"])
            found[i, d] = moments(setting, plan, independent(components.draw), scale.NoScale(), i, d)
            setting.progress(0.8 * len(found) / (len(DISTRIBUTIONS) * len(dimensions)))
    numbers = [_cell(i, d, found[i, d]) for i, d in found]
    kept = all(number.holds for number in numbers)
    departures = {
        (i, d): _paired(setting, i, d) for i in range(len(DEPARTURES)) for d in setting["departure_dimensions"]
    }
    beyond = [number for (i, d), pairs in departures.items() for number in _departure(i, d, pairs)]
    off = [_distance(i, d, pairs) for (i, d), pairs in departures.items()]
    corrected = at_most(SAYS["formulas-off"], max(off), CORRECTED, predicted=0.0)
    lengths, tails = _lengths(setting), _tails(setting)
    return conclude(
        kept and corrected.holds is True,
        _sentence(found, departures),
        (*numbers, *beyond, corrected, *lengths, tails),
        (_figure(found, dimensions), _departure_figure(departures, setting["departure_dimensions"])),
    )


def _cell(i: int, d: int, found: DotMoments) -> Measured:
    variance = [value / d for value in found.variance]
    centred = abs(float(found.mean.mean())) <= ONE_PERCENT * sqrt(d)
    holds = centred and abs(interval(variance).mean - 1) <= ONE_PERCENT
    name = SAYS["variance-over-d"].format(kind=DISTRIBUTIONS[i].name, d=d)
    return over_seeds(name, variance, predicted=1.0, document=1.0, holds=holds)


def _paired(setting: Setting, i: int, d: int) -> Tensor:
    """One dot product for each independent pair."""
    q, k = DEPARTURES[i].draw((setting["departure_components"] // d, d), setting.generator(100 + i, d))
    return multiplier(scale.NoScale(), d, 1) * (q * k).sum(-1)


def _squares(pairs: Tensor) -> list[float]:
    return groups((pairs - pairs.mean()).square())


def _departure(i: int, d: int, pairs: Tensor) -> list[Measured]:
    """An extension: what becomes of the variance where an assumption fails; the mean is shown where it is not 0."""
    departure = DEPARTURES[i]
    right, squares = departure.moments(d), _squares(pairs)
    name = SAYS["departure-variance"].format(name=departure.name, d=d)
    numbers = [over_seeds(name, squares, predicted=right.variance)]
    if right.mean:
        name = SAYS["departure-mean"].format(name=departure.name, d=d)
        numbers.append(over_seeds(name, groups(pairs), predicted=right.mean))
    return numbers


def _distance(i: int, d: int, pairs: Tensor) -> float:
    """How far mean and variance lie from the corrected formula, as shares of its spread and of its variance."""
    right = DEPARTURES[i].moments(d)
    variance, mean = interval(_squares(pairs)).mean, float(pairs.mean())
    return max(abs(variance / right.variance - 1), abs(mean - right.mean) / sqrt(right.variance))


def _lengths(setting: Setting) -> tuple[Measured, ...]:
    """Given q, the variance over keys is |q|²: it differs from query to query unless q is normalised."""
    d = setting["departure_dimensions"][-1]
    cases = (
        (SAYS["normal-q"], independent(normal), sqrt(2 / d)),
        (DEPARTURES[3].name, DEPARTURES[3].draw, 0.0),
    )
    shape = (setting["departure_components"] // d, d)
    numbers = []
    for i, (kind, draw, expected) in enumerate(cases):
        q, _ = draw(shape, setting.generator(200 + i))
        spread = (q.square().sum(-1) / d).reshape(32, -1).std(-1).tolist()
        numbers.append(over_seeds(SAYS["length-spread"].format(kind=kind, d=d), spread, predicted=expected))
    return tuple(numbers)


def _tails(setting: Setting) -> Measured:
    """The fourth moment: q·k is a mixture of normals of different widths, not a normal."""
    d = setting["departure_dimensions"][0]
    q, k = independent(normal)((setting["departure_components"] // d, d), setting.generator(300))
    s = (q * k).sum(-1) / sqrt(d)
    return over_seeds(SAYS["kurtosis"].format(d=d), groups(s**4), predicted=3 + 6 / d, document=3.0)


def _sentence(found: dict[tuple[int, int], DotMoments], departures: dict[tuple[int, int], Tensor]) -> Text:
    worst = max(abs(interval(cell.variance).mean / d - 1) for (_, d), cell in found.items())
    d = max(d for _, d in departures)
    offset, shared = (interval(_squares(departures[i, d])).mean for i in (1, 2))
    return SAYS["outcome"].format(
        worst=percent(worst, 2), cells=len(found), d=d, offset=numeral(offset), shared=numeral(shared)
    )


def _figure(found: dict[tuple[int, int], DotMoments], dimensions: tuple[int, ...]) -> Figure:
    lines = [
        line_over_seeds(kind.name, dimensions, [[value / d for value in found[i, d].variance] for d in dimensions])
        for i, kind in enumerate(DISTRIBUTIONS)
    ]
    lines.append(level(SAYS["predicted-one"], dimensions, 1.0))
    return figure("dot-variance-ratio", SAYS["ratio-caption"], D, SAYS["ratio-y"], lines, log="x")


def _departure_figure(departures: dict[tuple[int, int], Tensor], dimensions: tuple[int, ...]) -> Figure:
    lines = []
    for i, departure in enumerate(DEPARTURES):
        values = [_squares(departures[i, d]) for d in dimensions]
        lines.append(line_over_seeds(departure.name, dimensions, values))
        formula = SAYS["corrected-formula"].format(name=departure.name)
        lines.append(predicted(formula, dimensions, [departure.moments(d).variance for d in dimensions]))
    lines.append(curve(SAYS["documents-d"], dimensions, float, "document"))
    return figure("dot-variance-departures", SAYS["departures-caption"], D, SAYS["departures-y"], lines, log="xy")


CLAIM = SAYS.claim(
    id="dot-variance",
    sources=("000", "001", "002", "003", "004"),
    expected="confirmed",
    experiment=experiment,
    quick={
        "dimensions": (1, 8, 64, 512, 4096),
        "components": 1 << 21,
        "departure_dimensions": (4, 16, 64),
        "departure_components": 1 << 20,
    },
    full={
        "dimensions": tuple(2**k for k in range(13)),
        "components": 1 << 25,
        "departure_dimensions": (4, 16, 64, 256, 1024),
        "departure_components": 1 << 23,
    },
)
