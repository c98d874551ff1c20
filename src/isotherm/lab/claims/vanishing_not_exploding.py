"""Vanishing or exploding? The gradient is followed from a loss to q, k and their weights, from a tiny scale to a huge one."""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from isotherm import scale, theory
from isotherm import softmax as forms
from isotherm.lab.claim import Claim, Result, Setting, all_hold, at_most, conclude
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
from isotherm.lab.mathml import equation, frac, row, sub, total
from isotherm.lab.numerals import numeral
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Line, Measured, Step

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
        at_most(THROUGH, through, 0.5 + 1e-12, predicted=0.5),
        quantile_of(MEDIAN.format(c=1), sweep[1.0].logits, 0.5),
        quantile_of(MEDIAN.format(c=1000), sweep[factors[-1]].logits, 0.5, predicted=0.0, holds=vanished),
        *(
            over_seeds(WEIGHT.format(d=d), ratios, document=1.0, holds=interval(ratios).mean <= GROWTH)
            for d, ratios in growth.items()
        ),
        *(Measured(TENTH.format(d=d), ratio) for d, ratio in tenth.items()),
        *_powers(sweep),
        Measured(OPTIMUM["p10"], _best(sweep, 0.1), predicted=theory.freezing_threshold(setting["n"])),
        Measured(OPTIMUM["p50"], _best(sweep, 0.5)),
        Measured(EVEN, quantile(sweep[1.0].q, 0.9)[0] / quantile(sweep[1.0].q, 0.1)[0]),
    )
    at_logits = all_hold((numbers[0], numbers[2]))
    d = max(growth)
    less = numeral(quantile(unscaled[d][0].q, 0.1)[0] / quantile(unscaled[d][1].q, 0.1)[0], 2)
    more = numeral(interval(growth[d]).mean, 2)
    return conclude(
        at_logits and tame,
        SENTENCE.format(through=numeral(through, 2), d=d, growth=more, tenth=less),
        numbers,
        (_row_figure(sweep), _weight_figure(sweep), _logit_figure(setting, sweep)),
        under=at_logits,
        condition=CONDITION,
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
        numbers.append(over_seeds(POWER[name], powers(factors, sizes.tolist()), predicted=expected))
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
        line_over_seeds(Text("root mean square", "均方根"), factors, squares),
        *(_positive(quantile_line(name, factors, rows, q)) for q, name in QUANTILES.items()),
    )
    caption = Text(
        "The gradient that reaches one query, from a scale far too small to one far too large. On the left everything "
        "shrinks with the scale itself. On the right the rows part: the 10th percentile dies, then the median, the "
        "mean stays, and the root mean square goes on growing, carried by ever fewer rows.",
        "到达单个查询的梯度，从远远过小的缩放到远远过大的缩放。左侧一切随缩放本身缩小。右侧各行分道扬镳：先是 10 % 分"
        "位消亡，再是中位数，均值不变，均方根却由越来越少的行撑着继续增长。",
    )
    y_label = Text("‖∂L/∂q‖ of a row", "一行的 ‖∂L/∂q‖")
    return figure("gradient-to-q", caption, FACTOR, y_label, lines, log="xy")


def _weight_figure(sweep: Sweep) -> Figure:
    factors = tuple(sweep)
    lines = tuple(
        line_over_seeds(name, factors, [getattr(sweep[factor], which).tolist() for factor in factors])
        for which, name in (("w_q", Text("W_q", "W_q")), ("w_k", Text("W_k", "W_k")), ("w_v", Text("W_v", "W_v")))
    )
    caption = Text(
        "The gradient of the weights, which adds up all rows. It does not vanish as the scale grows: for W_q and W_k "
        "it rises, over and beyond the point where most rows have nothing left to give. W_v is hardly concerned.",
        "权重的梯度是所有行之和。它并不随缩放增大而消失：W_q 与 W_k 的梯度一路上升，越过了大多数行已无梯度可给的那一"
        "点。W_v 几乎不受影响。",
    )
    return figure("gradient-to-weights", caption, FACTOR, Text("‖∂L/∂W‖", "‖∂L/∂W‖"), lines, log="xy")


def _logit_figure(setting: Setting, sweep: Sweep) -> Figure:
    factors = tuple(sweep)
    rows = [sweep[factor].logits for factor in factors]
    n, d = setting["n"], setting["d"]
    gate = [theory.gaussian_attention(n, d, factor / sqrt(d)).jacobian_trace for factor in factors]
    lines = (
        line_over_seeds(MEAN, factors, [found.mean(-1).tolist() for found in rows]),
        _positive(quantile_line(QUANTILES[0.5], factors, rows, 0.5)),
        predicted(Text("expected gate 1 − Σp²", "闸门 1 − Σp² 的期望"), factors, gate),
    )
    caption = Text(
        "The gradient at the logits, before it is multiplied by the scale. Here the document is right: it is bounded "
        "at every scale, and beyond σ = √(2 ln n) it falls, the mean like 1/scale with the gate, the median far "
        "faster.",
        "logits 处的梯度，尚未乘以缩放。在这里文档是对的：任何缩放下它都有界，超过 σ = √(2 ln n) 后下降，均值随闸门按 "
        "1/缩放 下降，中位数快得多。",
    )
    y_label = Text("‖∂L/∂s‖ of a row; gate", "一行的 ‖∂L/∂s‖；闸门")
    return figure("gradient-at-logits", caption, FACTOR, y_label, lines, log="xy")


def _positive(line: Line) -> Line:
    """The same curve without what a logarithmic axis cannot show; below 10⁻³⁰ nothing is."""

    def shown(series: tuple[float | None, ...] | None) -> tuple[float | None, ...]:
        return tuple(y if y is not None and y > 1e-30 else None for y in series or ())

    return Line(line.name, line.x, shown(line.y), shown(line.low), shown(line.high))


FACTOR = Text("scale, as a multiple of 1/√d", "缩放（1/√d 的倍数）")
THROUGH = Text(
    "largest ‖∂L/∂s‖/‖∂L/∂p‖ of all rows and scales (never above ½)",
    "所有行、所有缩放中 ‖∂L/∂s‖/‖∂L/∂p‖ 的最大值（不超过 ½）",
)
MEDIAN = Text("median ‖∂L/∂s‖ of a row, scale {c}/√d", "一行 ‖∂L/∂s‖ 的中位数，缩放 {c}/√d")
WEIGHT = Text("‖∂L/∂W_q‖ without a scale over with 1/√d, d = {d}", "不缩放与用 1/√d 时 ‖∂L/∂W_q‖ 之比，d = {d}")
TENTH = Text(
    "10th percentile of ‖∂L/∂q‖ without a scale over with 1/√d, d = {d}",
    "不缩放与用 1/√d 时 ‖∂L/∂q‖ 的 10 % 分位之比，d = {d}",
)
POWER = {
    "small": Text("power of the scale in the mean ‖∂L/∂q‖, scale ≤ 0.1/√d", "平均 ‖∂L/∂q‖ 随缩放的幂次，缩放 ≤ 0.1/√d"),
    "mean": Text(
        "power of the scale in the mean ‖∂L/∂q‖, scale from 30/√d to 316/√d",
        "平均 ‖∂L/∂q‖ 随缩放的幂次，缩放从 30/√d 到 316/√d",
    ),
    "rms": Text(
        "power of the scale in the root mean square ‖∂L/∂q‖, scale from 30/√d to 316/√d",
        "‖∂L/∂q‖ 均方根随缩放的幂次，缩放从 30/√d 到 316/√d",
    ),
}
OPTIMUM = {
    "p10": Text(
        "scale × √d at which the 10th percentile of ‖∂L/∂q‖ is largest (prediction: √(2 ln n))",
        "使 ‖∂L/∂q‖ 的 10 % 分位最大的 缩放×√d（预测：√(2 ln n)）",
    ),
    "p50": Text("scale × √d at which the median ‖∂L/∂q‖ is largest", "使 ‖∂L/∂q‖ 的中位数最大的 缩放×√d"),
}
EVEN = Text(
    "90th over 10th percentile of ‖∂L/∂q‖ at 1/√d: how evenly rows learn",
    "1/√d 下 ‖∂L/∂q‖ 的 90 % 与 10 % 分位之比：各行学得多均匀",
)
SENTENCE = Text(
    "Through the softmax no gradient grows (at most {through} of it passes); but at d = {d} without 1/√d the gradient "
    "of W_q is {growth} times larger, while the 10th percentile of rows gets {tenth} times less.",
    "通过 softmax 时没有梯度会变大（至多通过 {through}）；但 d = {d} 且不除以 √d 时，W_q 的梯度变为 {growth} 倍，而各"
    "行的 10 % 分位降为 1/{tenth}。",
)
CONDITION = Text(
    "At the logits it holds: ‖∂L/∂s‖ ≤ ½‖∂L/∂p‖ at every scale, and its median vanishes as the scale grows. Further "
    "back it does not: ∂L/∂q carries the scale as a factor. As the scale goes to 0 the gradient to q vanishes in "
    "proportion; as it goes to ∞ most rows vanish while a few, with tied leaders, grow in proportion, so that the "
    "mean stays and the root mean square, and with it W_q and W_k, grow like √scale. Both documents are half right.",
    "在 logits 处成立：任何缩放下 ‖∂L/∂s‖ ≤ ½‖∂L/∂p‖，且其中位数随缩放增大而消失。再往回就不成立了：∂L/∂q 带着缩放这个"
    "因子。缩放趋于 0 时，到 q 的梯度成比例地消失；缩放趋于 ∞ 时，多数行消失，少数前两名几乎并列的行却成比例增大，于是"
    "均值不变，而均方根（以及 W_q、W_k 的梯度）按 √缩放 增长。两种说法各对一半。",
)
STEPS = (
    Step(
        Text(
            "Through the softmax the gradient is multiplied by the Jacobian, whose norm is at most ½.",
            "通过 softmax 时，梯度乘以雅可比矩阵，其范数至多 ½。",
        ),
        row("‖", frac("∂ L", "∂ s"), "‖ ≤", frac("1", "2"), "‖", frac("∂ L", "∂ p"), "‖"),
    ),
    Step(
        Text(
            "From the logits s = c·q·k to the query the chain rule adds the scale c itself.",
            "从 logits s = c·q·k 到查询，链式法则还要乘上缩放 c 本身。",
        ),
        equation(frac("∂ L", "∂ q"), row("c", total("j"), frac("∂ L", row("∂", sub("s", "j"))), "k_j")),
    ),
    Step(
        Text(
            "As c → 0 the softmax is uniform and the gradient proportional to c. As c → ∞ a row passes a gradient "
            "only if its two best keys are within 1/c of each other; that happens to a share 1/c of rows, each with a "
            "gradient of order c.",
            "c → 0 时 softmax 均匀，梯度与 c 成正比。c → ∞ 时，只有前两名的键相差在 1/c 以内的行才传梯度；这样的行占 "
            "1/c，每行梯度为 c 的量级。",
        ),
        row("E ‖ ∂ L / ∂ q ‖ ∼ c · c^−1 = 1 , E", "‖ ∂ L / ∂ q ‖^2 ∼ c^2 · c^−1 = c"),
    ),
    Step(
        Text(
            "So «vanishing» describes the typical row and «exploding» the sum over rows. What 1/√d gives is evenness: "
            "all rows learn, and at about the same rate.",
            "所以「消失」说的是典型的行，「爆炸」说的是各行之和。1/√d 带来的是均匀：所有行都在学，而且速度相近。",
        ),
    ),
)
ERRATA = (
    Erratum(
        "004",
        Text(
            "What really prevents exploding gradients is the softmax; leaving out √d makes the gradient small and it "
            "vanishes.",
            "真正解决梯度爆炸问题的应该是 softmax；丢弃 √d 会使梯度值变小，引发梯度消失。",
        ),
        Text(
            "Right up to the logits. Behind them the scale multiplies the gradient again: without 1/√d most rows get "
            "almost nothing, and the few that do get so much that W_q's gradient grows. The textbook it argues with "
            "describes that other half.",
            "到 logits 为止是对的。再往后，缩放又乘到梯度上：不除以 √d 时，多数行几乎得不到梯度，少数行得到的却多到使 "
            "W_q 的梯度变大。它所反驳的那本书说的正是另一半。",
        ),
    ),
)

CLAIM = Claim(
    id="vanishing-not-exploding",
    title=Text("1/√d prevents vanishing gradients, not exploding ones", "1/√d 防的是梯度消失，不是梯度爆炸"),
    question=Text(
        "Is 1/√d there against vanishing gradients or against exploding ones?",
        "除以 √d 究竟是防梯度消失，还是防梯度爆炸？",
    ),
    statement=Text(
        "√d serves to prevent vanishing gradients, not exploding ones; it is softmax itself that rules out explosion.",
        "√d 的作用应该是防止梯度消失，而不是梯度爆炸；真正解决梯度爆炸问题的是 softmax 函数本身。",
    ),
    sources=("004",),
    hypothesis=Text(
        "(a) ‖∂L/∂s‖ ≤ ½‖∂L/∂p‖ in every row at every scale; (b) the median ‖∂L/∂s‖ at 1000/√d is below a thousandth "
        "of its peak; (c) nothing explodes without the scale: ‖∂L/∂W_q‖ is on average at most twice that with 1/√d, "
        "at every d.",
        "(a) 每行、每个缩放都有 ‖∂L/∂s‖ ≤ ½‖∂L/∂p‖；(b) 缩放为 1000/√d 时 ‖∂L/∂s‖ 的中位数低于其峰值的千分之一；(c) 不"
        "缩放也没有爆炸：对每个 d，‖∂L/∂W_q‖ 平均至多为用 1/√d 时的两倍。",
    ),
    expected="conditional",
    experiment=experiment,
    quick={"n": 64, "d": 64, "width": 64, "layers": 48, "per_decade": 4, "dimensions": (16, 64, 256)},
    full={"n": 128, "layers": 64, "per_decade": 8, "dimensions": (16, 64, 256, 1024)},
    steps=STEPS,
    errata=ERRATA,
)
