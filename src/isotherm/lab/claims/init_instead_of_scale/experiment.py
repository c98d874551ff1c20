"""A smaller W_q instead of 1/√d: the same model at the first step, another one at the second."""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from isotherm import ops, scale
from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import normals
from isotherm.lab.figures import LOGIT_STD, TRAINING_STEP, figure
from isotherm.lab.interval import interval, line_over_seeds, over_seeds
from isotherm.lab.numerals import numeral
from isotherm.language import Text
from isotherm.record import Figure, Measured

SAYS = read_content(__file__)
SAME_START = 1e-9
"""Largest difference of logits that is only rounding."""
SAME_LATER = 0.1
"""Two logit spreads that differ by less than this share count as the same."""
BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class Form:
    """One way to keep the logits small: the rule, and what W_q and W_k are multiplied by at the start (d to a power)."""

    rule: scale.Rule
    query: float = 0.0
    key: float = 0.0


FORMS = {
    "scale": Form(scale.InverseSqrt()),
    "query": Form(scale.NoScale(), query=-0.5),
    "both": Form(scale.NoScale(), query=-0.25, key=-0.25),
}


@dataclass
class TrainingRun:
    """Logit spread and loss of one training, each [steps + 1][seeds]; the logits at the start; the size of W_q's first step."""

    spread: list[list[float]]
    loss: list[list[float]]
    start: Tensor
    first: Tensor


Key = tuple[str, str, bool]
"""Form, optimiser, and whether the learning rate is corrected."""
TrainingRuns = dict[Key, TrainingRun]


def experiment(setting: Setting) -> Result:
    """Train each form with each optimiser, at one learning rate and at the rate corrected for its initialisation."""
    d = setting["dimension"]
    runs: TrainingRuns = {}
    plan = [
        (form, optimiser, corrected) for optimiser in ("sgd", "adam") for form in FORMS for corrected in (False, True)
    ]
    for done, (form, optimiser, corrected) in enumerate(plan):
        if not (form == "scale" and corrected):
            runs[form, optimiser, corrected] = _train(setting, FORMS[form], optimiser, corrected)
        setting.progress((done + 1) / len(plan))
    others = [key for key in runs if key[0] != "scale"]
    start = {key: _relative(runs[key].start, runs["scale", key[1], False].start) for key in others}
    later = {key: _apart(runs[key], runs["scale", key[1], False]) for key in others}
    equal = max(start.values()) < SAME_START
    drifts = {key: interval(later[key]).high < SAME_LATER for key in others if not key[2]}
    coincide = all(interval(later[key]).high < 1e-3 for key in others if key[2])
    return conclude(
        equal and all(drifts.values()),
        _sentence(setting, runs, start),
        _measured(setting, runs, start, later, equal, drifts),
        [_figure(setting, runs, optimiser) for optimiser in ("sgd", "adam")],
        under=equal and coincide,
        condition=SAYS["condition"].format(d=d, root=numeral(sqrt(d))),
    )


def factor(form: Form, optimiser: str, side: str, d: int) -> float:
    """How much larger a step is than under the scale, in the scaled model's own units, at the same learning rate.

    A weight made smaller by d^a has a gradient larger by d^−a and counts d^−a times as much: d^−2a for gradient descent;
    Adam does not see the size of a gradient, so d^−a.
    """
    power = getattr(form, side)
    return float(d ** (-2 * power if optimiser == "sgd" else -power))


def _train(setting: Setting, form: Form, optimiser: str, corrected: bool) -> TrainingRun:
    d, width = setting["dimension"], setting["width"]
    generators = setting.generators(1)
    sides = ("query", "key")
    units = {side: d ** getattr(form, side) for side in sides}
    weights = {side: (normals(generators, width, d) / sqrt(width) * units[side]).requires_grad_() for side in sides}
    rates = {side: setting[optimiser] / (factor(form, optimiser, side, d) if corrected else 1.0) for side in sides}
    step = _sgd if optimiser == "sgd" else _adam
    memory: dict[str, Tensor] = {}
    run = TrainingRun([], [], torch.empty(0), torch.empty(0))
    for number in range(setting["steps"] + 1):
        losses, logits = _loss(setting, generators, weights, form.rule)
        run.spread.append(logits.std(-1).mean(-1).tolist())
        run.loss.append(losses.tolist())
        gradients = torch.autograd.grad(losses.sum(), list(weights.values()))
        with torch.no_grad():
            for side, gradient in zip(sides, gradients, strict=True):
                change = step(memory, side, gradient, number) * rates[side]
                if number == 0 and side == "query":
                    run.start, run.first = logits.detach(), change.flatten(1).norm(dim=1) / units[side]
                weights[side] -= change
    return run


def _sgd(memory: dict[str, Tensor], side: str, gradient: Tensor, number: int) -> Tensor:  # noqa: ARG001
    return gradient


def _adam(memory: dict[str, Tensor], side: str, gradient: Tensor, number: int) -> Tensor:
    """One step of Adam without ε, so that the step does not depend on the size of the gradient."""
    zero = torch.zeros_like(gradient)
    first = memory[f"{side} 1"] = BETAS[0] * memory.get(f"{side} 1", zero) + (1 - BETAS[0]) * gradient
    second = memory[f"{side} 2"] = BETAS[1] * memory.get(f"{side} 2", zero) + (1 - BETAS[1]) * gradient.square()
    unbiased = [moment / (1 - beta ** (number + 1)) for moment, beta in zip((first, second), BETAS, strict=True)]
    return unbiased[0] / unbiased[1].sqrt().clamp(min=1e-200)


def _loss(
    setting: Setting, generators: list[torch.Generator], weights: dict[str, Tensor], rule: scale.Rule
) -> tuple[Tensor, Tensor]:
    """Find the key that a noisy query was made from, and give it back: losses [seeds] and logits [seeds, batch, n]."""
    batch, n, width, d = (setting[name] for name in ("batch", "keys", "width", "dimension"))
    keys = normals(generators, batch, n, width)
    asked = keys[:, :, 0]
    query = asked + setting["noise"] * normals(generators, batch, width)
    q = (query @ weights["query"]).reshape(-1, 1, 1, d)
    k = (keys.flatten(1, 2) @ weights["key"]).reshape(-1, 1, n, d)
    output = ops.attention(q, k, keys.reshape(-1, 1, n, width), scale=rule, impl="reference").output
    losses = (output.reshape(asked.shape) - asked).square().mean((1, 2))
    logits = (scale.value(rule, d, n) or 1.0) * (q @ k.transpose(-1, -2)).reshape(*asked.shape[:2], n)
    return losses, logits


def _relative(a: Tensor, b: Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()


def _apart(run: TrainingRun, reference: TrainingRun) -> list[float]:
    """Largest relative difference of the spreads during training, for each seed."""
    pairs = [zip(a, b, strict=True) for a, b in zip(run.spread, reference.spread, strict=True)]
    return [max(step) for step in zip(*([abs(a / b - 1) for a, b in pair] for pair in pairs), strict=True)]


def _measured(
    setting: Setting,
    runs: TrainingRuns,
    start: dict[Key, float],
    later: dict[Key, list[float]],
    equal: bool,
    drifts: dict[Key, bool],
) -> tuple[Measured, ...]:
    d = setting["dimension"]
    numbers = [Measured(SAYS["start"], max(start.values()), predicted=0.0, document=0.0, holds=equal)]
    for key, values in later.items():
        form, optimiser, corrected = key
        name = SAYS["apart-corrected"] if corrected else SAYS["apart"]
        expected = 0.0 if corrected else None
        numbers.append(
            over_seeds(name.format(**_names(form, optimiser)), values, predicted=expected, holds=drifts.get(key))
        )
        if not corrected:
            ratio = (runs[key].first / runs["scale", optimiser, False].first).tolist()
            wanted = factor(FORMS[form], optimiser, "query", d)
            numbers.append(over_seeds(SAYS["first-step"].format(**_names(form, optimiser)), ratio, predicted=wanted))
    for optimiser in ("sgd", "adam"):
        for form in FORMS:
            run = runs[form, optimiser, False]
            names = _names(form, optimiser) | {"steps": setting["steps"]}
            numbers.append(over_seeds(SAYS["spread-after"].format(**names), run.spread[-1]))
            losses = [sum(tail) / 10 for tail in zip(*run.loss[-10:], strict=True)]
            numbers.append(over_seeds(SAYS["loss-after"].format(**names), losses))
    return tuple(numbers)


def _names(form: str, optimiser: str) -> dict[str, Any]:
    return {"form": SAYS[f"form-{form}"], "optimiser": SAYS[f"optimiser-{optimiser}"]}


def _figure(setting: Setting, runs: TrainingRuns, optimiser: str) -> Figure:
    every = max(1, setting["steps"] // 40)
    x = range(0, setting["steps"] + 1, every)
    lines = [
        line_over_seeds(SAYS[f"form-{form}"], x, [runs[form, optimiser, False].spread[i] for i in x]) for form in FORMS
    ]
    again = SAYS["rate-corrected"].format(form=SAYS["form-query"])
    lines.append(line_over_seeds(again, x, [runs["query", optimiser, True].spread[i] for i in x]))
    caption = SAYS["spread-caption"].format(optimiser=SAYS[f"optimiser-{optimiser}"])
    return figure(f"init-{optimiser}", caption, TRAINING_STEP, LOGIT_STD, lines)


def _sentence(setting: Setting, runs: TrainingRuns, start: dict[Key, float]) -> Text:
    spread, query = (numeral(interval(runs[form, "adam", False].spread[-1]).mean) for form in ("scale", "query"))
    apart, factor_of = numeral(max(start.values()), 1), numeral(sqrt(setting["dimension"]))
    return SAYS["outcome"].format(start=apart, steps=setting["steps"], query=query, scale=spread, root=factor_of)


CLAIM = SAYS.claim(
    id="init-instead-of-scale",
    sources=("004",),
    expected="conditional",
    experiment=experiment,
    quick={
        "dimension": 64,
        "width": 24,
        "keys": 12,
        "batch": 32,
        "noise": 0.5,
        "steps": 80,
        "seeds": 5,
        "sgd": 0.3,
        "adam": 0.003,
    },
    full={"dimension": 256, "steps": 300, "seeds": 12},
)
