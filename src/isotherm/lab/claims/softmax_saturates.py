"""Large inputs make softmax an arg-max, say the documents. Large differences do; large inputs alone change nothing."""

import torch
from torch import Tensor

from isotherm import softmax as forms
from isotherm import theory
from isotherm.lab.claim import Claim, Result, Setting, all_hold, conclude, none_of
from isotherm.lab.dots import normal
from isotherm.lab.figures import SHARE_OF_DRAWS, figure, predicted
from isotherm.lab.interval import groups, line_over_seeds, over_seeds, share, share_line, share_of
from isotherm.lab.mathml import equation, frac, row, sup, total
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Step

ALMOST_ALL = 0.99
"""The softmax counts as saturated when its largest probability exceeds this."""


def experiment(setting: Setting) -> Result:
    """Multiply normal inputs by growing factors, shift them by a constant, and make the two largest equal."""
    factors = setting["factors"]
    tops, gates, broken = {}, {}, 0
    for n in setting["sizes"]:
        x = normal((setting["draws"], n), setting.generator(n))
        gap = x.topk(2, -1).values.diff(dim=-1).neg().squeeze(-1)
        last = torch.zeros(len(x), dtype=torch.float64)
        for factor in factors:
            y = forms.softmax(factor * x)
            top, rest = y.amax(-1), _others(y)
            kept = (rest <= (n - 1) * (-factor * gap).exp() * (1 + 1e-9)) & (top >= last - 1e-12)
            broken += int((~kept).sum())
            last = top
            tops[n, factor], gates[n, factor] = top, forms.jacobian_trace(y)
        setting.progress(len(tops) / (len(setting["sizes"]) * len(factors)))
    shown = setting["sizes"][1]
    x = normal((setting["draws"], shown), setting.generator(shown))
    shifted, tied = _top(x + setting["shift"]), _top(factors[-1] * _tie(x))
    saturated = tops[shown, factors[-1]] > ALMOST_ALL
    numbers = (
        none_of(BROKEN, broken),
        share_of(SHARE.format(n=shown, t=factors[-1]), saturated, holds=share(saturated)[1] > 0.9),
        over_seeds(PLAIN.format(n=shown), groups(_top(x))),
        over_seeds(
            SHIFTED.format(c=setting["shift"], n=shown), groups(shifted), holds=bool(shifted.mean() > ALMOST_ALL)
        ),
        over_seeds(
            TIED.format(n=shown, t=factors[-1]), groups(tied), predicted=0.5, holds=bool(tied.mean() > ALMOST_ALL)
        ),
        *(
            over_seeds(
                GATE.format(n=n, t=factor),
                groups(gates[n, factor]),
                predicted=theory.gaussian_row(n, factor).jacobian_trace,
            )
            for n, factor in ((shown, factors[len(factors) // 2]), (shown, factors[-1]))
        ),
    )
    unmoved = abs(float(shifted.mean() - _top(x).mean())) < 1e-9
    multiplied = unmoved and all_hold(numbers[:2])
    as_written = multiplied and all_hold(numbers)
    t, kept, top = factors[-1], percent(share(saturated)[0]), numeral(float(shifted.mean()))
    sentence = SENTENCE.format(t=t, share=kept, c=setting["shift"], top=top)
    figures = (_figure(setting, tops), _gate_figure(setting, gates, shown))
    return conclude(as_written, sentence, numbers, figures, under=multiplied, condition=CONDITION)


def _top(x: Tensor) -> Tensor:
    return forms.softmax(x).amax(-1)


def _others(y: Tensor) -> Tensor:
    """1 − the largest probability, as the sum of the others, which loses no digits."""
    return y.sort(-1).values[..., :-1].sum(-1)


def _tie(x: Tensor) -> Tensor:
    """The same draws with the second largest raised to the largest."""
    best, where = x.topk(2, -1)
    return x.scatter(-1, where[:, 1:], best[:, :1])


def _figure(setting: Setting, tops: dict[tuple[int, float], Tensor]) -> Figure:
    factors = setting["factors"]
    lines = (
        share_line(Text("n = {n}", "n = {n}").format(n=n), factors, [tops[n, t] > ALMOST_ALL for t in factors])
        for n in setting["sizes"]
    )
    caption = Text(
        "Share of draws in which the largest of n normal inputs gets more than 99 %, as all of them are multiplied by "
        "t. It goes to 1 for every n, but slowly: two nearly equal leaders need a very large t to be told apart.",
        "n 个正态输入同乘以 t 后，最大者得到 99 % 以上概率的抽样所占比例。对每个 n 都趋于 1，但很慢：两个几乎相等的领"
        "先者要很大的 t 才分得开。",
    )
    return figure("softmax-saturates-share", caption, FACTOR, SHARE_OF_DRAWS, lines, log="x")


def _gate_figure(setting: Setting, gates: dict[tuple[int, float], Tensor], n: int) -> Figure:
    factors = setting["factors"]
    lines = (
        line_over_seeds(Text("measured mean", "实测均值"), factors, [groups(gates[n, t]) for t in factors]),
        predicted(Text("exact expectation", "精确期望"), factors, lambda t: theory.gaussian_row(n, t).jacobian_trace),
    )
    caption = Text(
        "What is left to pass a gradient, 1 − Σy², for n = {n}. Up to t ≈ 1 nothing happens; beyond √(2 ln n) it "
        "falls like 1/t.",
        "还能传递梯度的部分 1 − Σy²，n = {n}。t ≈ 1 之前几乎不变；超过 √(2 ln n) 之后按 1/t 下降。",
    ).format(n=n)
    return figure("softmax-saturates-gate", caption, FACTOR, Text("mean of 1 − Σy²", "1 − Σy² 的均值"), lines, log="xy")


FACTOR = Text("factor t (standard deviation of the inputs, nats)", "倍数 t（输入的标准差，nat）")
BROKEN = Text(
    "draws that break 1 − y_max ≤ (n − 1)·e^(−t·gap), or whose y_max falls as t grows",
    "违反 1 − y_max ≤ (n − 1)·e^(−t·差距) 或 y_max 随 t 增大而下降的抽样数",
)
SHARE = Text(
    "share of draws with y_max > 0.99: n = {n} inputs multiplied by {t}",
    "y_max > 0.99 的抽样比例：n = {n} 个输入乘以 {t}",
)
PLAIN = Text("mean y_max of n = {n} standard normal inputs", "n = {n} 个标准正态输入的 y_max 均值")
SHIFTED = Text("mean y_max after adding {c} to every one of n = {n} inputs", "n = {n} 个输入各加 {c} 后 y_max 的均值")
TIED = Text(
    "mean y_max of n = {n} inputs multiplied by {t}, the two largest being equal",
    "n = {n} 个输入乘以 {t}、且前两名相等时 y_max 的均值",
)
GATE = Text("mean of 1 − Σy², n = {n}, factor {t}", "1 − Σy² 的均值，n = {n}，倍数 {t}")
SENTENCE = Text(
    "Multiplied by {t}, the largest of ten inputs takes more than 99 % in {share} of draws; but adding {c} to every "
    "input, which makes all of them large, leaves the largest probability at {top} on average, where it was.",
    "十个输入乘以 {t} 后，最大者在 {share} 的抽样中得到 99 % 以上的概率；但给每个输入都加上 {c}（每个都变大了），最大"
    "概率平均仍是 {top}，与原来一样。",
)
CONDITION = Text(
    "The inputs are multiplied by a growing t > 0 and the largest one is unique: then 1 − y_max ≤ (n − 1)·e^(−t·gap), "
    "where the gap is between the two largest. Being large is not enough: softmax(x + c) = softmax(x). With m equal "
    "leaders each gets 1/m.",
    "输入同乘以不断增大的 t > 0，且最大者唯一：此时 1 − y_max ≤ (n − 1)·e^(−t·差距)，差距指前两名之差。只是「大」并不"
    "够：softmax(x + c) = softmax(x)。若有 m 个并列最大，则各得 1/m。",
)
STEPS = (
    Step(
        Text(
            "Divide the softmax by its largest term; only differences to the largest input remain.",
            "用最大的一项去除 softmax 的分子分母，只剩下与最大输入之差。",
        ),
        equation("y_max", frac("1", row("1 +", total("j ≠ max"), sup("e", "x_j − x_max")))),
    ),
    Step(
        Text("So a common shift c changes nothing, however large.", "所以共同平移 c 无论多大都不起作用。"),
        equation("softmax ( x + c )", "softmax ( x )"),
    ),
    Step(
        Text(
            "Multiply all inputs by t. Each of the n − 1 other terms is at most e^(−tΔ), with Δ the gap between the "
            "two largest.",
            "所有输入乘以 t。其余 n − 1 项每一项至多为 e^(−tΔ)，Δ 是前两名之差。",
        ),
        row("1 − y_max ≤ ( n − 1 )", sup("e", "− t Δ")),
    ),
    Step(
        Text(
            "If Δ > 0 this vanishes as t grows. If Δ = 0 the leaders share the probability for ever.",
            "若 Δ > 0，它随 t 增大而消失。若 Δ = 0，并列者永远平分概率。",
        ),
    ),
)
ERRATA = (
    Erratum(
        "000",
        Text(
            "If the order of magnitude of the input grows (that is, every element is large), y_k comes very close "
            "to 1.",
            "如果输入的数量级变大（即每个元素都很大），那么 y_k 会非常接近于 1。",
        ),
        Text(
            "What must grow are the differences between elements. (1000, 1000, 1000) has three large elements and "
            "the softmax (1/3, 1/3, 1/3).",
            "要变大的是元素之间的差。(1000, 1000, 1000) 的三个元素都很大，softmax 却是 (1/3, 1/3, 1/3)。",
        ),
    ),
    Erratum(
        "001",
        Text(
            "If the input grows in magnitude (the absolute value of every component of x is large), y_k comes "
            "very close to 1.",
            "如果输入的数量级变大（就是 x 中的每个分量绝对值都很大），那么 y_k 的值非常接近 1。",
        ),
        Text(
            "Its own example (a, a, 2a) works because the gap 2a − a grows with a, not because a is large.",
            "它自己的例子 (a, a, 2a) 成立，是因为差距 2a − a 随 a 增大，而不是因为 a 大。",
        ),
    ),
)

CLAIM = Claim(
    id="softmax-saturates",
    title=Text("Large inputs turn softmax into an arg-max", "输入变大，softmax 就变成 arg-max"),
    question=Text(
        "Why does softmax give everything to one entry when its inputs are large?",
        "为什么输入一大，softmax 就把概率全给了一个分量？",
    ),
    statement=Text(
        "When the inputs are of large magnitude, softmax assigns almost all of the probability to the label of the "
        "largest one.",
        "在数量级较大时，softmax 将几乎全部的概率分布都分配给了最大值对应的标签。",
    ),
    sources=("000", "001", "002"),
    hypothesis=Text(
        "(a) When normal inputs are multiplied by t, y_max never falls as t grows, 1 − y_max ≤ (n − 1)·e^(−t·gap) in "
        "every draw, and at the largest t at least 90 % of draws have y_max > 0.99. (b) Inputs made large in any "
        "other way saturate too: mean y_max > 0.99 after adding a large constant to every input, and when the two "
        "largest are equal.",
        "(a) 正态输入同乘以 t 时，y_max 从不随 t 增大而下降，每次抽样都有 1 − y_max ≤ (n − 1)·e^(−t·差距)，且在最大的 "
        "t 处至少 90 % 的抽样 y_max > 0.99。(b) 用其他方式变大的输入同样饱和：给每个输入加一个大常数之后，以及前两名相"
        "等时，y_max 的均值都 > 0.99。",
    ),
    expected="conditional",
    experiment=experiment,
    quick={
        "sizes": (3, 10, 100, 1000),
        "draws": 2000,
        "factors": (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
        "shift": 1000,
    },
    full={"draws": 20_000},
    steps=STEPS,
    errata=ERRATA,
)
