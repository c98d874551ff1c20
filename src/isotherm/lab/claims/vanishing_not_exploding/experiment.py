"""Vanishing or exploding? The gradient is followed from a loss to q, k and their weights, from a tiny scale to a huge one."""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from isotherm import scale, theory
from isotherm import softmax as forms
from isotherm.lab.claim import Result, Setting, all_hold, at_most, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import logits, normal
from isotherm.lab.figures import MEAN, QUANTILES, figure, predicted
from isotherm.lab.interval import (
    interval,
    line_over_seeds,
    over_seeds,
    powers,
    quantile,
    quantile_line,
    quantile_of,
)
from isotherm.lab.numerals import numeral
from isotherm.language import Text
from isotherm.record import Figure, Line, Measured

SAYS = read_content(__file__)
SMALL, LARGE = 0.1, (30.0, 320.0)
"""Factors of 1/√d up to which, and between which, the gradient is expected to follow a power of the scale."""
FACTOR, UNEVEN = 2.0, 10.0
"""Without the scale a gradient more than twice as large explodes, one less than half as large vanishes; rows are uneven
if their 90th percentile lies ten times as far above the 10th. In the limit, vanished is a thousandth of the peak."""
HEAD_DIMENSIONS = (64, 128)
"""Those of real heads, which are always reported; from the first of them on rows are expected to be uneven."""
LOSSES = ("squared", "fixed")
"""A squared error, which itself grows as the outputs do, and an upstream gradient that does not depend on the scale."""


@dataclass(frozen=True)
class LayerGradients:
    """Gradients in many layers at one scale: of rows [layers, n] at the logits and at q, and of each weight [layers]."""

    through: Tensor
    logits: Tensor
    q: Tensor
    w_q: Tensor
    w_k: Tensor
    w_v: Tensor


def experiment(setting: Setting) -> Result:
    """Sweep the scale at one dimension, and compare 1/√d with no scale at several; all of it with both losses."""
    decade = setting["per_decade"]
    factors = tuple(10.0 ** (i / decade) for i in range(-3 * decade, 3 * decade + 1))
    count = setting.counter(len(LOSSES) * (len(factors) + len(setting["dimensions"])))
    sweeps: dict[str, Sweep] = {loss: {} for loss in LOSSES}
    pairs: Pairs = {}
    for loss in LOSSES:
        for factor in factors:
            sweeps[loss][factor] = layer(setting, setting["d"], factor, loss)
            count(1)
        for d in setting["dimensions"]:
            pairs[loss, d] = (layer(setting, d, 1.0, loss), layer(setting, d, sqrt(d), loss))
            count(1)
    through = max(float(found.through.max()) for sweep in sweeps.values() for found in sweep.values())
    bounded = at_most(SAYS["passes-softmax"], through, 0.5 + 1e-12, predicted=0.5)
    uneven, shrunk, grown = ([part(*key, *pair) for key, pair in pairs.items()] for part in (_uneven, _shrunk, _grown))
    limits = [number for loss, sweep in sweeps.items() for number in _limit(loss, sweep)]
    illustrated = (
        *(_median(*key, *pair) for key, pair in pairs.items()),
        *(_values(*key, *pair) for key, pair in pairs.items()),
        *_powers(sweeps["squared"]),
        *_best_scales(setting, sweeps["squared"]),
    )
    return conclude(
        all_hold((bounded, *uneven, *limits, *shrunk, *grown)),
        _sentence(pairs),
        (*uneven, bounded, *shrunk, *grown, *limits, *illustrated),
        (_row_figure(sweeps["fixed"]), _weight_figure(sweeps), _logit_figure(setting, sweeps["fixed"])),
        under=all_hold((bounded, *uneven, *limits)),
        condition=_condition(pairs),
    )


def layer(setting: Setting, d: int, factor: float, loss: str = "squared") -> LayerGradients:
    """Self-attention on unit-variance inputs, its scale `factor`/√d; every factor and either loss see the same draws."""
    n, width = setting["n"], setting["width"]
    generator = setting.generator(d)
    x, target = normal((setting["layers"], n, width), generator), normal((setting["layers"], n, d), generator)
    weights = [(normal((setting["layers"], width, d), generator) / sqrt(width)).requires_grad_() for _ in range(3)]
    q, k, v = (x @ weight for weight in weights)
    s = logits(q, k, scale.Relative(factor) * scale.InverseSqrt())
    p = forms.softmax(s)
    output = p @ v
    error = (output - target).square().sum() / 2 if loss == "squared" else (output * target).sum()
    at_p, at_s, at_q, *at_weights = torch.autograd.grad(error, (p, s, q, *weights))
    size = at_s.norm(dim=-1)
    of_weights = (at.flatten(1).norm(dim=-1) for at in at_weights)
    return LayerGradients(size / at_p.norm(dim=-1), size, at_q.norm(dim=-1), *of_weights)


Pairs = dict[tuple[str, int], tuple[LayerGradients, LayerGradients]]
"""For each loss and dimension the gradients with 1/√d and without a scale."""


def _named(name: Text, loss: str, d: int) -> Text:
    return name.format(d=d, loss=SAYS[f"loss-{loss}"])


def unevenness(found: LayerGradients) -> float:
    """How far the 90th percentile of the gradient to q lies above the 10th."""
    return quantile(found.q, 0.9)[0] / quantile(found.q, 0.1)[0]


def _uneven(loss: str, d: int, one: LayerGradients, two: LayerGradients) -> Measured:
    ratio = unevenness(two) / unevenness(one)
    return Measured(
        _named(SAYS["unevenness"], loss, d), ratio, holds=ratio >= UNEVEN if d >= HEAD_DIMENSIONS[0] else None
    )


def _shrunk(loss: str, d: int, one: LayerGradients, two: LayerGradients) -> Measured:
    """The median at the logits, which has to fall if the typical row's gradient vanishes."""
    ratio = quantile(two.logits, 0.5)[0] / quantile(one.logits, 0.5)[0]
    return Measured(_named(SAYS["logits-growth"], loss, d), ratio, holds=ratio < 1 / FACTOR)


def _grown(loss: str, d: int, one: LayerGradients, two: LayerGradients) -> Measured:
    ratios = (two.w_q / one.w_q).tolist()
    return over_seeds(
        _named(SAYS["weight-growth"], loss, d), ratios, document=1.0, holds=interval(ratios).mean <= FACTOR
    )


def _median(loss: str, d: int, one: LayerGradients, two: LayerGradients) -> Measured:
    return Measured(_named(SAYS["median-growth"], loss, d), quantile(two.q, 0.5)[0] / quantile(one.q, 0.5)[0])


def _values(loss: str, d: int, one: LayerGradients, two: LayerGradients) -> Measured:
    return over_seeds(_named(SAYS["value-growth"], loss, d), (two.w_v / one.w_v).tolist())


def _limit(loss: str, sweep: "Sweep") -> list[Measured]:
    """The median at the logits at 1/√d, and at a scale a thousand times as large, where it must have vanished."""
    last = max(sweep)
    peak = max(quantile(found.logits, 0.5)[0] for found in sweep.values())
    name = SAYS["median-at-logits"]
    vanished = quantile(sweep[last].logits, 0.5)[0] < peak / 1000
    return [
        quantile_of(name.format(c=1, loss=SAYS[f"loss-{loss}"]), sweep[1.0].logits, 0.5),
        quantile_of(
            name.format(c=1000, loss=SAYS[f"loss-{loss}"]), sweep[last].logits, 0.5, predicted=0.0, holds=vanished
        ),
    ]


def _sentence(pairs: Pairs) -> Text:
    """At the dimensions of real heads, with the loss that does not itself depend on the scale; the other one beside."""
    values = {}
    for d in HEAD_DIMENSIONS:
        one, two = pairs["fixed", d]
        values[f"one{d}"], values[f"two{d}"] = numeral(unevenness(one), 2), numeral(unevenness(two), 2)
        for loss in LOSSES:
            one, two = pairs[loss, d]
            values[f"grown_{loss}{d}"] = numeral(interval((two.w_q / one.w_q).tolist()).mean, 2)
    return SAYS["outcome"].format(**values)


def _condition(pairs: Pairs) -> Text:
    shares = {f"{loss}{d}": numeral(_shrunk(loss, d, *pairs[loss, d]).value, 2) for loss, d in pairs}
    return SAYS["condition"].format(**shares)


Sweep = dict[float, LayerGradients]


def _powers(sweep: Sweep) -> list[Measured]:
    """The power of the scale that the mean (p = 1) and the root mean square (p = 2) of ‖∂L/∂q‖ follow at either end."""
    small, large = [f for f in sweep if f <= SMALL], [f for f in sweep if LARGE[0] <= f <= LARGE[1]]
    numbers = []
    for name, factors, p, expected in (("small", small, 1, 1.0), ("mean", large, 1, 0.0), ("rms", large, 2, 0.5)):
        # Few rows carry the gradient at a large scale: layers are pooled by eights before the logarithm is taken.
        sizes = torch.stack([(sweep[f].q ** p).mean(-1).reshape(-1, 8).mean(-1) ** (1 / p) for f in factors])
        numbers.append(over_seeds(SAYS[f"power-{name}"], powers(factors, sizes.tolist()), predicted=expected))
    return numbers


def _best_scales(setting: Setting, sweep: Sweep) -> list[Measured]:
    """The factors at which the 10th percentile and the median of the gradient to q are largest."""
    tenth, median = (max(sweep, key=lambda factor: quantile(sweep[factor].q, q)[0]) for q in (0.1, 0.5))
    return [
        Measured(SAYS["best-for-tenth"], tenth, predicted=theory.freezing_threshold(setting["n"])),
        Measured(SAYS["best-for-median"], median),
        Measured(SAYS["evenness"], unevenness(sweep[1.0])),
    ]


def _row_figure(sweep: Sweep) -> Figure:
    factors = tuple(sweep)
    rows = [sweep[factor].q for factor in factors]
    squares = [found.square().mean(-1).sqrt().tolist() for found in rows]
    lines = (
        line_over_seeds(MEAN, factors, [found.mean(-1).tolist() for found in rows]),
        line_over_seeds(SAYS["root-mean-square"], factors, squares),
        *(_positive(quantile_line(name, factors, rows, q)) for q, name in QUANTILES.items()),
    )
    return figure("gradient-to-q", SAYS["query-caption"], SAYS["axis-scale"], SAYS["query-y"], lines, log="xy")


def _weight_figure(sweeps: dict[str, Sweep]) -> Figure:
    lines = [
        line_over_seeds(
            SAYS["weight-line"].format(weight=f"W_{of}", loss=SAYS[f"loss-{loss}"]),
            tuple(sweep),
            [getattr(found, f"w_{of}").tolist() for found in sweep.values()],
        )
        for loss, sweep in sweeps.items()
        for of in ("q", "v")
    ]
    return figure(
        "gradient-to-weights", SAYS["weights-caption"], SAYS["axis-scale"], SAYS["weights-y"], lines, log="xy"
    )


def _logit_figure(setting: Setting, sweep: Sweep) -> Figure:
    factors = tuple(sweep)
    rows = [sweep[factor].logits for factor in factors]
    n, d = setting["n"], setting["d"]
    gate = [theory.gaussian_attention(n, d, factor / sqrt(d)).jacobian_trace for factor in factors]
    lines = (
        line_over_seeds(MEAN, factors, [found.mean(-1).tolist() for found in rows]),
        _positive(quantile_line(QUANTILES[0.5], factors, rows, 0.5)),
        predicted(SAYS["expected-gate"], factors, gate),
    )
    return figure("gradient-at-logits", SAYS["logits-caption"], SAYS["axis-scale"], SAYS["logits-y"], lines, log="xy")


def _positive(line: Line) -> Line:
    """The same curve without what a logarithmic axis cannot show; below 10⁻³⁰ nothing is."""

    def shown(series: tuple[float | None, ...] | None) -> tuple[float | None, ...]:
        return tuple(y if y is not None and y > 1e-30 else None for y in series or ())

    return Line(line.name, line.x, shown(line.y), shown(line.low), shown(line.high))


CLAIM = SAYS.claim(
    id="vanishing-not-exploding",
    sources=("004",),
    expected="conditional",
    experiment=experiment,
    quick={"n": 64, "d": 64, "width": 64, "layers": 48, "per_decade": 4, "dimensions": (16, 64, 128, 256)},
    full={"n": 128, "layers": 64, "per_decade": 8, "dimensions": (16, 64, 128, 256, 1024)},
)
