"""A smaller W_q instead of 1/√d: the same model at the first step, another one at the second."""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from isotherm import ops, scale
from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.dots import normals
from isotherm.lab.figures import LOGIT_STD, TRAINING_STEP, figure
from isotherm.lab.interval import interval, line_over_seeds, over_seeds
from isotherm.lab.mathml import equation, frac, root, row
from isotherm.lab.numerals import numeral
from isotherm.language import Text
from isotherm.record import Figure, Measured, Step

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
    """What one training did, each [steps + 1][seeds]: logit spread and loss; the logits at the start; the first step taken."""

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
        condition=CONDITION.format(d=d, root=numeral(sqrt(d))),
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
    """Largest relative difference of the spreads along the way, for each seed."""
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
    numbers = [Measured(START, max(start.values()), predicted=0.0, document=0.0, holds=equal)]
    for key, values in later.items():
        form, optimiser, corrected = key
        name = (CORRECTED if corrected else APART).format(form=NAMES[form], optimiser=NAMES[optimiser])
        expected = 0.0 if corrected else None
        numbers.append(over_seeds(name, values, predicted=expected, holds=drifts.get(key)))
        if not corrected:
            ratio = (runs[key].first / runs["scale", optimiser, False].first).tolist()
            wanted = factor(FORMS[form], optimiser, "query", d)
            name = STEP.format(form=NAMES[form], optimiser=NAMES[optimiser])
            numbers.append(over_seeds(name, ratio, predicted=wanted))
    for optimiser in ("sgd", "adam"):
        for form in FORMS:
            run = runs[form, optimiser, False]
            names = {"form": NAMES[form], "optimiser": NAMES[optimiser], "steps": setting["steps"]}
            numbers.append(over_seeds(END.format(**names), run.spread[-1]))
            losses = [sum(tail) / 10 for tail in zip(*run.loss[-10:], strict=True)]
            numbers.append(over_seeds(LOSS.format(**names), losses))
    return tuple(numbers)


def _figure(setting: Setting, runs: TrainingRuns, optimiser: str) -> Figure:
    every = max(1, setting["steps"] // 40)
    x = range(0, setting["steps"] + 1, every)
    lines = [line_over_seeds(NAMES[form], x, [runs[form, optimiser, False].spread[i] for i in x]) for form in FORMS]
    again = Text("{form}, learning rate corrected", "{form}，学习率已修正").format(form=NAMES["query"])
    lines.append(line_over_seeds(again, x, [runs["query", optimiser, True].spread[i] for i in x]))
    caption = Text(
        "Logit spread under {optimiser}. All start together; with the same learning rate the smaller initialisation "
        "moves away, with the corrected one it lies on the scaled model's curve.",
        "{optimiser} 下 logit 的标准差。起点相同；学习率相同时，缩小初始化的模型渐行渐远；修正学习率后，则与带缩放的模"
        "型重合。",
    ).format(optimiser=NAMES[optimiser])
    y = LOGIT_STD
    return figure(f"init-{optimiser}", caption, TRAINING_STEP, y, lines)


def _sentence(setting: Setting, runs: TrainingRuns, start: dict[Key, float]) -> Text:
    spread, query = (numeral(interval(runs[form, "adam", False].spread[-1]).mean) for form in ("scale", "query"))
    apart, factor_of = numeral(max(start.values()), 1), numeral(sqrt(setting["dimension"]))
    return Text(
        "At the start a W_q smaller by √d gives the same logits (to {start}); after {steps} steps of Adam at the same "
        "learning rate they spread {query} instead of {scale}, because each step then counts √d = {root} times as "
        "much.",
        "一开始，把 W_q 缩小 √d 倍得到同样的 logit（误差 {start}）；但用同样的学习率训练 {steps} 步 Adam 之后，标准差"
        "为 {query} 而不是 {scale}，因为此时每一步的分量是原来的 √d = {root} 倍。",
    ).format(start=apart, steps=setting["steps"], query=query, scale=spread, root=factor_of)


NAMES = {
    "scale": Text("1/√d", "1/√d"),
    "query": Text("W_q smaller by √d, no scale (T5)", "W_q 缩小 √d 倍，无缩放（T5）"),
    "both": Text("W_q and W_k smaller by d^¼, no scale", "W_q、W_k 各缩小 d^¼ 倍，无缩放"),
    "sgd": Text("gradient descent", "梯度下降"),
    "adam": Text("Adam", "Adam 优化器"),
}
START = Text("largest relative difference of the logits at the start", "开始时 logit 的最大相对差")
APART = Text(
    "largest relative difference of the logit spread in training, {optimiser}: {form}",
    "训练中 logit 标准差的最大相对差，{optimiser}：{form}",
)
CORRECTED = Text(
    "the same with the learning rate corrected, {optimiser}: {form}", "修正学习率后的同一差值，{optimiser}：{form}"
)
STEP = Text(
    "first step of W_q, in units of the scaled model's, {optimiser}: {form}",
    "W_q 的第一步（以带缩放模型的第一步为单位），{optimiser}：{form}",
)
END = Text(
    "logit spread after {steps} steps, {optimiser}: {form} (nats)",
    "{steps} 步后 logit 的标准差，{optimiser}：{form}（nat）",
)
LOSS = Text("loss after {steps} steps, {optimiser}: {form}", "{steps} 步后的损失，{optimiser}：{form}")
CONDITION = Text(
    "At initialisation; and afterwards only if the learning rate of the smaller weights is divided by what their "
    "smallness is worth: d = {d} for W_q under gradient descent, √d = {root} under Adam (√d and d^¼ each when both are "
    "made smaller).",
    "在初始化时成立；此后只有把缩小了的权重的学习率相应除小才成立：对 W_q，梯度下降除以 d = {d}，Adam 除以 √d = "
    "{root}（若两者都缩小，则各为 √d 与 d^¼）。",
)
STEPS = (
    Step(
        Text("Put the scale into the weight.", "把缩放并入权重。"),
        equation(row("W_q^′"), frac("W_q", root("d"))),
    ),
    Step(
        Text(
            "The logits are the same, so is the loss, but the gradient is √d times as large.",
            "logit 相同，损失相同，但梯度是 √d 倍。",
        ),
        equation(frac("∂ L", "∂ W_q^′"), row(root("d"), frac("∂ L", "∂ W_q"))),
    ),
    Step(
        Text(
            "One step of gradient descent, back in units of W_q, is d times as large.",
            "换回 W_q 的单位，梯度下降的一步是 d 倍。",
        ),
        equation(row(root("d"), "Δ W_q^′"), row("d · Δ W_q")),
    ),
    Step(
        Text(
            "Adam divides by the gradient's own size, so one √d remains.", "Adam 除以梯度自身的大小，因此只剩一个 √d。"
        ),
        equation(row(root("d"), "Δ W_q^′"), row(root("d"), "Δ W_q")),
    ),
)
CLAIM = Claim(
    id="init-instead-of-scale",
    title=Text("A smaller initialisation replaces 1/√d", "更小的初始化可以代替 1/√d"),
    question=Text("T5 has no 1/√d at all. How does it get away with that?", "T5 根本没有 1/√d，它为什么没事？"),
    statement=Text(
        "Instead of dividing by √d_k one may initialise W_q (or W_q and W_k) correspondingly smaller, as T5 does: at "
        "the start the two are the same (Su 8620, which document 004 refers to).",
        "不除以 √d_k，也可以把 W_q（或 W_q、W_k）相应地初始化得更小，T5 就是这样做的：在初始阶段两者等价（文档 004 所引"
        "的苏剑林 8620）。",
    ),
    sources=("004",),
    hypothesis=Text(
        "The logits agree to 10⁻⁹ at the start, and at the same learning rate their spread stays within 10 % of the "
        "scaled model's for the whole training, under gradient descent and under Adam (95 % interval over seeds).",
        "开始时 logit 相差不到 10⁻⁹；且在同样的学习率下，无论梯度下降还是 Adam，整个训练过程中其标准差与带缩放的模型相"
        "差不超过 10 %（按种子的 95 % 区间）。",
    ),
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
    steps=STEPS,
)
