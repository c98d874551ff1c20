"""Large inputs make softmax an arg-max, say the documents. Large differences do; large inputs alone change nothing."""

import torch
from torch import Tensor

from isotherm import softmax as forms
from isotherm import theory
from isotherm.lab.claim import Result, Setting, all_hold, conclude, none_of
from isotherm.lab.content import read_content
from isotherm.lab.dots import normal
from isotherm.lab.figures import SHARE_OF_DRAWS, figure, predicted
from isotherm.lab.interval import groups, line_over_seeds, over_seeds, share, share_line, share_of
from isotherm.lab.numerals import numeral, percent
from isotherm.record import Figure

SAYS = read_content(__file__)
ALMOST_ALL = 0.99
"""The softmax counts as saturated when its largest probability exceeds this."""


def experiment(setting: Setting) -> Result:
    """Multiply normal inputs by growing factors, shift them by a constant, and make the two largest equal."""
    factors = setting["factors"]
    tops, gates, broken = {}, {}, 0
    for n in setting["sizes"]:
        x = normal((setting["draws"], n), setting.generator(n))
        gap = x.topk(2, -1).values.diff(dim=-1).neg().squeeze(-1)
        last = torch.zeros(len(x), dtype=torch.float64)
        for factor in factors:
            y = forms.softmax(factor * x)
            top, rest = y.amax(-1), _others(y)
            kept = (rest <= (n - 1) * (-factor * gap).exp() * (1 + 1e-9)) & (top >= last - 1e-12)
            broken += int((~kept).sum())
            last = top
            tops[n, factor], gates[n, factor] = top, forms.jacobian_trace(y)
        setting.progress(len(tops) / (len(setting["sizes"]) * len(factors)))
    shown = setting["sizes"][1]
    x = normal((setting["draws"], shown), setting.generator(shown))
    c, t = setting["shift"], factors[-1]
    shifted, tied = _top(x + c), _top(t * _tie(x))
    saturated = tops[shown, t] > ALMOST_ALL
    numbers = (
        none_of(SAYS["broken"], broken),
        share_of(SAYS["saturated"].format(n=shown, t=t), saturated, holds=share(saturated)[1] > 0.9),
        over_seeds(SAYS["plain"].format(n=shown), groups(_top(x))),
        over_seeds(SAYS["shifted"].format(c=c, n=shown), groups(shifted), holds=bool(shifted.mean() > ALMOST_ALL)),
        over_seeds(
            SAYS["tied"].format(n=shown, t=t), groups(tied), predicted=0.5, holds=bool(tied.mean() > ALMOST_ALL)
        ),
        *(
            over_seeds(
                SAYS["mean-gate"].format(n=n, t=factor),
                groups(gates[n, factor]),
                predicted=theory.gaussian_row(n, factor).jacobian_trace,
            )
            for n, factor in ((shown, factors[len(factors) // 2]), (shown, t))
        ),
    )
    unmoved = abs(float(shifted.mean() - _top(x).mean())) < 1e-9
    multiplied = unmoved and all_hold(numbers[:2])
    as_written = multiplied and all_hold(numbers)
    kept, top = percent(share(saturated)[0]), numeral(float(shifted.mean()))
    sentence = SAYS["outcome"].format(t=t, share=kept, c=c, top=top)
    figures = (_figure(setting, tops), _gate_figure(setting, gates, shown))
    return conclude(as_written, sentence, numbers, figures, under=multiplied, condition=SAYS["condition"])


def _top(x: Tensor) -> Tensor:
    return forms.softmax(x).amax(-1)


def _others(y: Tensor) -> Tensor:
    """1 − the largest probability, as the sum of the others, which loses no digits."""
    return y.sort(-1).values[..., :-1].sum(-1)


def _tie(x: Tensor) -> Tensor:
    """The same draws with the second largest raised to the largest."""
    best, where = x.topk(2, -1)
    return x.scatter(-1, where[:, 1:], best[:, :1])


def _figure(setting: Setting, tops: dict[tuple[int, float], Tensor]) -> Figure:
    factors = setting["factors"]
    lines = (
        share_line(SAYS["size"].format(n=n), factors, [tops[n, t] > ALMOST_ALL for t in factors])
        for n in setting["sizes"]
    )
    return figure("softmax-saturates-share", SAYS["share-caption"], SAYS["axis-factor"], SHARE_OF_DRAWS, lines, log="x")


def _gate_figure(setting: Setting, gates: dict[tuple[int, float], Tensor], n: int) -> Figure:
    factors = setting["factors"]
    lines = (
        line_over_seeds(SAYS["measured-mean"], factors, [groups(gates[n, t]) for t in factors]),
        predicted(SAYS["exact-expectation"], factors, lambda t: theory.gaussian_row(n, t).jacobian_trace),
    )
    caption = SAYS["gate-caption"].format(n=n)
    return figure("softmax-saturates-gate", caption, SAYS["axis-factor"], SAYS["gate-y"], lines, log="xy")


CLAIM = SAYS.claim(
    id="softmax-saturates",
    sources=("000", "001", "002"),
    expected="conditional",
    experiment=experiment,
    quick={
        "sizes": (3, 10, 100, 1000),
        "draws": 2000,
        "factors": (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
        "shift": 1000,
    },
    full={"draws": 20_000},
)
