"""At the classifier softmax saturates too, and no harm is done: the logarithm of the loss undoes it."""

from itertools import pairwise
from math import log, sqrt

import torch
from torch import Tensor

from isotherm import scale
from isotherm import softmax as forms
from isotherm.lab.claim import Claim, Result, Setting, all_hold, at_most, conclude
from isotherm.lab.dots import logits, normal
from isotherm.lab.figures import figure
from isotherm.lab.interval import bisect, groups, line_over_seeds, over_seeds
from isotherm.lab.mathml import equation, frac, row, sup, total
from isotherm.lab.numerals import numeral
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Measured, Step

TOLERANCE = 4e-15
FULL = 0.99


def experiment(setting: Setting) -> Result:
    """Compare the gradients of cross-entropy and of squared error over the margin of the right class."""
    margins, target = setting["margins"], 0
    others = normal((setting["draws"], setting["classes"] - 1), setting.generator(0))
    rows = {margin: _logits(others, margin) for margin in margins}
    labels = torch.full((setting["draws"],), target)
    gradients = {margin: forms.cross_entropy_gradient(x, labels) for margin, x in rows.items()}
    off = float(torch.stack([gradients[margin] - _autograd(x, labels) for margin, x in rows.items()]).abs().max())
    # The gradients add up to 0, so the others together are the pull on the target, with all its digits.
    pull = {margin: gradient[:, 1:].sum(-1) for margin, gradient in gradients.items()}
    squared = {margin: _squared_error(x, target)[:, target].abs() for margin, x in rows.items()}
    falls = all(bool((pull[b] <= pull[a] + TOLERANCE).all()) for a, b in pairwise(margins))
    largest = float(torch.stack(list(gradients.values())).norm(dim=-1).max())
    wrong, right = margins[0], margins[-1]
    numbers = (
        at_most(AUTOGRAD, off, TOLERANCE, predicted=0.0),
        *(
            over_seeds(PULL.format(m=margin), groups(pull[margin]), predicted=said, document=said, holds=bool(holds))
            for margin, said, holds in (
                (wrong, 1.0, pull[wrong].min() >= FULL),
                (right, 0.0, pull[right].max() <= 1 - FULL),
            )
        ),
        Measured(FALLS, float(falls), predicted=1.0, holds=falls),
        at_most(LARGEST, largest, sqrt(2) + TOLERANCE, predicted=sqrt(2)),
        over_seeds(SQUARED.format(m=wrong), groups(squared[wrong])),
        over_seeds(SQUARED.format(m=0), groups(squared[0])),
        Measured(NAIVE, _last_finite(), predicted=log(torch.finfo(torch.float32).max)),
        *_classifier(setting),
    )
    at_wrong, at_right, by_square = (numbers[i].value for i in (1, 2, 5))
    sentence = SENTENCE.format(
        m=abs(wrong), wrong=numeral(at_wrong), right=numeral(at_right, 1), squared=numeral(by_square, 1)
    )
    return conclude(all_hold(numbers), sentence, numbers, [_figure(margins, pull, squared)])


def _logits(others: Tensor, margin: float) -> Tensor:
    """Logits whose first class leads the best of the others by the margin."""
    return torch.cat([others.amax(-1, keepdim=True) + margin, others], -1)


def _autograd(x: Tensor, labels: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(x, labels, reduction="sum"), x)
    return gradient


def _squared_error(x: Tensor, target: int) -> Tensor:
    """The gradient of ½‖y − t‖², which has to pass the softmax's Jacobian."""
    y = forms.softmax(x)
    away = y.clone()
    away[:, target] -= 1
    return forms.jacobian_product(y, away)


def _last_finite() -> float:
    """The largest margin of a wrong class at which −log(softmax) in two steps still has a gradient, in float32."""

    def finite(margin: float) -> bool:
        x = torch.tensor([0.0, margin], requires_grad=True)
        (gradient,) = torch.autograd.grad(-forms.softmax(x)[0].log(), x)
        return bool(gradient.isfinite().all())

    return bisect(finite, 0.0, 1000.0, 19)[0]


def _classifier(setting: Setting) -> tuple[Measured, ...]:
    """Spread of W·h for W drawn as unit-variance numbers and as usual: a weight matrix is as random as a key."""
    d, numbers = setting["width"], []
    h, w = (normal((32, rows, d), setting.generator(1 + i)) for i, rows in enumerate((16, 64)))
    for name, factor, predicted in ((UNIT, 1.0, float(d)), (USUAL, 1 / sqrt(d), 1.0)):
        values = logits(h, factor * w, scale.NoScale()).square().mean((-2, -1)).tolist()
        numbers.append(over_seeds(name.format(d=d), values, predicted=predicted))
    return tuple(numbers)


def _figure(margins: tuple[float, ...], pull: dict[float, Tensor], squared: dict[float, Tensor]) -> Figure:
    names = (
        Text("cross-entropy, |ŷ − 1|", "交叉熵，|ŷ − 1|"),
        Text("squared error through the same softmax", "同一 softmax 上的平方误差"),
    )
    lines = (
        line_over_seeds(name, margins, [groups(found[m]) for m in margins])
        for name, found in zip(names, (pull, squared), strict=True)
    )
    caption = Text(
        "The pull on the logit of the right class, against how far it leads. Confidently wrong (left), cross-entropy "
        "pulls with full force, while the squared error, which has to pass the softmax's Jacobian, lets go. "
        "Confidently right (right), both are content.",
        "正确类别的 logit 所受的拉力，横轴为它领先多少。自信地错（左侧）时，交叉熵以全力拉回；而平方误差须经过 "
        "softmax 的雅可比矩阵，反而松手。自信地对（右侧）时，两者都不再用力。",
    )
    y_label = Text("|gradient| on its logit", "其 logit 上的 |梯度|")
    x_label = Text("margin of the right class (nats)", "正确类别的领先量（nat）")
    return figure("cross-entropy-pull", caption, x_label, y_label, lines)


AUTOGRAD = Text("largest difference between ŷ − y and automatic differentiation", "ŷ − y 与自动微分之间的最大差")
PULL = Text("mean |gradient| on the right class's logit, margin {m}", "正确类别 logit 上的平均 |梯度|，领先量 {m}")
FALLS = Text("the pull never grows with the margin (1 = in every draw)", "拉力从不随领先量增大（1 = 每次抽样都如此）")
LARGEST = Text("largest ‖ŷ − y‖ of all draws (never above √2)", "全部抽样中 ‖ŷ − y‖ 的最大值（不超过 √2）")
SQUARED = Text(
    "the same for squared error through the softmax, margin {m}", "经 softmax 的平方误差，同一量，领先量 {m}"
)
NAIVE = Text(
    "margin at which −log(softmax(x)), in two steps in float32, loses its gradient (nats)",
    "float32 分两步算 −log(softmax(x)) 时梯度失效的领先量（nat）",
)
UNIT = Text("mean (W·h)², W with unit variance, width {d}", "(W·h)² 的均值，W 方差为 1，宽度 {d}")
USUAL = Text("mean (W·h)², W with variance 1/d, width {d}", "(W·h)² 的均值，W 方差为 1/d，宽度 {d}")
SENTENCE = Text(
    "Wrong by {m} nats, cross-entropy still pulls on the right class with {wrong}; right by {m} it pulls with "
    "{right}. Squared error through the same softmax would pull with {squared} when wrong.",
    "错了 {m} nat 时，交叉熵对正确类别的拉力仍为 {wrong}；对了 {m} nat 时为 {right}。换成经同一 softmax 的平方误差，错"
    "时的拉力只有 {squared}。",
)
STEPS = (
    Step(
        Text("Cross-entropy takes the logarithm of the right class's probability.", "交叉熵取正确类别概率的对数。"),
        equation("L", "− ln y_t", row("− x_t + ln", total("j"), sup("e", "x_j"))),
    ),
    Step(
        Text(
            "Its derivative by each logit is the predicted probability less the true one.",
            "它对每个 logit 的导数是预测概率减去真实概率。",
        ),
        equation(
            frac("∂ L", "∂ x_i"), row(frac(sup("e", "x_i"), row(total("j"), sup("e", "x_j"))), "− t_i"), "y_i − t_i"
        ),
    ),
    Step(
        Text(
            "The Jacobian is still in it, but the logarithm brings a factor 1/y_t that cancels the vanishing y_t. "
            "Attention has no such logarithm behind its softmax.",
            "雅可比矩阵仍在其中，但对数带来因子 1/y_t，抵消了趋于零的 y_t。注意力的 softmax 之后没有这样的对数。",
        ),
        equation(frac("∂ L", "∂ x_t"), row("−", frac("1", "y_t"), "y_t ( 1 − y_t )"), "y_t − 1"),
    ),
)
ERRATA = (
    Erratum(
        "000",
        Text(
            "The classifier's softmax has no product of two random variables, only of a random variable with a "
            "parameter matrix.",
            "这一层的 softmax 没有两个随机变量相乘的情况，都是随机变量 X 与参数矩阵 W 相乘。",
        ),
        Text(
            "At the start of training W is as random as a key: with unit-variance entries W·h has variance d. What "
            "keeps it small is the initialisation, variance 1/d; what makes saturation harmless is the loss.",
            "训练开始时 W 与键一样随机：若元素方差为 1，W·h 的方差就是 d。使它保持较小的是初始化（方差 1/d），使饱和无"
            "害的是损失函数。",
        ),
    ),
)

CLAIM = Claim(
    id="cross-entropy-is-safe",
    title=Text("Softmax with cross-entropy may saturate", "softmax 配交叉熵，饱和也无妨"),
    question=Text("Why does nobody scale the softmax of the last layer?", "为什么最后一层的 softmax 不用缩放？"),
    statement=Text(
        "At the classifier softmax is differentiated together with cross-entropy, which gives ŷ − y: near 0 when "
        "confidently right, and of size 1, the strongest correction, when confidently wrong. A very large logit does "
        "not make the gradient vanish there.",
        "分类层的 softmax 与交叉熵联合求导，得到 ŷ − y：自信且正确时接近 0，自信却错误时为 1，给出最大程度的负反馈。这"
        "里不会因极大值而梯度消失。",
    ),
    sources=("000",),
    hypothesis=Text(
        "ŷ − y agrees with automatic differentiation within 4·10⁻¹⁵; in every draw the gradient on the right class's "
        "logit is at least 0.99 at a margin of −50, at most 0.01 at +50, and never grows with the margin; its norm "
        "never passes √2.",
        "ŷ − y 与自动微分相差不超过 4·10⁻¹⁵；每次抽样中，正确类别 logit 上的梯度在领先量 −50 时至少为 0.99，+50 时至多"
        " 0.01，且从不随领先量增大；其范数不超过 √2。",
    ),
    expected="confirmed",
    experiment=experiment,
    quick={
        "classes": 10,
        "draws": 1000,
        "margins": (-50, -20, -10, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 10, 20, 50),
        "width": 512,
    },
    full={"classes": 1000, "draws": 1000},
    steps=STEPS,
    errata=ERRATA,
)
