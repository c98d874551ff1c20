"""Additive scores need no scale, says the document. They have one: it is hidden in the initialisation of v."""

from collections.abc import Callable
from functools import partial
from math import sqrt

import numpy as np

from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import normal, uniform
from isotherm.lab.figures import D_K, LOGIT_STD, figure, predicted
from isotherm.lab.interval import geometric, interval, line_over_seeds, over_seeds, power, powers
from isotherm.language import Text
from isotherm.ops import Additive
from isotherm.record import Figure, Line, Measured
from isotherm.stats import RowStats

SAYS = read_content(__file__)
FLAT = 0.1
"""A power of d_k this small is called independent of d_k: from 16 to 1024 it changes the spread by a factor of 1.5."""

VARIANCES: dict[str, Callable[[int], float]] = {
    "unit": lambda _: 1.0,
    "one-over-d": lambda d: 1 / d,
    "xavier": lambda d: 2 / (d + 1),
    "torch": lambda d: 1 / (3 * d),
}
"""Var vᵢ of each initialisation of v ∈ R^d, a layer with d inputs and one output; normal but for PyTorch's uniform one."""


def hidden_spread(nodes: int = 64) -> float:
    """√E_a[Var_b tanh(a + b)] for a, b standard normal: how much one hidden unit differs between the keys of a query."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    w = w / w.sum()
    values = np.tanh(x[:, None] + x[None, :])
    mean = values @ w
    return float(sqrt(w @ ((values - mean[:, None]) ** 2 @ w)))


def experiment(setting: Setting) -> Result:
    """Row spread of ⟨v, tanh(W₁h + W₂s)⟩ for each d_k, initialisation of v and seed."""
    dimensions, seeds = setting["dimensions"], setting["seeds"]
    spread = {name: [[0.0] * seeds for _ in dimensions] for name in (*VARIANCES, "dot")}
    gate = {name: [0.0] * seeds for name in spread}
    for i, d in enumerate(dimensions):
        for seed in range(seeds):
            for name, stats in _rows(setting, d, seed).items():
                spread[name][i][seed] = stats.logit_std.square().mean().sqrt().item()
                gate[name][seed] = stats.jacobian_trace.median().item()
        setting.progress((i + 1) / len(dimensions))
    exponents = {name: powers(dimensions, rows) for name, rows in spread.items()}
    flat = {name: interval(exponents[name]).farthest < FLAT for name in exponents}
    shrinking = all(flat[name] for name in VARIANCES if name != "unit")
    return conclude(
        shrinking and flat["unit"],
        _sentence(exponents, spread, dimensions),
        _measured(exponents, flat, spread, gate, dimensions),
        [_figure(spread, dimensions)],
        under=shrinking,
        condition=SAYS["condition"],
    )


def _rows(setting: Setting, d: int, seed: int) -> dict[str, RowStats]:
    """One draw of states and weights, scored with every v, and by the plain dot product of the projected states."""
    generator = setting.generator(d, seed)
    query, keys = (normal((1, rows, d), generator) for rows in (setting["queries"], setting["keys"]))
    score = Additive(d, d, d).double().requires_grad_(False)
    score.query.weight.copy_(normal((d, d), generator) / sqrt(d))
    score.key.weight.copy_(normal((d, d), generator) / sqrt(d))
    direction = {"torch": uniform((1, d), generator)}
    gaussian = normal((1, d), generator)
    found = {}
    for name, variance in VARIANCES.items():
        score.out.weight.copy_(direction.get(name, gaussian) * sqrt(variance(d)))
        found[name] = RowStats.from_logits(score.logits(query, keys))
    found["dot"] = RowStats.from_logits(score.query(query) @ score.key(keys).transpose(1, 2))
    return found


def _predicted(name: str, d: int) -> float:
    return sqrt(d) if name == "dot" else hidden_spread() * sqrt(d * VARIANCES[name](d))


Values = dict[str, list[list[float]]]


def _measured(
    exponents: dict[str, list[float]],
    flat: dict[str, bool],
    spread: Values,
    gate: dict[str, list[float]],
    dimensions: tuple[int, ...],
) -> tuple[Measured, ...]:
    last = dimensions[-1]
    numbers = []
    for name in spread:
        at = {"d": last, "name": SAYS[f"scores-{name}"]}
        theory = round(power(dimensions, [_predicted(name, d) for d in dimensions]), 9)
        holds = None if name == "dot" else flat[name]
        document = 0.0 if holds is not None else None
        numbers += [
            over_seeds(
                SAYS["exponent"].format(**at), exponents[name], predicted=theory, document=document, holds=holds
            ),
            over_seeds(SAYS["spread-at-last"].format(**at), spread[name][-1], predicted=_predicted(name, last)),
            over_seeds(SAYS["gate-at-last"].format(**at), gate[name], geometric),
        ]
    return tuple(numbers)


def _figure(spread: Values, dimensions: tuple[int, ...]) -> Figure:
    lines: list[Line] = []
    for name, rows in spread.items():
        what = SAYS[f"scores-{name}"]
        lines.append(line_over_seeds(what, dimensions, rows))
        lines.append(predicted(SAYS["predicted"].format(name=what), dimensions, partial(_predicted, name)))
    return figure("additive-spread", SAYS["caption"], D_K, LOGIT_STD, lines, log="xy")


def _sentence(exponents: dict[str, list[float]], spread: Values, dimensions: tuple[int, ...]) -> Text:
    unit, small = (interval(exponents[name]).mean for name in ("unit", "one-over-d"))
    values = {
        "small": f"{small:+.2f}",
        "unit": f"{unit:.2f}",
        "low": f"{interval(spread['one-over-d'][-1]).mean:.2f}",
        "high": f"{interval(spread['unit'][-1]).mean:.1f}",
        "d": dimensions[-1],
    }
    return SAYS["outcome"].format(**values)


CLAIM = SAYS.claim(
    id="additive-needs-no-scale",
    sources=("000",),
    expected="conditional",
    experiment=experiment,
    quick={"dimensions": (16, 32, 64, 128, 256, 512, 1024), "seeds": 16, "queries": 4, "keys": 128},
    full={"dimensions": (16, 32, 64, 128, 256, 512, 1024, 2048), "seeds": 32, "queries": 16, "keys": 256},
)
