"""The closer y is to one-hot, the smaller every entry of its Jacobian: by exactly how much, and what still learns."""

import torch
from torch import Tensor

from isotherm import softmax as forms
from isotherm.lab.claim import Claim, Result, Setting, all_hold, at_most, conclude, none_of
from isotherm.lab.dots import normal
from isotherm.lab.figures import LARGEST_ENTRY, figure, predicted
from isotherm.lab.interval import bisect, groups, over_seeds, quantile, quantile_line, quantile_of
from isotherm.lab.mathml import row
from isotherm.lab.numerals import numeral
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Measured, Step

DTYPES = ((torch.float16, 25), (torch.bfloat16, 134), (torch.float32, 150), (torch.float64, 1075))
"""Each precision, and p such that numbers below 2^−p round to 0 (half of its smallest subnormal number)."""


def experiment(setting: Setting) -> Result:
    """Compute Jacobians of ever sharper rows, compare each entry with 1 − top1, and take gradients of scores and values."""
    x = normal((setting["draws"], setting["n"]), setting.generator(0))
    factors = setting["factors"]
    rest, largest = [], []
    beyond, off = 0, []
    for factor in factors:
        y = forms.softmax(factor * x)
        others = y.sort(-1).values[..., :-1].sum(-1)
        entry = forms.jacobian(y).abs().amax((-2, -1))
        beyond += int((~(entry <= others + 1e-15)).sum())
        led = y.amax(-1) > 0.5
        off.append(torch.where(led, (entry - y.amax(-1) * others).abs(), 0.0).max())
        rest.append(others)
        largest.append(entry)
    scores, values = _gradients(setting, x, factors[-1])
    numbers = (
        none_of(BEYOND, beyond),
        at_most(EXACTLY, float(torch.stack(off).max()), 1e-15, predicted=0.0),
        quantile_of(MEDIAN.format(t=factors[0]), largest[0], 0.5),
        quantile_of(
            MEDIAN.format(t=factors[-1]),
            largest[-1],
            0.5,
            holds=quantile(largest[-1], 0.5)[2] < 1e-3 * quantile(largest[0], 0.5)[1],
        ),
        over_seeds(SCORES.format(t=factors[-1]), groups(scores)),
        over_seeds(VALUES.format(t=factors[-1]), groups(values)),
        *(
            Measured(
                ZERO.format(name=str(kind).removeprefix("torch.")),
                _first_zero(kind),
                predicted=power * 0.6931471805599453,
            )
            for kind, power in DTYPES
        ),
    )
    first, last, of_values = numeral(numbers[2].value), numeral(numbers[3].value, 2), numeral(numbers[5].value)
    sentence = SENTENCE.format(count=len(factors) * len(x), first=first, last=last, values=of_values)
    return conclude(all_hold(numbers), sentence, numbers, [_figure(rest, largest)])


def _gradients(setting: Setting, x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """‖∂L/∂scores‖ and ‖∂L/∂v‖ for each draw, where a unit gradient g arrives at the output y·v."""
    v = normal((len(x), setting["n"], 1), setting.generator(1)).requires_grad_()
    s = (factor * x).requires_grad_()
    output = (forms.softmax(s).unsqueeze(-1) * v).sum()
    to_scores, to_values = torch.autograd.grad(output, (s, v))
    return to_scores.norm(dim=-1), to_values.squeeze(-1).norm(dim=-1)


def _first_zero(kind: torch.dtype) -> float:
    """The gap g between two inputs from which on every entry of the Jacobian of softmax(g, 0) is exactly 0."""

    def passes(gap: float) -> bool:
        return bool(forms.jacobian(forms.softmax(torch.tensor([gap, 0.0], dtype=kind))).any())

    return bisect(passes, 0.0, 1024.0, 19)[1]


def _figure(rest: list[Tensor], largest: list[Tensor]) -> Figure:
    x = [quantile(values, 0.5)[0] for values in rest]
    lines = (
        quantile_line(Text("measured medians", "实测中位数"), x, largest, 0.5),
        predicted(Text("ε(1 − ε)", "ε(1 − ε)"), [10.0**-k for k in range(1, 12)], lambda e: e * (1 - e)),
    )
    caption = Text(
        "The largest entry of the Jacobian against what is left for the other inputs, ε = 1 − y_max, at growing "
        "factors. Close to one-hot the two are the same number: the gradient dies exactly as fast as the runners-up "
        "do.",
        "倍数增大时，雅可比矩阵的最大元素对照留给其他输入的概率 ε = 1 − y_max。接近 one-hot 时两者是同一个数：其余分量"
        "消失多快，梯度就消失多快。",
    )
    x_label = Text("ε = 1 − y_max (probability)", "ε = 1 − y_max（概率）")
    return figure("one-hot-largest-entry", caption, x_label, LARGEST_ENTRY, lines, log="xy")


BEYOND = Text("draws with an entry |J_ij| above 1 − y_max", "存在 |J_ij| 超过 1 − y_max 的抽样数")
EXACTLY = Text(
    "largest difference between max |J_ij| and y_max(1 − y_max), where y_max > ½",
    "y_max > ½ 时，max |J_ij| 与 y_max(1 − y_max) 的最大差",
)
MEDIAN = Text("median of max |J_ij|, inputs multiplied by {t}", "max |J_ij| 的中位数，输入乘以 {t}")
SCORES = Text(
    "mean gradient that reaches the scores at factor {t} (1 arrives at the output)",
    "倍数 {t} 时到达得分的平均梯度（输出端为 1）",
)
VALUES = Text(
    "mean gradient that reaches the values v at factor {t} (1 arrives at the output)",
    "倍数 {t} 时到达 v 的平均梯度（输出端为 1）",
)
ZERO = Text(
    "gap between two inputs from which the gradient is exactly 0 in {name} (nats)",
    "{name} 中梯度恰为 0 所需的两输入之差（nat）",
)
SENTENCE = Text(
    "In all {count} rows every entry of the Jacobian is at most 1 − y_max; its largest entry falls from {first} to "
    "{last} (median) as the row sharpens, while the values v still receive {values} of the gradient.",
    "在全部 {count} 行中，雅可比矩阵的每个元素都不超过 1 − y_max；随着行变尖锐，最大元素（中位数）从 {first} 降到 "
    "{last}，而 v 仍收到 {values} 的梯度。",
)
STEPS = (
    Step(
        Text(
            "Let ε be what the largest probability leaves over. Every other probability is at most ε.",
            "设 ε 为最大概率剩下的部分，其余每个概率都不超过 ε。",
        ),
        row("ε = 1 − y_max , y_j ≤ ε"),
    ),
    Step(
        Text(
            "Every entry has one of these as a factor, and its other factor is at most 1.",
            "每个元素都含有这样一个因子，另一个因子至多为 1。",
        ),
        row("y_max ( 1 − y_max ) ≤ ε , y_j ( 1 − y_j ) ≤ ε , y_i y_j ≤ ε"),
    ),
    Step(
        Text(
            "So all n² entries go to 0 with ε. The gradient to the values is yᵢ·g, which goes to g for the chosen "
            "key: that path stays open.",
            "所以 n² 个元素都随 ε 趋于 0。到 v 的梯度是 yᵢ·g，对被选中的键趋于 g：这条路始终畅通。",
        ),
        row("| J_ij | ≤ ε → 0"),
    ),
)
ERRATA = (
    Erratum(
        "001",
        Text(
            "All gradients vanish to 0 (or nearly), the parameters can hardly be updated.",
            "所有的梯度都消失为 0（接近于 0），参数几乎无法更新。",
        ),
        Text(
            "The gradient to the scores vanishes, so W_q and W_k stop learning. The gradient to the values does not: "
            "W_v, and all that follows attention, learn on.",
            "消失的是到得分的梯度，因此 W_q、W_k 停止学习。到 v 的梯度并不消失：W_v 以及注意力之后的一切照常学习。",
        ),
    ),
)

CLAIM = Claim(
    id="one-hot-kills-gradient",
    title=Text("A one-hot softmax passes no gradient", "one-hot 的 softmax 不传梯度"),
    question=Text(
        "Why can a softmax that has made up its mind no longer learn?", "为什么已经「拿定主意」的 softmax 学不动了？"
    ),
    statement=Text(
        "When y is close to (1, 0, …, 0), every entry of diag(y) − y yᵀ is close to 0: the gradient vanishes.",
        "当 y 接近 [1, 0, …, 0] 时，diag(y) − y·yᵀ 的所有元素都接近 0，梯度消失。",
    ),
    sources=("000", "001", "003", "004"),
    hypothesis=Text(
        "In every draw and at every factor max |J_ij| ≤ 1 − y_max, equal to y_max(1 − y_max) within 10⁻¹⁵ wherever "
        "y_max > ½; and the median of max |J_ij| at the largest factor is below a thousandth of that at the smallest "
        "(by 95 % intervals).",
        "每次抽样、每个倍数都有 max |J_ij| ≤ 1 − y_max，且 y_max > ½ 时它与 y_max(1 − y_max) 相差不超过 10⁻¹⁵；最大倍"
        "数下 max |J_ij| 的中位数小于最小倍数下的千分之一（按 95 % 区间）。",
    ),
    expected="confirmed",
    experiment=experiment,
    quick={"n": 10, "draws": 2000, "factors": (1, 2, 4, 8, 16, 32, 64)},
    full={"draws": 50_000},
    steps=STEPS,
    errata=ERRATA,
)
