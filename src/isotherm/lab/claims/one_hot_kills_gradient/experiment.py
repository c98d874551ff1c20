"""The closer y is to one-hot, the smaller every entry of its Jacobian: by exactly how much, and what still learns."""

import torch
from torch import Tensor

from isotherm import softmax as forms
from isotherm.lab.claim import Result, Setting, all_hold, at_most, conclude, none_of
from isotherm.lab.content import read_content
from isotherm.lab.dots import normal
from isotherm.lab.figures import LARGEST_ENTRY, figure, predicted
from isotherm.lab.interval import bisect, groups, over_seeds, quantile, quantile_line, quantile_of
from isotherm.lab.numerals import numeral
from isotherm.record import Figure, Measured

SAYS = read_content(__file__)
DTYPES = ((torch.float16, 25), (torch.bfloat16, 134), (torch.float32, 150), (torch.float64, 1075))
"""Each precision, and p such that numbers below 2^−p round to 0 (half of its smallest subnormal number)."""


def experiment(setting: Setting) -> Result:
    """Compute Jacobians of ever sharper rows, compare each entry with 1 − top1, and take gradients of scores and values."""
    x = normal((setting["draws"], setting["n"]), setting.generator(0))
    factors = setting["factors"]
    rest, largest = [], []
    beyond, off = 0, []
    for factor in factors:
        y = forms.softmax(factor * x)
        others = y.sort(-1).values[..., :-1].sum(-1)
        entry = forms.jacobian(y).abs().amax((-2, -1))
        beyond += int((~(entry <= others + 1e-15)).sum())
        led = y.amax(-1) > 0.5
        off.append(torch.where(led, (entry - y.amax(-1) * others).abs(), 0.0).max())
        rest.append(others)
        largest.append(entry)
    scores, values = _gradients(setting, x, factors[-1])
    numbers = (
        none_of(SAYS["beyond"], beyond),
        at_most(SAYS["exactly"], float(torch.stack(off).max()), 1e-15, predicted=0.0),
        quantile_of(SAYS["median"].format(t=factors[0]), largest[0], 0.5),
        quantile_of(
            SAYS["median"].format(t=factors[-1]),
            largest[-1],
            0.5,
            holds=quantile(largest[-1], 0.5)[2] < 1e-3 * quantile(largest[0], 0.5)[1],
        ),
        over_seeds(SAYS["to-scores"].format(t=factors[-1]), groups(scores)),
        over_seeds(SAYS["to-values"].format(t=factors[-1]), groups(values)),
        *(
            Measured(
                SAYS["zero-gap"].format(name=str(kind).removeprefix("torch.")),
                _first_zero(kind),
                predicted=power * 0.6931471805599453,
            )
            for kind, power in DTYPES
        ),
    )
    first, last, of_values = numeral(numbers[2].value), numeral(numbers[3].value, 2), numeral(numbers[5].value)
    sentence = SAYS["outcome"].format(count=len(factors) * len(x), first=first, last=last, values=of_values)
    return conclude(all_hold(numbers), sentence, numbers, [_figure(rest, largest)])


def _gradients(setting: Setting, x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """‖∂L/∂scores‖ and ‖∂L/∂v‖ for each draw, where a unit gradient g arrives at the output y·v."""
    v = normal((len(x), setting["n"], 1), setting.generator(1)).requires_grad_()
    s = (factor * x).requires_grad_()
    output = (forms.softmax(s).unsqueeze(-1) * v).sum()
    to_scores, to_values = torch.autograd.grad(output, (s, v))
    return to_scores.norm(dim=-1), to_values.squeeze(-1).norm(dim=-1)


def _first_zero(kind: torch.dtype) -> float:
    """The gap g between two inputs from which on every entry of the Jacobian of softmax(g, 0) is exactly 0."""

    def passes(gap: float) -> bool:
        return bool(forms.jacobian(forms.softmax(torch.tensor([gap, 0.0], dtype=kind))).any())

    return bisect(passes, 0.0, 1024.0, 19)[1]


def _figure(rest: list[Tensor], largest: list[Tensor]) -> Figure:
    x = [quantile(values, 0.5)[0] for values in rest]
    lines = (
        quantile_line(SAYS["medians"], x, largest, 0.5),
        predicted(SAYS["product"], [10.0**-k for k in range(1, 12)], lambda e: e * (1 - e)),
    )
    return figure("one-hot-largest-entry", SAYS["entry-caption"], SAYS["axis-rest"], LARGEST_ENTRY, lines, log="xy")


CLAIM = SAYS.claim(
    id="one-hot-kills-gradient",
    sources=("000", "001", "003", "004"),
    expected="confirmed",
    experiment=experiment,
    quick={"n": 10, "draws": 2000, "factors": (1, 2, 4, 8, 16, 32, 64)},
    full={"draws": 50_000},
)
