"""One random draw of ten numbers, printed as evidence: the same draw ten thousand times over."""

from math import sqrt

import torch
from torch import Tensor

from isotherm import softmax as forms
from isotherm import theory
from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import normal
from isotherm.lab.figures import curve, figure
from isotherm.lab.interval import groups, over_seeds, quantile, quantile_of, share, share_of
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.record import Figure, Measured
from isotherm.stats import RowStats

SAYS = read_content(__file__)
N = 10
SIGMA = {"narrow": 1.0, "wide": sqrt(512)}
RANGE = {"narrow": 1.8973472870218264, "wide": 66.62254341144866}
LARGEST = {"narrow": 0.1698259433168865, "wide": 2.7839373695215386e-08}
ROUNDED = {"narrow": ("1.897", "0.1698"), "wide": ("66.6", "2.78·10⁻⁸")}
"""Both numbers of the document, as its readers quote them."""
PRINTED = {
    "narrow": "0.16704083 0.21684976 0.0579299 0.05408421 0.16109133 0.14433417 0.03252007 0.05499126 0.04213939 0.06901908",
    "wide": "4.51671361e-19 2.88815837e-21 9.99999972e-01 3.02351231e-17 3.73439970e-25 8.18066523e-13 2.78385563e-08"
    " 1.16465424e-29 7.25661271e-20 3.21813750e-21",
}
"""The probabilities the document prints."""
VANISHED = 0.01
ORDINARY = (0.025, 0.975)


def experiment(setting: Setting) -> Result:
    """Range and largest Jacobian entry of every draw, and where the document's four numbers lie among them."""
    draws = {
        name: sigma * normal((setting["seeds"], N), setting.generator(i))
        for i, (name, sigma) in enumerate(SIGMA.items())
    }
    ranges = {name: x.amax(-1) - x.amin(-1) for name, x in draws.items()}
    largest = {name: RowStats.from_logits(x).jacobian_max for name, x in draws.items()}
    off = _disagreement(draws["narrow"], largest["narrow"])
    places = [
        *(_place(_named(SAYS["range-place"], name, ROUNDED[name][0]), ranges[name], RANGE[name]) for name in SIGMA),
        *(_place(_named(SAYS["entry-place"], name, ROUNDED[name][1]), largest[name], LARGEST[name]) for name in SIGMA),
    ]
    ordinary, agrees = all(place.holds for place in places), off <= 1e-9
    smaller = largest["wide"] < largest["narrow"]
    gone = largest["wide"] < VANISHED
    numbers = (
        *places,
        share_of(SAYS["smaller"], smaller, holds=share(smaller)[1] >= 0.9),
        share_of(SAYS["vanished"], gone, document=1.0, holds=share(gone)[1] >= 0.95),
        quantile_of(_named(SAYS["median-entry"], "narrow"), largest["narrow"], 0.5, document=LARGEST["narrow"]),
        quantile_of(
            _named(SAYS["median-entry"], "wide"),
            largest["wide"],
            0.5,
            document=LARGEST["wide"],
            holds=quantile(largest["wide"], 0.5)[2] < quantile(largest["narrow"], 0.5)[1] / 10,
        ),
        *(
            over_seeds(_named(SAYS["mean-entry"], name), groups(largest[name]), document=LARGEST[name])
            for name in SIGMA
        ),
        *(_range(name, ranges[name]) for name in SIGMA),
        *(Measured(_named(SAYS["from-print"], name), _from_print(name), document=LARGEST[name]) for name in SIGMA),
        Measured(SAYS["disagreement"], off, predicted=0.0, holds=agrees),
    )
    typical = ordinary and agrees and all(number.holds for number in (numbers[4], numbers[7]))
    place, median, kept = percent(places[3].value, 0), numeral(numbers[7].value, 2), 1 - share(gone)[0]
    return conclude(
        typical and numbers[5].holds is True,
        SAYS["outcome"].format(place=place, median=median, kept=percent(kept, 0)),
        numbers,
        (
            _figure("ten-draws-range", ranges, RANGE, SAYS["range-caption"], SAYS["range-axis"]),
            _figure("ten-draws-entry", largest, LARGEST, SAYS["entry-caption"], SAYS["entry-axis"]),
        ),
        under=typical,
        condition=SAYS["condition"].format(kept=percent(kept)),
    )


def _named(name: Text, which: str, value: str = "") -> Text:
    return name.format(label=SAYS[f"sigma-{which}"], value=value)


def _place(name: Text, values: Tensor, document: float) -> Measured:
    """The share of draws below the document's number; an ordinary draw lies in the middle 95 %."""
    where = share(values < document)
    return Measured(name, *where, holds=ORDINARY[0] <= where[0] <= ORDINARY[1])


def _disagreement(x: Tensor, largest: Tensor) -> float:
    """Largest relative difference between the statistic and the largest entry of the Jacobian written out."""
    entry = forms.jacobian(forms.softmax(x)).abs().amax((-2, -1))
    return float(((entry - largest) / largest).abs().max())


def _from_print(name: str) -> float:
    """The largest entry of diag(y) − yyᵀ for the probabilities the document prints."""
    y = torch.tensor([float(number) for number in PRINTED[name].split()], dtype=torch.float64)
    top = int(y.argmax())
    return float(y[top] * (y.sum() - y[top]))


def _range(name: str, ranges: Tensor) -> Measured:
    """The mean range; expected is twice the largest of n normals."""
    expected = 2 * theory.gaussian_row(N, SIGMA[name]).max_logit
    return over_seeds(_named(SAYS["mean-range"], name), groups(ranges), predicted=expected, document=RANGE[name])


def _figure(name: str, values: dict[str, Tensor], document: dict[str, float], caption: Text, axis: Text) -> Figure:
    """Each distribution as the share of draws below a value, with the document's number on it."""
    shares = tuple(i / 100 for i in range(1, 100))
    lines = []
    for which in SIGMA:
        label = SAYS[f"sigma-{which}"]
        lines.append(curve(label, [quantile(values[which], q)[0] for q in shares], shares))
        where = share(values[which] < document[which])[0]
        lines.append(curve(SAYS["document"].format(label=label), (document[which],) * 2, (0.0, where), "document"))
    return figure(name, caption, axis, SAYS["share-below"], lines, log="x")


CLAIM = SAYS.claim(
    id="ten-draws",
    sources=("002",),
    expected="conditional",
    experiment=experiment,
    quick={"seeds": 10_000},
    full={"seeds": 200_000},
)
