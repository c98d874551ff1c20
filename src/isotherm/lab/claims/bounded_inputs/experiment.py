"""Inputs in [0, 1] give a dot product in [0, d]: true, and much less alarming than it sounds."""

from functools import partial
from math import pi, sqrt

import torch
from torch import Tensor

from isotherm import scale, theory
from isotherm.lab.claim import Result, Setting, all_hold, conclude, none_of
from isotherm.lab.content import read_content
from isotherm.lab.dots import Draw, logits
from isotherm.lab.figures import D, curve, figure, predicted
from isotherm.lab.interval import interval, line_over_seeds, over_seeds, powers
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.record import Figure, Measured

SAYS = read_content(__file__)


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform on [0, 1]."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def corners(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """0 or 1: nothing in [0, 1] spreads more."""
    return torch.randint(2, shape, generator=generator, dtype=torch.int8).double()


def arcsine(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """The arcsine law, dense near 0 and 1."""
    return (pi / 2 * torch.rand(shape, generator=generator, dtype=torch.float64)).sin().square()


KINDS: tuple[tuple[Text, Draw, float], ...] = (
    (SAYS["uniform"], uniform, 1 / 12),
    (SAYS["zero-or-one"], corners, 1 / 4),
    (SAYS["arcsine"], arcsine, 1 / 8),
)
"""Each distribution on [0, 1] with mean ½, and its variance."""


def experiment(setting: Setting) -> Result:
    """Compare dot products with their bounds, check that both bounds are reached, and measure how much of [0, d] is used."""
    dimensions = setting["dimensions"]
    outside, spreads, used, means = 0, {}, {}, {}
    for i, (_, draw, _) in enumerate(KINDS):
        for d in dimensions:
            s = _scores(setting, i, d, draw)
            outside += int((~((s >= 0) & (s <= d))).sum())
            spreads[i, d] = s.var(-1).mean(-1).sqrt().tolist()
            used[i, d] = ((s.amax((-2, -1)) - s.amin((-2, -1))) / d).tolist()
            means[i, d] = s.mean((-2, -1)).tolist()
        setting.progress((i + 1) / len(KINDS))
    ends = _ends(dimensions[-1])
    last, kinds = dimensions[-1], range(len(KINDS))

    def name(text: Text, i: int) -> Text:
        return text.format(kind=KINDS[i][0], d=last)

    numbers = (
        none_of(SAYS["outside"], outside),
        Measured(SAYS["lower-end"].format(d=last), ends[0], predicted=0.0, document=0.0, holds=ends[0] == 0),
        Measured(
            SAYS["upper-end"].format(d=last),
            ends[1],
            predicted=float(last),
            document=float(last),
            holds=ends[1] == last,
        ),
        over_seeds(SAYS["power"], powers(dimensions, [spreads[0, d] for d in dimensions]), predicted=0.5, document=1.0),
        *(over_seeds(name(SAYS["used"], i), used[i, last], document=1.0) for i in kinds),
        *(over_seeds(name(SAYS["mean"], i), means[i, last], predicted=_moments(i, last).mean) for i in kinds),
        *(over_seeds(name(SAYS["spread"], i), spreads[i, last], predicted=_between_keys(i, last)) for i in kinds),
    )
    part, mean, spread = (interval(table[0, last]).mean for table in (used, means, spreads))
    sentence = SAYS["outcome"].format(d=last, used=percent(part), mean=numeral(mean, 4), spread=numeral(spread))
    figures = (_figure(dimensions, spreads), _used_figure(dimensions, used))
    return conclude(all_hold(numbers), sentence, numbers, figures)


def _scores(setting: Setting, i: int, d: int, draw: Draw) -> Tensor:
    """⟨h, s⟩ of queries with keys, [seeds, queries, keys]."""
    generator = setting.generator(i, d)
    q, k = (draw((setting["seeds"], rows, d), generator) for rows in (setting["queries"], setting["keys"]))
    return logits(q, k, scale.NoScale())


def _ends(d: int) -> tuple[float, float]:
    """The dot products of all zeros and of all ones."""
    zero, one = torch.zeros(1, d, dtype=torch.float64), torch.ones(1, d, dtype=torch.float64)
    return float(logits(zero, one, scale.NoScale())), float(logits(one, one, scale.NoScale()))


def _moments(i: int, d: int) -> theory.DotProductMoments:
    variance = KINDS[i][2]
    return theory.dot_product_moments(d, mean_q=0.5, mean_k=0.5, var_q=variance, var_k=variance)


def _between_keys(i: int, d: int) -> float:
    """Given h, the scores of independent keys vary by Σhᵢ²·v: on average d(¼ + v)v."""
    variance = KINDS[i][2]
    return sqrt(d * (0.25 + variance) * variance)


def _figure(dimensions: tuple[int, ...], spreads: dict[tuple[int, int], list[float]]) -> Figure:
    lines = []
    for i, (name, _, _) in enumerate(KINDS):
        lines.append(line_over_seeds(name, dimensions, [spreads[i, d] for d in dimensions]))
        lines.append(predicted(SAYS["predicted"].format(name=name), dimensions, partial(_between_keys, i)))
    lines.append(curve(SAYS["interval-length"], dimensions, float, "document"))
    return figure("bounded-spread", SAYS["spread-caption"], D, SAYS["spread-y"], lines, log="xy")


def _used_figure(dimensions: tuple[int, ...], used: dict[tuple[int, int], list[float]]) -> Figure:
    rows = [[used[i, d] for d in dimensions] for i in range(len(KINDS))]
    lines = (line_over_seeds(kind[0], dimensions, values) for kind, values in zip(KINDS, rows, strict=True))
    return figure("bounded-used", SAYS["used-caption"], D, SAYS["used-y"], lines, log="x")


CLAIM = SAYS.claim(
    id="bounded-inputs",
    sources=("000",),
    expected="confirmed",
    experiment=experiment,
    quick={"dimensions": (1, 4, 16, 64, 256, 1024), "seeds": 16, "queries": 32, "keys": 64},
    full={"dimensions": (1, 4, 16, 64, 256, 1024, 4096), "seeds": 32, "queries": 128, "keys": 256},
)
