"""One random draw of ten numbers, printed as evidence: the same draw ten thousand times over."""

from math import sqrt

import torch
from torch import Tensor

from isotherm import softmax as forms
from isotherm import theory
from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.dots import normal
from isotherm.lab.figures import curve, figure
from isotherm.lab.interval import groups, over_seeds, quantile, quantile_of, share, share_of
from isotherm.lab.mathml import row, sup
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Measured, Step
from isotherm.stats import RowStats

N = 10
SIGMA = {"narrow": 1.0, "wide": sqrt(512)}
RANGE = {"narrow": 1.8973472870218264, "wide": 66.62254341144866}
LARGEST = {"narrow": 0.1698259433168865, "wide": 2.7839373695215386e-08}
ROUNDED = {"narrow": ("1.897", "0.1698"), "wide": ("66.6", "2.78·10⁻⁸")}
"""Both numbers of the document, as its readers quote them."""
PRINTED = {
    "narrow": "0.16704083 0.21684976 0.0579299 0.05408421 0.16109133 0.14433417 0.03252007 0.05499126 0.04213939 0.06901908",
    "wide": "4.51671361e-19 2.88815837e-21 9.99999972e-01 3.02351231e-17 3.73439970e-25 8.18066523e-13 2.78385563e-08"
    " 1.16465424e-29 7.25661271e-20 3.21813750e-21",
}
"""The probabilities the document prints."""
VANISHED = 0.01
ORDINARY = (0.025, 0.975)


def experiment(setting: Setting) -> Result:
    """Range and largest Jacobian entry of every draw, and where the document's four numbers lie among them."""
    draws = {
        name: sigma * normal((setting["seeds"], N), setting.generator(i))
        for i, (name, sigma) in enumerate(SIGMA.items())
    }
    ranges = {name: x.amax(-1) - x.amin(-1) for name, x in draws.items()}
    largest = {name: RowStats.from_logits(x).jacobian_max for name, x in draws.items()}
    off = _disagreement(draws["narrow"], largest["narrow"])
    places = [
        *(_place(_named(RANGE_AT, name, ROUNDED[name][0]), ranges[name], RANGE[name]) for name in SIGMA),
        *(_place(_named(ENTRY_AT, name, ROUNDED[name][1]), largest[name], LARGEST[name]) for name in SIGMA),
    ]
    ordinary, agrees = all(place.holds for place in places), off <= 1e-9
    smaller = largest["wide"] < largest["narrow"]
    gone = largest["wide"] < VANISHED
    numbers = (
        *places,
        share_of(SMALLER, smaller, holds=share(smaller)[1] >= 0.9),
        share_of(GONE, gone, document=1.0, holds=share(gone)[1] >= 0.95),
        quantile_of(_named(MEDIAN, "narrow"), largest["narrow"], 0.5, document=LARGEST["narrow"]),
        quantile_of(
            _named(MEDIAN, "wide"),
            largest["wide"],
            0.5,
            document=LARGEST["wide"],
            holds=quantile(largest["wide"], 0.5)[2] < quantile(largest["narrow"], 0.5)[1] / 10,
        ),
        *(over_seeds(_named(MEAN, name), groups(largest[name]), document=LARGEST[name]) for name in SIGMA),
        *(_range(name, ranges[name]) for name in SIGMA),
        *(Measured(_named(REPEATED, name), _from_print(name), document=LARGEST[name]) for name in SIGMA),
        Measured(AGREES, off, predicted=0.0, holds=agrees),
    )
    typical = ordinary and agrees and all(number.holds for number in (numbers[4], numbers[7]))
    place, median, kept = percent(places[3].value, 0), numeral(numbers[7].value, 2), 1 - share(gone)[0]
    return conclude(
        typical and numbers[5].holds is True,
        SENTENCE.format(place=place, median=median, kept=percent(kept, 0)),
        numbers,
        (
            _figure("ten-draws-range", ranges, RANGE, RANGE_CAPTION, RANGE_AXIS),
            _figure("ten-draws-entry", largest, LARGEST, ENTRY_CAPTION, ENTRY_AXIS),
        ),
        under=typical,
        condition=CONDITION.format(kept=percent(kept)),
    )


def _named(name: Text, which: str, value: str = "") -> Text:
    return name.format(label=LABELS[which], value=value)


def _place(name: Text, values: Tensor, document: float) -> Measured:
    """The share of draws below the document's number; an ordinary draw lies in the middle 95 %."""
    where = share(values < document)
    return Measured(name, *where, holds=ORDINARY[0] <= where[0] <= ORDINARY[1])


def _disagreement(x: Tensor, largest: Tensor) -> float:
    """Largest relative difference between the statistic and the largest entry of the Jacobian written out."""
    entry = forms.jacobian(forms.softmax(x)).abs().amax((-2, -1))
    return float(((entry - largest) / largest).abs().max())


def _from_print(name: str) -> float:
    """The largest entry of diag(y) − yyᵀ for the probabilities the document prints."""
    y = torch.tensor([float(number) for number in PRINTED[name].split()], dtype=torch.float64)
    top = int(y.argmax())
    return float(y[top] * (y.sum() - y[top]))


def _range(name: str, ranges: Tensor) -> Measured:
    """The mean range; expected is twice the largest of n normals."""
    expected = 2 * theory.gaussian_row(N, SIGMA[name]).max_logit
    return over_seeds(_named(MEAN_RANGE, name), groups(ranges), predicted=expected, document=RANGE[name])


def _figure(name: str, values: dict[str, Tensor], document: dict[str, float], caption: Text, axis: Text) -> Figure:
    """Each distribution as the share of draws below a value, with the document's number on it."""
    shares = tuple(i / 100 for i in range(1, 100))
    lines = []
    for which, label in LABELS.items():
        lines.append(curve(label, [quantile(values[which], q)[0] for q in shares], shares))
        where = share(values[which] < document[which])[0]
        lines.append(curve(DRAWN.format(label=label), (document[which],) * 2, (0.0, where), "document"))
    y_label = Text("share of draws below (of 1)", "低于该值的抽样比例（满为 1）")
    return figure(name, caption, axis, y_label, lines, log="x")


LABELS = {"narrow": Text("σ = 1", "σ = 1"), "wide": Text("σ = √512", "σ = √512")}
DRAWN = Text("document 002, {label}", "文档 002，{label}")
RANGE_AT = Text("share of draws with a smaller range than {value}, {label}", "极差小于 {value} 的抽样比例，{label}")
ENTRY_AT = Text(
    "share of draws with a smaller largest entry than {value}, {label}", "最大元素小于 {value} 的抽样比例，{label}"
)
SMALLER = Text(
    "share of pairs of draws in which σ = √512 has the smaller largest entry",
    "两组抽样中 σ = √512 的最大元素更小的比例",
)
GONE = Text("share of draws with every entry below 0.01, σ = √512", "所有元素都小于 0.01 的抽样比例，σ = √512")
MEDIAN = Text("median of the largest entry, {label}", "最大元素的中位数，{label}")
MEAN = Text("mean of the largest entry, {label}", "最大元素的均值，{label}")
MEAN_RANGE = Text("mean range, {label}", "平均极差，{label}")
REPEATED = Text(
    "largest entry from the probabilities the document prints, {label}", "由文档印出的概率算得的最大元素，{label}"
)
AGREES = Text(
    "largest relative difference between statistic and Jacobian written out", "统计量与写出的雅可比矩阵之间的最大相对差"
)
RANGE_AXIS = Text("range, largest − smallest of ten (nats)", "极差，十个数中最大减最小（nat）")
ENTRY_AXIS = Text("largest Jacobian entry (probability per nat)", "雅可比矩阵最大元素（概率/nat）")
RANGE_CAPTION = Text(
    "The range of ten normal numbers over all seeds. Both of the document's draws are ordinary; the σ = 1 draw "
    "happens to be narrow, which makes its contrast a little larger.",
    "十个正态数的极差在所有种子下的分布。文档的两次抽样都属正常；σ = 1 的那次碰巧偏窄，使对比稍显夸张。",
)
ENTRY_CAPTION = Text(
    "The largest Jacobian entry over all seeds. At σ = √512 it spreads over twenty orders of magnitude: 2.78·10⁻⁸ is "
    "one point of a curve that reaches from below 10⁻²⁰ up to ¼.",
    "最大雅可比元素在所有种子下的分布。σ = √512 时它横跨二十个数量级：2.78·10⁻⁸ 只是从 10⁻²⁰ 以下一直到 ¼ 的曲线上的一"
    "点。",
)
SENTENCE = Text(
    "The document's 2.78·10⁻⁸ lies at the {place} mark of all draws with σ = √512; the median draw has {median}, and "
    "{kept} of draws keep an entry above 0.01.",
    "文档的 2.78·10⁻⁸ 位于 σ = √512 全部抽样的 {place} 处；中位数为 {median}，且有 {kept} 的抽样保留了大于 0.01 的元"
    "素。",
)
CONDITION = Text(
    "For the typical draw: the document's numbers are ordinary ones, and the median of the largest entry falls by "
    "orders of magnitude. Not for every draw: {kept} of rows of ten with σ = √512 have two leaders so close together "
    "that the gradient still passes.",
    "对典型的抽样成立：文档的数字属于正常范围，最大元素的中位数下降了几个数量级。但并非每次如此：σ = √512 时有 {kept} "
    "的十元素行，其前两名靠得很近，梯度仍能通过。",
)
STEPS = (
    Step(
        Text(
            "Far apart inputs leave only the gap Δ between the two largest; the largest entry of the Jacobian follows "
            "from it.",
            "输入相距很远时，只剩前两名之差 Δ 起作用；雅可比矩阵的最大元素由它决定。",
        ),
        row("max | J_ij | ≈", sup("e", "− Δ")),
    ),
    Step(
        Text(
            "Δ is σ times the gap of ten standard normals, which is nearly exponentially distributed: it has no "
            "typical size, and e^(−Δ) has even less.",
            "Δ 等于 σ 乘以十个标准正态数的前两名之差，后者近似服从指数分布：它没有典型大小，e^(−Δ) 更没有。",
        ),
        row("P ( Δ > g ) ≈", sup("e", "− g m / σ")),
    ),
    Step(
        Text(
            "So one draw says little about the size of the gradient; its distribution says all. A share of about m/σ "
            "of rows keeps a gradient of order one, m being the mean of the largest of ten normals, 1.54.",
            "所以单次抽样说明不了梯度的大小，要看分布。约有 m/σ 的行保留数量级为一的梯度，m 是十个正态数最大值的均值 "
            "1.54。",
        ),
    ),
)
ERRATA = (
    Erratum(
        "002",
        Text(
            "«When the variance is √512 the gradient has nearly vanished», from one draw.",
            "「在方差为根号 512 的时候，梯度接近消失」，依据是一次抽样。",
        ),
        Text(
            "It is the standard deviation that is √512. And the gradient has nearly vanished in the median row; the "
            "mean over rows falls only by a factor of about six, because a few rows keep all of theirs.",
            "√512 是标准差。而且接近消失的是中位数的行；对所有行取平均只降为约六分之一，因为少数行完全保留着梯度。",
        ),
    ),
    Erratum(
        "002",
        Text(
            "The second line of output is labelled x2, the code prints «x1» twice; the code of the gradients is "
            "missing.",
            "输出的第二行写着 x2，而代码两次打印的都是「x1」；求梯度的代码缺失。",
        ),
        Text(
            "The printed probabilities give the printed gradients again, so the numbers are consistent.",
            "由印出的概率可以重新得到印出的梯度，所以数字本身是一致的。",
        ),
    ),
)

CLAIM = Claim(
    id="ten-draws",
    title=Text("Ten draws with σ = 1 and σ = √512", "σ = 1 与 σ = √512 的十个随机数"),
    question=Text(
        "A note shows one random draw as proof. Was it a lucky one?", "一篇笔记用一次随机抽样作证明。那次是不是碰巧？"
    ),
    statement=Text(
        "Ten draws with σ = 1 have a range of 1.897 and a largest Jacobian entry of 0.1698; ten with σ = √512 have "
        "66.6 and 2.78·10⁻⁸: the gradient nearly vanishes.",
        "σ = 1 的十个数极差为 1.897，雅可比最大元素为 0.1698；σ = √512 的十个数极差为 66.6，最大元素为 2.78·10⁻⁸：梯度"
        "接近消失。",
    ),
    sources=("002",),
    hypothesis=Text(
        "Each of the document's four numbers lies in the middle 95 % of its distribution over seeds; in at least 90 % "
        "of pairs the wide draw has the smaller largest entry, and the median falls at least tenfold. And, as the "
        "document concludes from one draw: at least 95 % of draws with σ = √512 have every entry below 0.01.",
        "文档的四个数都落在各自随种子分布的中间 95 %；至少 90 % 的成对抽样中宽的一组最大元素更小，且中位数至少降为十分"
        "之一。另外，照文档由一次抽样得出的结论：σ = √512 时至少 95 % 的抽样所有元素都小于 0.01。",
    ),
    expected="conditional",
    experiment=experiment,
    quick={"seeds": 10_000},
    full={"seeds": 200_000},
    steps=STEPS,
    errata=ERRATA,
)
