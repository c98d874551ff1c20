"""x = (a, a, 2a): the documents' smallest example, checked to its last digit and taken past where their code stops."""

from decimal import Decimal, localcontext
from math import e, exp, inf, isnan

import numpy as np

from isotherm import softmax as forms
from isotherm.lab.claim import Result, Setting, all_hold, at_most, conclude
from isotherm.lab.content import read_content
from isotherm.lab.figures import curve, figure, predicted
from isotherm.lab.interval import bisect
from isotherm.lab.numerals import numeral
from isotherm.record import Figure, Measured

SAYS = read_content(__file__)
DOCUMENT = {1.0: 0.5761168847658291, 10.0: 0.9999092083843412, 100.0: 1.0}
ULP = 2.0**-53
"""The distance between neighbouring floats from ½ to 1."""
LAST_POWER = float(np.log(np.finfo(float).max))
"""The largest x whose e^x is a float."""
FEW = 4
"""Units in the last place within which two numbers are the same number."""
ALL = 16
"""Digits of the table: the claim is about the last ones."""


def exact(a: float) -> Decimal:
    """1/(1 + 2e^−a) to fifty digits."""
    with localcontext(prec=50):
        return 1 / (1 + 2 * (-Decimal(a)).exp())


def written(a: float) -> float:
    """y₃ by the document's own formula; `OverflowError` where e^2a has no float."""
    return exp(a * 2) / (exp(a) + exp(a) + exp(a * 2))


def by_powers(a: float) -> float:
    """y₃ from powers of e as a float, squared below the line: rounded otherwise, it gives the document's very digits."""
    return e ** (2 * a) / (e**a + e**a + (e**a) ** 2)


def outputs(a: float) -> np.ndarray:
    """softmax(a, a, 2a)."""
    return forms.softmax(np.array([a, a, 2 * a]))


def ulps(value: float, a: float) -> float:
    """How far a float lies from the true y₃, in units of its last place; infinitely far where it is no number."""
    return inf if isnan(value) else float((Decimal(value) - exact(a)) / Decimal(ULP))


def experiment(setting: Setting) -> Result:
    """The three printed values, the curve between them, and the same formula far beyond."""
    a_values = np.linspace(0, setting["last"], setting["points"]).tolist()
    ys = [float(outputs(a)[2]) for a in a_values]
    off = max(abs(ulps(y, a)) for y, a in zip(ys, a_values, strict=True))
    worst = min(float(np.nan_to_num(outputs(a)[2])) for a in setting["beyond"])
    numbers = (
        *(_printed(a, value) for a, value in DOCUMENT.items()),
        *(_to_the_digit(a, value) for a, value in DOCUMENT.items()),
        at_most(SAYS["curve-error"].format(points=len(ys)), off, FEW, predicted=0.0),
        Measured(SAYS["smallest-step"], min(np.diff(ys).tolist()), holds=bool(np.all(np.diff(ys) >= 0))),
        Measured(SAYS["beyond"].format(a=numeral(max(setting["beyond"]), 1)), worst, predicted=1.0, holds=worst == 1.0),
        Measured(
            SAYS["formula-at-ten"], written(10.0), predicted=float(exact(10.0)), document=DOCUMENT[10.0], digits=ALL
        ),
        Measured(SAYS["formula-stops"], bisect(_computable, 0.0, 1000.0, 60)[0], predicted=LAST_POWER / 2),
        Measured(SAYS["last-below-one"], bisect(lambda a: bool(outputs(a)[2] < 1), 0.0, 1000.0, 60)[0]),
        Measured(SAYS["left-at-hundred"], float(outputs(100.0)[:2].sum()), predicted=float(1 - exact(100.0))),
    )
    one, ten, hundred = (repr(float(outputs(a)[2])) for a in DOCUMENT)
    sentence = SAYS["outcome"].format(one=one, ten=ten, hundred=hundred, off=f"{off:.1f}")
    return conclude(all_hold(numbers), sentence, numbers, (_curve(a_values, ys), _remainder(a_values)))


def _printed(a: float, value: float) -> Measured:
    y = float(outputs(a)[2])
    same = abs(ulps(y, a)) <= FEW and abs(y - value) <= FEW * ULP
    name = SAYS["y3"].format(a=round(a))
    return Measured(name, y, predicted=float(exact(a)), document=value, holds=same, digits=ALL)


def _to_the_digit(a: float, value: float) -> Measured:
    """The document's digits from powers of e. Not judged: another machine may round a power differently."""
    return Measured(
        SAYS["powers"].format(a=round(a)), by_powers(a), predicted=float(exact(a)), document=value, digits=ALL
    )


def _computable(a: float) -> bool:
    try:
        written(a)
    except OverflowError:
        return False
    return True


def _curve(a_values: list[float], measured: list[float]) -> Figure:
    lines = (
        curve(SAYS["stable"], a_values, measured),
        predicted(SAYS["exact-y3"], a_values, lambda a: float(exact(a))),
        curve(SAYS["document"], tuple(DOCUMENT), DOCUMENT.values(), "document"),
    )
    return figure("a-a-2a-curve", SAYS["curve-caption"], SAYS["axis-a"], SAYS["curve-y"], lines)


def _remainder(a_values: list[float]) -> Figure:
    """1 − y₃ twice: as the float that is left, and as y₁ + y₂, which keeps its digits."""
    lines = (
        curve(SAYS["sum-of-two"], a_values, lambda a: float(outputs(a)[:2].sum())),
        curve(SAYS["subtracted"], a_values, lambda a: 1 - float(outputs(a)[2]) or None),
        predicted(SAYS["exact"], a_values, lambda a: float(1 - exact(a))),
    )
    return figure("a-a-2a-remainder", SAYS["remainder-caption"], SAYS["axis-a"], SAYS["remainder-y"], lines, log="y")


CLAIM = SAYS.claim(
    id="a-a-2a",
    sources=("001",),
    expected="confirmed",
    experiment=experiment,
    quick={"points": 100, "last": 100.0, "beyond": (354.0, 355.0, 1000.0, 1e6)},
    full={"points": 10_001},
)
