"""From position 1 to position 1000: the number of steps between them, the work, and the gradient that survives."""

from collections.abc import Callable
from math import log10, sqrt

import torch
from torch import Tensor

from isotherm import ops, scale
from isotherm.lab import recurrence
from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import normals
from isotherm.lab.figures import IN_SEQUENCE, POSITIONS, curve, figure
from isotherm.lab.interval import interval, line_over_seeds, over_seeds, slope
from isotherm.lab.numerals import numeral
from isotherm.lab.tally import Tally, depth
from isotherm.language import Text
from isotherm.record import Figure, Measured

SAYS = read_content(__file__)
FARTHER = 3.0
"""Powers of ten by which attention's gradient must exceed a recurrent net's to call the long path a loss."""
BOOST = 1e200
"""Gradients are propagated this much larger, so that those of 10⁻³²⁰ do not underflow."""
NOTHING = -400.0
"""log₁₀ of a gradient that is exactly 0."""
NETS = ("tanh", "gru", "gru-keep")


def experiment(setting: Setting) -> Result:
    """Steps, work and surviving gradient of each net at each distance, over seeds."""
    lengths = setting["lengths"]
    gradient: dict[str, list[list[float]]] = {name: [] for name in ("attention", *NETS)}
    steps: dict[str, list[int]] = {name: [] for name in gradient}
    for name in NETS:
        for found, deep in _recurrent(setting, name):
            gradient[name].append(found)
            steps[name].append(deep)
    for done, n in enumerate(lengths):
        found, deep = _attention(setting, n)
        gradient["attention"].append(found)
        steps["attention"].append(deep)
        setting.progress((done + 1) / len(lengths))
    one_step = len(set(steps["attention"])) == 1
    each = {name: slope(lengths, steps[name]) for name in NETS}
    many_steps = all(abs(steps[name][-1] / each[name] - lengths[-1]) < 0.5 for name in NETS)
    ahead = {name: _ahead(gradient, name) for name in NETS}
    lost = {name: interval(ahead[name]).low > FARTHER for name in NETS}
    usual = one_step and many_steps and lost["tanh"] and lost["gru"]
    always = usual and lost["gru-keep"]
    return conclude(
        always,
        _sentence(lengths[-1], gradient),
        _measured(setting, steps, each, gradient, ahead, (one_step, many_steps), lost),
        (_gradient_figure(lengths, gradient), _steps_figure(lengths, steps)),
        under=usual,
        condition=SAYS["condition"],
    )


def _ahead(gradient: dict[str, list[list[float]]], name: str) -> list[float]:
    """log₁₀ of attention's gradient over the net's at the largest distance, for each seed."""
    return [a - b for a, b in zip(gradient["attention"][-1], gradient[name][-1], strict=True)]


def _survivors(output: Tensor, start: Tensor, direction: Tensor) -> list[float]:
    """log₁₀‖∂(u·y_n)/∂x₁‖ for each seed, u a random unit vector."""
    unit = direction / direction.norm(dim=-1, keepdim=True)
    (found,) = torch.autograd.grad((output * unit).sum() * BOOST, start, retain_graph=True)
    largest = found.abs().amax((1, 2), keepdim=True)
    norms = largest.flatten().log10() + (found / largest).norm(dim=(1, 2)).log10() - log10(BOOST)
    return [value if value > NOTHING else NOTHING for value in norms.nan_to_num(NOTHING).tolist()]


def _recurrent(setting: Setting, name: str) -> list[tuple[list[float], int]]:
    """Surviving gradient and depth at every length, from one pass to the largest."""
    d, lengths, seeds = setting["dimension"], setting["lengths"], setting["seeds"]
    generators = setting.generators(1 + NETS.index(name))
    step: Callable[..., Tensor] = recurrence.tanh_step if name == "tanh" else recurrence.gru_step
    layer = recurrence.weights(generators, d, 1 if name == "tanh" else 3)
    if name == "gru-keep":
        layer = recurrence.keep_long(layer, generators, lengths[-1])
    x, direction = normals(generators, lengths[-1], d), normals(generators, 1, d)
    first = x[:, :1].clone().requires_grad_()
    state, found = torch.zeros(seeds, 1, d, dtype=torch.float64), []
    for n in range(1, lengths[-1] + 1):
        state = step(layer, first if n == 1 else x[:, n - 1 : n], state)
        if n in lengths:
            found.append((_survivors(state, first, direction), depth(state, first)))
    return found


def _attention(setting: Setting, n: int) -> tuple[list[float], int]:
    """The last query of one head over n positions, 1/√d, weights of variance 1/d."""
    d = setting["dimension"]
    generators = setting.generators(100 + n)
    x, direction = normals(generators, n, d), normals(generators, 1, d)
    w_q, w_k, w_v = (normals(generators, d, d) / sqrt(d) for _ in range(3))
    first = x[:, :1].clone().requires_grad_()
    states = torch.cat([first, x[:, 1:]], 1)
    q, k, v = ((part @ w).unsqueeze(1) for part, w in ((states[:, -1:], w_q), (states, w_k), (states, w_v)))
    output = ops.attention(q, k, v, scale=scale.InverseSqrt(), impl="reference").output.squeeze(1)
    return _survivors(output, first, direction), depth(output, first)


@torch.no_grad()
def _work(setting: Setting, n: int) -> tuple[int, int]:
    """Multiply-adds of a whole layer over n positions: attention, GRU."""
    d = setting["dimension"]
    generators = [setting.generator(7)]
    x, w = normals(generators, n, d), normals(generators, d, 3 * d)
    with Tally() as attention:
        q, k, v = (part.unsqueeze(1) for part in (x @ w).chunk(3, -1))
        ops.attention(q, k, v, impl="reference")
    layer = recurrence.weights(generators, d, 3)
    with Tally() as gru:
        recurrence.gru_step(layer, x[:, :1], torch.zeros(1, 1, d, dtype=torch.float64))
    return attention.multiply_adds, n * gru.multiply_adds


def _measured(
    setting: Setting,
    steps: dict[str, list[int]],
    each: dict[str, float],
    gradient: dict[str, list[list[float]]],
    ahead: dict[str, list[float]],
    counted: tuple[bool, bool],
    lost: dict[str, bool],
) -> tuple[Measured, ...]:
    lengths, n = setting["lengths"], setting["lengths"][-1]
    longest = steps["attention"][-1] / steps["attention"][0]
    numbers = [Measured(SAYS["layers-between"].format(n=n), longest, predicted=1, document=1, holds=counted[0])]
    for name in ("tanh", "gru"):
        value = steps[name][-1] / each[name]
        title = SAYS["cells-between"].format(n=n, name=SAYS[f"net-{name}"])
        numbers.append(Measured(title, value, predicted=n, document=n, holds=counted[1]))
    for name, rows in gradient.items():
        numbers.append(over_seeds(SAYS["surviving"].format(n=n, name=SAYS[f"net-{name}"]), rows[-1]))
    for name in NETS:
        numbers.append(over_seeds(SAYS["ahead"].format(name=SAYS[f"net-{name}"]), ahead[name], holds=lost[name]))
    decades = [log10(length) for length in lengths]
    fall = [slope(decades, seed) for seed in zip(*gradient["attention"], strict=True)]
    numbers.append(over_seeds(SAYS["fall"], fall, predicted=-1.0))
    for name, count in zip(("attention", "gru"), _work(setting, n), strict=True):
        numbers.append(Measured(SAYS["work"].format(n=n, name=SAYS[f"net-{name}"]), count))
    return tuple(numbers)


def _gradient_figure(lengths: tuple[int, ...], gradient: dict[str, list[list[float]]]) -> Figure:
    lines = (line_over_seeds(SAYS[f"net-{name}"], lengths, gradient[name]) for name in gradient)
    return figure("path-gradient", SAYS["gradient-caption"], POSITIONS, SAYS["gradient-y"], lines, log="x")


def _steps_figure(lengths: tuple[int, ...], steps: dict[str, list[int]]) -> Figure:
    lines = (curve(SAYS[f"net-{name}"], lengths, map(float, steps[name])) for name in ("attention", "tanh", "gru"))
    return figure("path-steps", SAYS["steps-caption"], POSITIONS, IN_SEQUENCE, lines, log="xy")


def _sentence(n: int, gradient: dict[str, list[list[float]]]) -> Text:
    mean = {name: numeral(10 ** interval(rows[-1]).mean, 2) for name, rows in gradient.items()}
    return SAYS["outcome"].format(n=n, attention=mean["attention"], gru=mean["gru"], keep=mean["gru-keep"])


CLAIM = SAYS.claim(
    id="constant-path",
    sources=("002",),
    expected="conditional",
    experiment=experiment,
    quick={"lengths": (8, 16, 32, 64, 125, 250, 500, 1000), "dimension": 32, "seeds": 8},
    full={"dimension": 64, "seeds": 16},
)
