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
from isotherm.record import Figure, Line, Measured

SAYS = read_content(__file__)
SMALL, LARGE = 0.1, (30.0, 320.0)
"""Factors of 1/√d up to which, and between which, the gradient is expected to follow a power of the scale."""
GROWTH = 2.0
"""A gradient more than twice as large without the scale is called exploding; a thousandth of its peak, vanished."""


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
    """Sweep the scale at one dimension, and compare 1/√d with no scale at several."""
    decade = setting["per_decade"]
    factors = tuple(10.0 ** (i / decade) for i in range(-3 * decade, 3 * decade + 1))
    sweep = {}
    for i, factor in enumerate(factors):
        sweep[factor] = layer(setting, setting["d"], factor)
        setting.progress(0.8 * (i + 1) / len(factors))
    through = max(float(found.through.max()) for found in sweep.values())
    medians = {factor: quantile(found.logits, 0.5)[0] for factor, found in sweep.items()}
    vanished = medians[factors[-1]] < max(medians.values()) / 1000
    unscaled = {d: (layer(setting, d, 1.0), layer(setting, d, sqrt(d))) for d in setting["dimensions"]}
    growth = {d: [float(b / a) for a, b in zip(one.w_q, two.w_q, strict=True)] for d, (one, two) in unscaled.items()}
    tenth = {d: quantile(two.q, 0.1)[0] / quantile(one.q, 0.1)[0] for d, (one, two) in unscaled.items()}
    tame = all(interval(ratios).mean <= GROWTH for ratios in growth.values())
    numbers = (
        at_most(SAYS["passes-softmax"], through, 0.5 + 1e-12, predicted=0.5),
        quantile_of(SAYS["median-at-logits"].format(c=1), sweep[1.0].logits, 0.5),
        quantile_of(
            SAYS["median-at-logits"].format(c=1000), sweep[factors[-1]].logits, 0.5, predicted=0.0, holds=vanished
        ),
        *(
            over_seeds(SAYS["weight-growth"].format(d=d), ratios, document=1.0, holds=interval(ratios).mean <= GROWTH)
            for d, ratios in growth.items()
        ),
        *(Measured(SAYS["tenth-growth"].format(d=d), ratio) for d, ratio in tenth.items()),
        *_powers(sweep),
        Measured(SAYS["best-for-tenth"], _best(sweep, 0.1), predicted=theory.freezing_threshold(setting["n"])),
        Measured(SAYS["best-for-median"], _best(sweep, 0.5)),
        Measured(SAYS["evenness"], quantile(sweep[1.0].q, 0.9)[0] / quantile(sweep[1.0].q, 0.1)[0]),
    )
    at_logits = all_hold((numbers[0], numbers[2]))
    d = max(growth)
    less = numeral(quantile(unscaled[d][0].q, 0.1)[0] / quantile(unscaled[d][1].q, 0.1)[0], 2)
    more = numeral(interval(growth[d]).mean, 2)
    return conclude(
        at_logits and tame,
        SAYS["outcome"].format(through=numeral(through, 2), d=d, growth=more, tenth=less),
        numbers,
        (_row_figure(sweep), _weight_figure(sweep), _logit_figure(setting, sweep)),
        under=at_logits,
        condition=SAYS["condition"],
    )


def layer(setting: Setting, d: int, factor: float) -> LayerGradients:
    """Self-attention on unit-variance inputs and a squared loss, its scale `factor`/√d; every factor sees the same draws."""
    n, width = setting["n"], setting["width"]
    generator = setting.generator(d)
    x, target = normal((setting["layers"], n, width), generator), normal((setting["layers"], n, d), generator)
    weights = [(normal((setting["layers"], width, d), generator) / sqrt(width)).requires_grad_() for _ in range(3)]
    q, k, v = (x @ weight for weight in weights)
    s = logits(q, k, scale.Relative(factor) * scale.InverseSqrt())
    p = forms.softmax(s)
    loss = (p @ v - target).square().sum() / 2
    at_p, at_s, at_q, *at_weights = torch.autograd.grad(loss, (p, s, q, *weights))
    size = at_s.norm(dim=-1)
    of_weights = (at.flatten(1).norm(dim=-1) for at in at_weights)
    return LayerGradients(size / at_p.norm(dim=-1), size, at_q.norm(dim=-1), *of_weights)


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


def _best(sweep: Sweep, q: float) -> float:
    """The factor at which this quantile of the gradient to q is largest."""
    return max(sweep, key=lambda factor: quantile(sweep[factor].q, q)[0])


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


def _weight_figure(sweep: Sweep) -> Figure:
    factors = tuple(sweep)
    lines = tuple(
        line_over_seeds(SAYS[f"weight-{of}"], factors, [getattr(found, f"w_{of}").tolist() for found in sweep.values()])
        for of in ("q", "k", "v")
    )
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
    quick={"n": 64, "d": 64, "width": 64, "layers": 48, "per_decade": 4, "dimensions": (16, 64, 256)},
    full={"n": 128, "layers": 64, "per_decade": 8, "dimensions": (16, 64, 256, 1024)},
)
