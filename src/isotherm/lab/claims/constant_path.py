"""From position 1 to position 1000: how many steps lie between, how much work, and how much gradient survives."""

from collections.abc import Callable
from math import log10, sqrt

import torch
from torch import Tensor

from isotherm import ops, scale
from isotherm.lab import recurrence
from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.dots import normals
from isotherm.lab.figures import IN_SEQUENCE, POSITIONS, curve, figure
from isotherm.lab.interval import interval, line_over_seeds, over_seeds, slope
from isotherm.lab.mathml import equation, frac, row, sub, sup
from isotherm.lab.numerals import numeral
from isotherm.lab.tally import Tally, depth
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Measured, Step

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
        condition=CONDITION,
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
    cells = Text(
        "cells one after another between positions 1 and {n}: {name}", "位置 1 与 {n} 之间依次经过的单元数：{name}"
    )
    blocks = Text("attention layers between positions 1 and {n}", "位置 1 与 {n} 之间的注意力层数").format(n=n)
    longest = steps["attention"][-1] / steps["attention"][0]
    numbers = [Measured(blocks, longest, predicted=1, document=1, holds=counted[0])]
    for name in ("tanh", "gru"):
        value = steps[name][-1] / each[name]
        title = cells.format(n=n, name=NAMES[name])
        numbers.append(Measured(title, value, predicted=n, document=n, holds=counted[1]))
    survives = Text("log₁₀ of the gradient from position {n} to 1: {name}", "位置 {n} 到 1 的梯度的 log₁₀：{name}")
    numbers += [over_seeds(survives.format(n=n, name=NAMES[name]), gradient[name][-1]) for name in gradient]
    beyond = Text("powers of ten by which attention's gradient is larger: {name}", "注意力的梯度大多少个数量级：{name}")
    numbers += [over_seeds(beyond.format(name=NAMES[name]), ahead[name], holds=lost[name]) for name in NETS]
    decades = [log10(length) for length in lengths]
    fall = [slope(decades, seed) for seed in zip(*gradient["attention"], strict=True)]
    falls = Text("power of n in attention's gradient", "注意力的梯度随 n 的幂次")
    numbers.append(over_seeds(falls, fall, predicted=-1.0))
    work = Text("multiply-adds of the layer over {n} positions: {name}", "整层在 {n} 个位置上的乘加次数：{name}")
    for name, count in zip(("attention", "gru"), _work(setting, n), strict=True):
        numbers.append(Measured(work.format(n=n, name=NAMES[name]), count))
    return tuple(numbers)


def _gradient_figure(lengths: tuple[int, ...], gradient: dict[str, list[list[float]]]) -> Figure:
    lines = (line_over_seeds(NAMES[name], lengths, gradient[name]) for name in gradient)
    caption = Text(
        "What a change at position 1 still does at position n. Attention dilutes it among n keys, like 1/n; nets with "
        "ordinary gates lose it exponentially; a GRU whose gates start out holding on keeps almost as much as "
        "attention.",
        "位置 1 的变化到位置 n 还剩多少。注意力把它按 1/n 分摊给 n 个键；普通门控的网络按指数丢失；门一开始就偏向保留的"
        " GRU 几乎与注意力一样多。",
    )
    y = Text("log₁₀ of the gradient (1)", "梯度的 log₁₀（1）")
    return figure("path-gradient", caption, POSITIONS, y, lines, log="x")


def _steps_figure(lengths: tuple[int, ...], steps: dict[str, list[int]]) -> Figure:
    lines = (curve(NAMES[name], lengths, map(float, steps[name])) for name in ("attention", "tanh", "gru"))
    caption = Text(
        "Operations on the longest path from input 1 to output n, counted in the autograd graph: level for attention, "
        "in proportion to n for recurrent nets.",
        "从输入 1 到输出 n 的最长路径上的运算数（在自动求导图中数得）：注意力为常数，循环网络与 n 成正比。",
    )
    return figure("path-steps", caption, POSITIONS, IN_SEQUENCE, lines, log="xy")


def _sentence(n: int, gradient: dict[str, list[list[float]]]) -> Text:
    mean = {name: numeral(10 ** interval(rows[-1]).mean, 2) for name, rows in gradient.items()}
    return Text(
        "Between positions 1 and {n} lie one attention layer or {n} recurrent cells; a gradient of {attention} "
        "survives in attention, {gru} in a GRU as initialised by default, but {keep} in a GRU whose gates start out "
        "holding on.",
        "位置 1 与 {n} 之间隔着一层注意力，或 {n} 个循环单元；注意力中存留的梯度为 {attention}，默认初始化的 GRU 为 "
        "{gru}，而门偏向保留的 GRU 为 {keep}。",
    ).format(n=n, attention=mean["attention"], gru=mean["gru"], keep=mean["gru-keep"])


NAMES = {
    "attention": Text("attention", "注意力"),
    "tanh": Text("tanh net, default weights", "tanh 网络，默认权重"),
    "gru": Text("GRU, default weights", "GRU，默认权重"),
    "gru-keep": Text("GRU, gates biased to hold on", "GRU，门偏向保留"),
}
CONDITION = Text(
    "The number of steps holds for every n and every net. That the gradient is lost on the way holds for nets as "
    "initialised by default; a GRU whose update gates are biased by up to ln n (Tallec & Ollivier 2018) loses about as "
    "little as attention, whose gradient itself falls like 1/n.",
    "步数的说法对任何 n、任何网络都成立。「梯度在途中丢失」只对默认初始化的网络成立；更新门带至多 ln n 偏置的 GRU"
    "（Tallec 与 Ollivier 2018）丢失得和注意力差不多少，而注意力的梯度本身也按 1/n 下降。",
)
STEPS = (
    Step(
        Text("Attention reaches every position by one weight.", "注意力通过一个权重到达每个位置。"),
        equation("y_n", row("∑ p_j v_j")),
    ),
    Step(
        Text("So the gradient has one factor p₁, about 1/n.", "所以梯度只含一个因子 p₁，约为 1/n。"),
        equation(frac("∂ y_n", "∂ x_1"), row("p_1 · (", "…", ")"), sign="∼"),
    ),
    Step(
        Text(
            "A recurrent state is handed on n − 1 times, and the gradient is a product of n − 1 Jacobians.",
            "循环网络的状态要传递 n − 1 次，梯度是 n − 1 个雅可比矩阵之积。",
        ),
        equation(frac("∂ h_n", "∂ x_1"), row(sub("J", "n"), "⋯", sub("J", "2"), frac("∂ h_1", "∂ x_1"))),
    ),
    Step(
        Text(
            "With update gates z the product goes like zⁿ: lost for z near ½, kept for z = 1 − 1/n.",
            "更新门为 z 时，乘积约为 zⁿ：z 接近 ½ 时丢失，z = 1 − 1/n 时保留。",
        ),
        equation(sup(row("( 1 −", frac("1", "n"), ")"), "n"), sup("e", "−1"), sign="→"),
    ),
)
ERRATA = (
    Erratum(
        "002",
        Text(
            "Between positions 1 and 1000 an RNN needs 1000 operations and a Transformer 1.",
            "计算位置 1 和位置 1000 的依赖，RNN 的操作数量为 1000，Transformer 的操作次数为 1。",
        ),
        Text(
            "1000 and 1 are the lengths of the path (sequential operations). The amount of work is another matter: per "
            "layer attention does about n²·d, a recurrent net n·d², so at n = 1000 and d = 32 attention does more.",
            "1000 和 1 是路径长度（依次执行的操作数）。计算量则是另一回事：每层注意力约为 n²·d，循环网络为 n·d²，因此 "
            "n = 1000、d = 32 时注意力反而更多。",
        ),
    ),
)
CLAIM = Claim(
    id="constant-path",
    title=Text("Attention links distant positions in one step", "注意力一步连接相距很远的位置"),
    question=Text("How does word 1000 hear of word 1?", "第 1000 个词怎样得知第 1 个词？"),
    statement=Text(
        "To relate positions 1 and 1000 an RNN needs 1000 operations, passing information on 1000 times; "
        "self-attention relates all positions at once, in one. Information may be lost on the way, so more operations "
        "are worse.",
        "计算位置 1 和位置 1000 的 token 之间的依赖，RNN 的操作数量为 1000（需要递归传递 1000 次），而自注意力一次直接"
        "计算所有位置之间的依赖，操作次数为 1。传递过程中可能有信息损失，操作数量越多越不利。",
    ),
    sources=("002",),
    hypothesis=Text(
        "The longest path from input 1 to output n is the same for every n in attention and n cells in a recurrent "
        "net; and at n = 1000 the gradient that survives in attention is at least 1000 times that in each recurrent "
        "net (95 % interval).",
        "从输入 1 到输出 n 的最长路径，在注意力中对每个 n 都相同，在循环网络中为 n 个单元；且 n = 1000 时，注意力中存留"
        "的梯度至少是每种循环网络的 1000 倍（95 % 区间）。",
    ),
    expected="conditional",
    experiment=experiment,
    quick={"lengths": (8, 16, 32, 64, 125, 250, 500, 1000), "dimension": 32, "seeds": 8},
    full={"dimension": 64, "seeds": 16},
    steps=STEPS,
    errata=ERRATA,
)
