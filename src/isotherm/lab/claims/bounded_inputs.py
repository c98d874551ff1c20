"""Inputs in [0, 1] give a dot product in [0, d]: true, and much less alarming than it sounds."""

from functools import partial
from math import pi, sqrt

import torch
from torch import Tensor

from isotherm import scale, theory
from isotherm.lab.claim import Claim, Result, Setting, all_hold, conclude, none_of
from isotherm.lab.dots import Draw, logits
from isotherm.lab.figures import D, curve, figure, predicted
from isotherm.lab.interval import interval, line_over_seeds, over_seeds, powers
from isotherm.lab.mathml import equation, frac, root, row, total
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Measured, Step


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform on [0, 1]."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def corners(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """0 or 1: nothing in [0, 1] spreads more."""
    return torch.randint(2, shape, generator=generator, dtype=torch.int8).double()


def arcsine(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """The arcsine law, dense near 0 and 1."""
    return (pi / 2 * torch.rand(shape, generator=generator, dtype=torch.float64)).sin().square()


KINDS: tuple[tuple[Text, Draw, float], ...] = (
    (Text("uniform", "均匀"), uniform, 1 / 12),
    (Text("0 or 1", "0 或 1"), corners, 1 / 4),
    (Text("arcsine", "反正弦"), arcsine, 1 / 8),
)
"""Each distribution on [0, 1] with mean ½, and its variance."""


def experiment(setting: Setting) -> Result:
    """Compare dot products with their bounds, check that both bounds are reached, and measure how much of [0, d] is used."""
    dimensions = setting["dimensions"]
    outside, spreads, used, means = 0, {}, {}, {}
    for i, (_, draw, _) in enumerate(KINDS):
        for d in dimensions:
            s = _scores(setting, i, d, draw)
            outside += int((~((s >= 0) & (s <= d))).sum())
            spreads[i, d] = s.var(-1).mean(-1).sqrt().tolist()
            used[i, d] = ((s.amax((-2, -1)) - s.amin((-2, -1))) / d).tolist()
            means[i, d] = s.mean((-2, -1)).tolist()
        setting.progress((i + 1) / len(KINDS))
    ends = _ends(dimensions[-1])
    last, kinds = dimensions[-1], range(len(KINDS))

    def name(text: Text, i: int) -> Text:
        return text.format(kind=KINDS[i][0], d=last)

    numbers = (
        none_of(OUTSIDE, outside),
        Measured(LOWER.format(d=last), ends[0], predicted=0.0, document=0.0, holds=ends[0] == 0),
        Measured(UPPER.format(d=last), ends[1], predicted=float(last), document=float(last), holds=ends[1] == last),
        over_seeds(POWER, powers(dimensions, [spreads[0, d] for d in dimensions]), predicted=0.5, document=1.0),
        *(over_seeds(name(USED, i), used[i, last], document=1.0) for i in kinds),
        *(over_seeds(name(MEAN_OF, i), means[i, last], predicted=_moments(i, last).mean) for i in kinds),
        *(over_seeds(name(SPREAD, i), spreads[i, last], predicted=_between_keys(i, last)) for i in kinds),
    )
    part, mean, spread = (interval(table[0, last]).mean for table in (used, means, spreads))
    sentence = SENTENCE.format(d=last, used=percent(part), mean=numeral(mean, 4), spread=numeral(spread))
    figures = (_figure(dimensions, spreads), _used_figure(dimensions, used))
    return conclude(all_hold(numbers), sentence, numbers, figures)


def _scores(setting: Setting, i: int, d: int, draw: Draw) -> Tensor:
    """⟨h, s⟩ of queries with keys, [seeds, queries, keys]."""
    generator = setting.generator(i, d)
    q, k = (draw((setting["seeds"], rows, d), generator) for rows in (setting["queries"], setting["keys"]))
    return logits(q, k, scale.NoScale())


def _ends(d: int) -> tuple[float, float]:
    """The dot products of all zeros and of all ones."""
    zero, one = torch.zeros(1, d, dtype=torch.float64), torch.ones(1, d, dtype=torch.float64)
    return float(logits(zero, one, scale.NoScale())), float(logits(one, one, scale.NoScale()))


def _moments(i: int, d: int) -> theory.DotProductMoments:
    variance = KINDS[i][2]
    return theory.dot_product_moments(d, mean_q=0.5, mean_k=0.5, var_q=variance, var_k=variance)


def _between_keys(i: int, d: int) -> float:
    """Given h, the scores of independent keys vary by Σhᵢ²·v: on average d(¼ + v)v."""
    variance = KINDS[i][2]
    return sqrt(d * (0.25 + variance) * variance)


def _figure(dimensions: tuple[int, ...], spreads: dict[tuple[int, int], list[float]]) -> Figure:
    lines = []
    for i, (name, _, _) in enumerate(KINDS):
        lines.append(line_over_seeds(name, dimensions, [spreads[i, d] for d in dimensions]))
        expected = Text("{name}: predicted", "{name}：预测").format(name=name)
        lines.append(predicted(expected, dimensions, partial(_between_keys, i)))
    lines.append(curve(Text("length of [0, d]", "[0, d] 的长度"), dimensions, float, "document"))
    caption = Text(
        "The spread of the scores between the keys of a query, the only thing a softmax sees, grows like √d for every "
        "distribution on [0, 1]. The length of the interval, d, is reached by no draw.",
        "同一查询各键得分之间的离散（softmax 只看得见它）对 [0, 1] 上的每种分布都按 √d 增长。区间长度 d 没有任何抽样达"
        "到。",
    )
    y_label = Text("standard deviation between keys (nats)", "键之间的标准差（nat）")
    return figure("bounded-spread", caption, D, y_label, lines, log="xy")


def _used_figure(dimensions: tuple[int, ...], used: dict[tuple[int, int], list[float]]) -> Figure:
    rows = [[used[i, d] for d in dimensions] for i in range(len(KINDS))]
    lines = (line_over_seeds(kind[0], dimensions, values) for kind, values in zip(KINDS, rows, strict=True))
    caption = Text(
        "The part of [0, d] between the smallest and the largest of all dot products drawn. It shrinks like 1/√d.",
        "抽到的全部点积中最小到最大所覆盖的 [0, d] 的比例。它按 1/√d 缩小。",
    )
    y_label = Text("part of [0, d] used (of 1)", "[0, d] 的使用比例（满为 1）")
    return figure("bounded-used", caption, D, y_label, lines, log="x")


OUTSIDE = Text("dot products outside [0, d]", "落在 [0, d] 之外的点积个数")
LOWER = Text("⟨0, 1⟩, the lower end, d = {d}", "下端 ⟨0, 1⟩，d = {d}")
UPPER = Text("⟨1, 1⟩, the upper end, d = {d}", "上端 ⟨1, 1⟩，d = {d}")
POWER = Text("power of d in the spread between keys, uniform inputs", "键之间离散随 d 的幂次，均匀输入")
USED = Text(
    "part of [0, d] between the smallest and largest draw, {kind}, d = {d}",
    "抽样最小到最大占 [0, d] 的比例，{kind}，d = {d}",
)
MEAN_OF = Text("mean of ⟨h, s⟩, {kind}, d = {d}", "⟨h, s⟩ 的均值，{kind}，d = {d}")
SPREAD = Text("standard deviation of ⟨h, s⟩ between keys, {kind}, d = {d}", "键之间 ⟨h, s⟩ 的标准差，{kind}，d = {d}")
SENTENCE = Text(
    "Every dot product lies in [0, d] and both ends are reached; but at d = {d} uniform inputs use {used} of the "
    "interval: {mean} on average, with a spread of {spread} between keys.",
    "每个点积都落在 [0, d] 内，且两端都能取到；但 d = {d} 时均匀输入只用到区间的 {used}：平均 {mean}，键之间的离散为 "
    "{spread}。",
)
STEPS = (
    Step(
        Text(
            "Each product of two numbers in [0, 1] lies in [0, 1]; d of them add up to something in [0, d].",
            "[0, 1] 中两数之积在 [0, 1] 中；d 个相加，落在 [0, d] 中。",
        ),
        row("0 ≤", total("i = 1", "d"), "h_i s_i ≤ d"),
    ),
    Step(
        Text(
            "The mean grows like d, but it is common to all keys, and a softmax does not see what is common.",
            "均值按 d 增长，但它是所有键共有的，softmax 看不见共有的部分。",
        ),
        equation("E ⟨ h , s ⟩", frac("d", "4")),
    ),
    Step(
        Text("What it sees is the spread between keys. For uniform inputs:", "它看见的是键之间的离散。对均匀输入："),
        equation("σ", root(row("d ·", frac("1", "3"), "·", frac("1", "12"))), frac(root("d"), "6")),
    ),
)
ERRATA = (
    Erratum(
        "000",
        Text(
            "If s and h are distributed over [0, 1] the product's distribution widens to [0, d_k].",
            "如果 s 和 h 都分布在 [0, 1]，相乘后整体的分布就会扩大到 [0, d_k]。",
        ),
        Text(
            "[0, d_k] is where it can lie, not how wide it is. Its width grows like √d_k, as in the centred case, and "
            "the shift d_k/4 cancels in the softmax. The conclusion (divide by √d_k) stands; the argument would have "
            "asked for 1/d_k.",
            "[0, d_k] 是它可能的范围，不是它的宽度。宽度与零均值情形一样按 √d_k 增长，而平移量 d_k/4 在 softmax 中抵"
            "消。结论（除以 √d_k）没错；但照这个论证，本该除以 d_k。",
        ),
    ),
)

CLAIM = Claim(
    id="bounded-inputs",
    title=Text("Inputs in [0, 1] give a dot product in [0, d]", "输入在 [0, 1]，点积在 [0, d]"),
    question=Text(
        "If the inputs are bounded, does the dot product still grow with d?", "输入有界时，点积还会随 d 增大吗？"
    ),
    statement=Text(
        "If h and s are distributed over [0, 1], their dot product lies in [0, d_k].",
        "如果 s 和 h 都分布在 [0, 1]，那么相乘求和后落在 [0, d_k]。",
    ),
    sources=("000",),
    hypothesis=Text(
        "For three distributions on [0, 1] and every d, no dot product lies outside [0, d]; all zeros give 0 and all "
        "ones give d exactly.",
        "对 [0, 1] 上的三种分布和每个 d，没有点积落在 [0, d] 之外；全 0 恰得 0，全 1 恰得 d。",
    ),
    expected="confirmed",
    experiment=experiment,
    quick={"dimensions": (1, 4, 16, 64, 256, 1024), "seeds": 16, "queries": 32, "keys": 64},
    full={"dimensions": (1, 4, 16, 64, 256, 1024, 4096), "seeds": 32, "queries": 128, "keys": 256},
    steps=STEPS,
    errata=ERRATA,
)
