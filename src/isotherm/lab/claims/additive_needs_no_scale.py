"""Additive scores need no scale, says the document. They have one: it is hidden in the initialisation of v."""

from collections.abc import Callable
from functools import partial
from math import sqrt

import numpy as np

from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.dots import normal, uniform
from isotherm.lab.figures import D_K, LOGIT_STD, figure, predicted
from isotherm.lab.interval import geometric, interval, line_over_seeds, over_seeds, power, powers
from isotherm.lab.mathml import equation, root, row, total
from isotherm.language import Text
from isotherm.ops import Additive
from isotherm.record import Erratum, Figure, Line, Measured, Step
from isotherm.stats import RowStats

FLAT = 0.1
"""A power of d_k this small is called independent of d_k: from 16 to 1024 it changes the spread by a factor of 1.5."""

VARIANCES: dict[str, Callable[[int], float]] = {
    "unit": lambda _: 1.0,
    "1/sqrt(d)": lambda d: 1 / d,
    "xavier": lambda d: 2 / (d + 1),
    "torch": lambda d: 1 / (3 * d),
}
"""Var vᵢ of each initialisation of v ∈ R^d, a layer with d inputs and one output; normal but for PyTorch's uniform one."""

NAMES = {
    "unit": Text("v with unit variance", "v 方差为 1"),
    "1/sqrt(d)": Text("v with variance 1/d", "v 方差为 1/d"),
    "xavier": Text("v by Xavier/Glorot, variance 2/(d + 1)", "v 用 Xavier/Glorot，方差 2/(d + 1)"),
    "torch": Text("v by PyTorch's Linear, variance 1/(3d)", "v 用 PyTorch 的 Linear，方差 1/(3d)"),
}


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
        condition=CONDITION,
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
    named = {**NAMES, "dot": DOT}
    last = dimensions[-1]
    exponent = Text("power of d_k in the logit spread: {name}", "logit 标准差随 d_k 的幂次：{name}")
    at_last = Text("logit spread at d_k = {d}: {name}", "d_k = {d} 时 logit 的标准差：{name}")
    open_ = Text("median gate at d_k = {d}: {name}", "d_k = {d} 时闸门的中位数：{name}")
    numbers = []
    for name, what in named.items():
        theory = round(power(dimensions, [_predicted(name, d) for d in dimensions]), 9)
        holds = None if name == "dot" else flat[name]
        document = 0.0 if holds is not None else None
        numbers += [
            over_seeds(exponent.format(name=what), exponents[name], predicted=theory, document=document, holds=holds),
            over_seeds(at_last.format(d=last, name=what), spread[name][-1], predicted=_predicted(name, last)),
            over_seeds(open_.format(d=last, name=what), gate[name], geometric),
        ]
    return tuple(numbers)


def _figure(spread: Values, dimensions: tuple[int, ...]) -> Figure:
    lines: list[Line] = []
    for name, what in {**NAMES, "dot": DOT}.items():
        lines.append(line_over_seeds(what, dimensions, spread[name]))
        expected = Text("{name}: predicted", "{name}：理论").format(name=what)
        lines.append(predicted(expected, dimensions, partial(_predicted, name)))
    caption = Text(
        "Additive scores spread over the keys of a query. Flat lines need no scale; with unit-variance v the line "
        "climbs beside the unscaled dot product, at the same power ½ of d_k.",
        "加性打分在同一查询的各个键之间的散布。水平的线无需缩放；v 方差为 1 时，曲线与未缩放的点积并排上升，同为 d_k 的"
        " ½ 次幂。",
    )
    x, y = D_K, LOGIT_STD
    return figure("additive-spread", caption, x, y, lines, log="xy")


def _sentence(exponents: dict[str, list[float]], spread: Values, dimensions: tuple[int, ...]) -> Text:
    unit, small = (interval(exponents[name]).mean for name in ("unit", "1/sqrt(d)"))
    values = {
        "small": f"{small:+.2f}",
        "unit": f"{unit:.2f}",
        "low": f"{interval(spread['1/sqrt(d)'][-1]).mean:.2f}",
        "high": f"{interval(spread['unit'][-1]).mean:.1f}",
        "d": dimensions[-1],
    }
    return Text(
        "The spread of additive scores goes like d_k^{small} when v has variance 1/d, and like d_k^{unit} when v has "
        "variance 1 ({low} against {high} nats at d_k = {d}): the scale is not absent, it sits in how v was "
        "initialised.",
        "v 的方差为 1/d 时，加性打分的散布随 d_k 的 {small} 次幂变化；v 的方差为 1 时为 {unit} 次幂（d_k = {d} 时为 "
        "{low} 与 {high} nat）：缩放并非不需要，而是藏在 v 的初始化里。",
    ).format(**values)


DOT = Text("unscaled dot product ⟨W₁h, W₂s⟩", "未缩放的点积 ⟨W₁h, W₂s⟩")
CONDITION = Text(
    "Var(vᵢ) shrinks like 1/d_k (1/d, Xavier, PyTorch's default, or v = 0 as in Bahdanau et al. 2015), and only at "
    "initialisation: training may make v as large as it likes. With Var(vᵢ) = 1 the spread grows like √d_k, as for "
    "q·k.",
    "Var(vᵢ) 按 1/d_k 缩小（1/d、Xavier、PyTorch 默认值，或 Bahdanau 等 2015 的 v = 0），且仅限初始化时：训练可以把 v "
    "变得任意大。若 Var(vᵢ) = 1，散布与 q·k 一样随 √d_k 增长。",
)
STEPS = (
    Step(
        Text(
            "For one query the hidden unit i sees a fixed number aᵢ = (W₁h)ᵢ and, from key to key, bᵢ = (W₂s)ᵢ.",
            "对一个查询，隐藏单元 i 看到固定的 aᵢ = (W₁h)ᵢ，以及随键变化的 bᵢ = (W₂s)ᵢ。",
        ),
        equation("score", row(total("i = 1", "d"), "v_i tanh ( a_i + b_i )")),
    ),
    Step(
        Text(
            "Over the keys the units vary independently, so their variances add up, each weighted by vᵢ².",
            "各单元随键独立变化，方差按 vᵢ² 加权相加。",
        ),
        equation("Var ( score )", row(total("i = 1", "d"), "v_i^2 Var_b ( tanh ( a_i + b_i ) )")),
    ),
    Step(
        Text(
            "With W of variance 1/d, a and b are standard normal and c = 0.533 by quadrature. The dimension appears "
            "only through d·Var(v).",
            "W 的方差为 1/d 时，a、b 服从标准正态，数值积分得 c = 0.533。维度只通过 d·Var(v) 出现。",
        ),
        equation("Var ( score )", "c^2 · d · Var ( v )"),
    ),
    Step(
        Text(
            "Var(v) = 1/d cancels it; Var(v) = 1 leaves √d, just as for the dot product, where nothing plays the part "
            "of v.",
            "Var(v) = 1/d 恰好抵消；Var(v) = 1 则留下 √d，与点积一样，只是点积里没有 v 这个角色。",
        ),
        equation("σ", row("c", root("d · Var ( v )"))),
    ),
)
ERRATA = (
    Erratum(
        "000",
        Text(
            "tanh lies in [−1, 1], so the distribution of the whole additive score has nothing to do with d_k.",
            "tanh 分布在 [-1, 1]，所以加性打分的整体分布与 d_k 没有关系。",
        ),
        Text(
            "One hidden unit lies in [−1, 1]; the score is a sum of d_k of them weighted by v and lies in [−‖v‖₁, "
            "‖v‖₁]. It is independent of d_k only if Var(vᵢ) ∝ 1/d_k.",
            "落在 [-1, 1] 的是单个隐藏单元；打分是 d_k 个单元按 v 加权的和，落在 [−‖v‖₁, ‖v‖₁]。只有 Var(vᵢ) ∝ 1/d_k 时"
            "才与 d_k 无关。",
        ),
    ),
)

CLAIM = Claim(
    id="additive-needs-no-scale",
    title=Text("Additive attention needs no scale", "加性注意力不需要缩放"),
    question=Text("Why does nobody divide additive attention by √d?", "为什么加性注意力不用除以 √d？"),
    statement=Text(
        "In the additive score ⟨v, tanh(W₁h + W₂s)⟩ the right side is a tanh, within [−1, 1]; its distribution has "
        "nothing to do with d_k, so no scale is needed.",
        "加性打分 ⟨v, tanh(W₁h + W₂s)⟩ 的右侧是 tanh，分布在 [-1, 1]，整体分布与 d_k 没有关系，因此不需要缩放。",
    ),
    sources=("000",),
    hypothesis=Text(
        "The spread of the scores over the keys of a query goes like d_k^a with |a| < 0.1 (95 % interval over seeds), "
        "for every usual initialisation of v: variance 1, 1/d, Xavier, PyTorch's default.",
        "同一查询各键打分的散布随 d_k^a 变化，对 v 的每种常用初始化（方差 1、1/d、Xavier、PyTorch 默认）都有 |a| < 0.1"
        "（按随机种子的 95 % 区间）。",
    ),
    expected="conditional",
    experiment=experiment,
    quick={"dimensions": (16, 32, 64, 128, 256, 512, 1024), "seeds": 16, "queries": 4, "keys": 128},
    full={"dimensions": (16, 32, 64, 128, 256, 512, 1024, 2048), "seeds": 32, "queries": 16, "keys": 256},
    steps=STEPS,
    errata=ERRATA,
)
