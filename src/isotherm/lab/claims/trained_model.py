"""A real trained model: are its q and k as the derivation assumes, and what would it be without 1/√d?"""

import torch
from torch import Tensor

from isotherm import scale, theory
from isotherm.lab import minilm
from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.dots import row_stats
from isotherm.lab.figures import LAYER, MEASURED, curve, figure, heads_map, predicted
from isotherm.lab.interval import geometric, interval, line_over_seeds, over_seeds
from isotherm.lab.mathml import equation, root, row, sub, sup
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Measured, Step

NEAR = 2.0
"""A variance between 1/2 and 2 is near 1."""


def experiment(setting: Setting) -> Result:
    """Measure every head on every passage: moments of q and k, logit spread, and rows with and without 1/√d."""
    model = minilm.trained()
    seen = []
    for i in range(setting["passages"]):
        seen.append(_Passage(minilm.read(model, i, setting["tokens"])))
        setting.progress((i + 1) / setting["passages"])
    every = interval([one.near for one in seen]).low > 1 - 1e-9
    typical = all(_within([one.median(name) for one in seen]) for name in ("var_q", "var_k"))
    freezes = interval([one.lost for one in seen]).low > 0.5
    spread = torch.stack([one.spread for one in seen]).mean(0)
    one_stands_out = Text("Logit spread of each head; one stands out.", "每个头的 logit 标准差；有一个格外突出。")
    return conclude(
        every and freezes,
        _sentence(seen),
        _measured(seen, every, typical, freezes),
        (_spread_figure(seen), _entropy_figure(seen)),
        [heads_map("trained-heads", one_stands_out, HEAD_SPREAD, spread)],
        under=typical and freezes,
        condition=CONDITION.format(**_condition(seen)),
    )


def _within(values: list[float]) -> bool:
    found = interval(values)
    return found.low > 1 / NEAR and found.high < NEAR


class _Passage:
    """Measurements of one passage: moments of q and k [layers, heads], and rows with and without 1/√d."""

    def __init__(self, heads: minilm.Heads) -> None:
        q, k = heads.q, heads.k
        self.n, d = q.shape[2], q.shape[3]
        self.var_q, self.var_k = q.var((2, 3)), k.var((2, 3))
        self.mean_q, self.mean_k = (x.mean(2).square().mean(2).sqrt() for x in (q, k))
        self.kurtosis = (_kurtosis(q) + _kurtosis(k)) / 2
        self.correlation = _correlation(q, k)
        self.spread = heads.spread()
        # Isotropic q and k of these sizes: given a query the keys' logits vary by |q|²·Var k.
        self.naive = heads.scale * (q.square().mean((2, 3)) * k.var(2).mean(2) * d).sqrt()
        self.scaled, self.unscaled = (row_stats(q, k, rule) for rule in (scale.InverseSqrt(), scale.NoScale()))
        self.critical = theory.freezing_threshold(self.n)
        both = torch.stack([self.var_q, self.var_k])
        self.near = ((both > 1 / NEAR) & (both < NEAR)).all(0).double().mean().item()
        before, after = (_median(stats.entropy_fraction) for stats in (self.scaled, self.unscaled))
        self.lost = 1 - after / before

    def median(self, name: str) -> float:
        """Over all heads."""
        return _median(getattr(self, name))


def _median(values: Tensor) -> float:
    return values.flatten().quantile(0.5).item()


def _tenth(values: Tensor) -> float:
    return values.flatten().quantile(0.1).item()


def _kurtosis(x: Tensor) -> Tensor:
    """Kurtosis of the components, each about its own mean; 3 for a normal distribution."""
    centred = x - x.mean(2, keepdim=True)
    scaled = centred / centred.square().mean(2, keepdim=True).sqrt()
    return scaled.pow(4).mean((2, 3))


def _correlation(q: Tensor, k: Tensor) -> Tensor:
    """Correlation between qᵢ and kᵢ of the same token, averaged over the dimensions."""
    a, b = (x - x.mean(2, keepdim=True) for x in (q, k))
    return ((a * b).mean(2) / (a.square().mean(2) * b.square().mean(2)).sqrt()).mean(2)


def _measured(seen: list[_Passage], every: bool, typical: bool, freezes: bool) -> tuple[Measured, ...]:
    widest = [one.spread.max().item() for one in seen]
    past = [(one.unscaled.logit_std.mean(-1) > one.critical).double().mean().item() for one in seen]
    naive = interval([one.median("naive") for one in seen]).mean
    return (
        over_seeds(NEAR_ONE, [one.near for one in seen], document=1.0, holds=every),
        over_seeds(VAR_Q, [one.median("var_q") for one in seen], document=1.0, holds=typical),
        over_seeds(VAR_K, [one.median("var_k") for one in seen], document=1.0, holds=typical),
        over_seeds(LARGEST, [one.var_q.max().item() for one in seen]),
        over_seeds(MEAN_Q, [one.median("mean_q") for one in seen], document=0.0),
        over_seeds(MEAN_K, [one.median("mean_k") for one in seen], document=0.0),
        over_seeds(CORRELATION, [one.median("correlation") for one in seen], document=0.0),
        over_seeds(KURTOSIS, [one.median("kurtosis") for one in seen], predicted=3.0),
        over_seeds(SPREAD, [one.median("spread") for one in seen], predicted=naive, document=1.0),
        over_seeds(ALIGNED, [_median(one.spread / one.naive) for one in seen], predicted=1.0),
        over_seeds(WIDEST, widest),
        over_seeds(BEYOND, [wide / one.critical for wide, one in zip(widest, seen, strict=True)]),
        over_seeds(ENTROPY, [_median(one.scaled.entropy_fraction) for one in seen]),
        over_seeds(ENTROPY_WITHOUT, [_median(one.unscaled.entropy_fraction) for one in seen]),
        over_seeds(LOST, [one.lost for one in seen], holds=freezes),
        over_seeds(GATE, [_tenth(one.scaled.jacobian_trace) for one in seen], geometric),
        over_seeds(GATE_WITHOUT, [_tenth(one.unscaled.jacobian_trace) for one in seen], geometric),
        over_seeds(PAST, past),
    )


def _spread_figure(seen: list[_Passage]) -> Figure:
    spread, naive = (
        torch.stack([getattr(one, name) for one in seen]).mean(0).flatten() for name in ("spread", "naive")
    )
    order = spread.argsort()
    ranks = range(1, len(order) + 1)
    critical = interval([one.critical for one in seen]).mean
    isotropic = Text("isotropic q and k of the same size", "同样大小的各向同性 q、k")
    lines = (
        curve(MEASURED, ranks, spread[order].tolist()),
        predicted(isotropic, ranks, naive[order].tolist()),
        predicted(Text("σ_c, where the softmax freezes", "σ_c：softmax 冻结处"), ranks, lambda _: critical),
        curve(Text("the documents' assumption", "文档的假设"), ranks, lambda _: 1.0, "document"),
    )
    caption = Text(
        "All 72 heads in order of their logit spread. Most lie between 1 and σ_c, above the assumed 1; one head of "
        "layer 0 lies far beyond σ_c and works as an arg-max.",
        "全部 72 个头按 logit 标准差排列。大多在 1 与 σ_c 之间，高于假设的 1；第 0 层有一个头远超 σ_c，形同 arg-max。",
    )
    return figure("trained-spread", caption, Text("head, by rank", "头（按排名）"), HEAD_SPREAD, lines, log="y")


def _entropy_figure(seen: list[_Passage]) -> Figure:
    layers = range(seen[0].spread.shape[0])
    lines = []
    for name, label in (("scaled", Text("with 1/√d", "除以 √d")), ("unscaled", Text("without", "不除"))):
        values = [[_median(getattr(one, name).entropy_fraction[layer]) for one in seen] for layer in layers]
        lines.append(line_over_seeds(label, layers, values))
    caption = Text(
        "The same q and k with and without 1/√32: without it every layer's rows collapse.",
        "同样的 q、k，除与不除 √32：不除时每一层都坍缩。",
    )
    y_label = Text("median entropy ÷ ln n (1)", "熵 ÷ ln n 的中位数（1）")
    return figure("trained-entropy", caption, LAYER, y_label, lines)


def _condition(seen: list[_Passage]) -> dict[str, str]:
    medians = ("var_q", "var_k", "spread")
    found = {name: numeral(interval([one.median(name) for one in seen]).mean, 2) for name in medians}
    largest = numeral(interval([one.var_q.max().item() for one in seen]).mean, 2)
    return {**found, "near": percent(interval([one.near for one in seen]).mean, 0), "largest": largest}


def _sentence(seen: list[_Passage]) -> Text:
    widest = interval([(one.spread.max() / one.critical).item() for one in seen]).mean
    before, after = (
        interval([_median(getattr(one, name).entropy_fraction) for one in seen]).mean for name in ("scaled", "unscaled")
    )
    values = _condition(seen) | {"widest": numeral(widest, 2), "before": numeral(before, 2), "after": numeral(after, 2)}
    return Text(
        "In all-MiniLM-L6-v2 the median head has Var q {var_q} and Var k {var_k}, but only {near} of heads are within "
        "a factor of 2 of 1, and the widest spreads {widest} σ_c; without 1/√d the median row's entropy falls from "
        "{before} to {after} of ln n.",
        "all-MiniLM-L6-v2 中，中位的头 Var q 为 {var_q}、Var k 为 {var_k}，但只有 {near} 的头在 1 的 2 倍以内，最大的头"
        "标准差达 {widest} σ_c；不除以 √d 时，行熵的中位数从 ln n 的 {before} 降到 {after}。",
    ).format(**values)


HEAD_SPREAD = Text("logit spread (nats)", "logit 标准差（nat）")
NEAR_ONE = Text("share of heads with Var q and Var k between ½ and 2", "Var q 与 Var k 都在 ½ 到 2 之间的头所占比例")
VAR_Q = Text("Var q, median head", "Var q，各头中位数")
VAR_K = Text("Var k, median head", "Var k，各头中位数")
LARGEST = Text("largest Var q of any head", "各头中最大的 Var q")
MEAN_Q = Text("size of the component means of q, median head", "q 各分量均值的大小，各头中位数")
MEAN_K = Text("size of the component means of k, median head", "k 各分量均值的大小，各头中位数")
CORRELATION = Text("correlation of qᵢ and kᵢ of one token, median head", "同一词元的 qᵢ 与 kᵢ 的相关系数，各头中位数")
KURTOSIS = Text("kurtosis of the components, median head", "各分量的峰度，各头中位数")
SPREAD = Text("logit spread, median head (nats)", "logit 标准差，各头中位数（nat）")
ALIGNED = Text(
    "measured spread ÷ that of isotropic q and k, median head", "实测标准差 ÷ 各向同性时的标准差，各头中位数"
)
WIDEST = Text("logit spread, widest head (nats)", "logit 标准差，最大的头（nat）")
BEYOND = Text("widest head ÷ freezing threshold σ_c", "最大的头 ÷ 冻结阈值 σ_c")
ENTROPY = Text("entropy ÷ ln n, median row, with 1/√d", "熵 ÷ ln n，行中位数，除以 √d")
ENTROPY_WITHOUT = Text("entropy ÷ ln n, median row, without", "熵 ÷ ln n，行中位数，不除")
LOST = Text("share of the median entropy lost without 1/√d", "不除以 √d 时熵的中位数损失的比例")
GATE = Text("gate, tenth percentile of rows, with 1/√d", "闸门，行的第 10 百分位，除以 √d")
GATE_WITHOUT = Text("gate, tenth percentile of rows, without", "闸门，行的第 10 百分位，不除")
PAST = Text("share of heads past σ_c without 1/√d", "不除以 √d 时超过 σ_c 的头所占比例")
CONDITION = Text(
    "For the median head (Var q {var_q}, Var k {var_k}, logit spread {spread}), not for every head: {near} of heads "
    "have both variances between ½ and 2, and the largest Var q is {largest}. That 1/√d is needed holds for the model "
    "as a whole.",
    "对中位的头成立（Var q {var_q}，Var k {var_k}，logit 标准差 {spread}），并非对每个头：两个方差都在 ½ 到 2 之间的头"
    "占 {near}，最大的 Var q 为 {largest}。而「需要 1/√d」对整个模型成立。",
)
STEPS = (
    Step(
        Text(
            "For one query the logits of the keys vary by the covariance of the keys in the query's direction.",
            "对一个查询，各键的 logit 的方差由键的协方差在该查询方向上的大小决定。",
        ),
        equation(sub("Var", "j"), row(sup("scale", "2"), "q^⊤ Σ_k q")),
    ),
    Step(
        Text("Averaged over queries this is exact.", "对查询取平均，此式精确成立。"),
        equation("σ^2", row(sup("scale", "2"), "tr ( Σ_k E [ q q^⊤ ] )")),
    ),
    Step(
        Text(
            "Only if neither has a preferred direction does it become the product of the sizes; with variance 1, it is "
            "1.",
            "只有两者都没有偏好的方向时，它才化为大小之积；方差为 1 时即为 1。",
        ),
        equation("σ", row("scale ·", root("d"), "· σ_q σ_k")),
    ),
)
ERRATA = (
    Erratum(
        "000",
        Text("q and k have mean 0 and variance 1.", "向量 q 和 k 的均值为 0，方差为 1。"),
        Text(
            "An assumption for the start of training. In this trained model the component means are more than half as "
            "large as the standard deviations, the variances of heads run from below ½ to above 7, and q and k of a "
            "token are correlated.",
            "这只是训练开始时的假设。在这个训练好的模型里，分量均值超过标准差的一半，各头的方差从不到 ½ 到超过 7，同一"
            "词元的 q 与 k 也彼此相关。",
        ),
    ),
)
CLAIM = Claim(
    id="trained-model",
    title=Text("A trained model still needs 1/√d", "训练好的模型仍然需要 1/√d"),
    question=Text(
        "Does the textbook assumption hold in a model that people use?", "教科书的假设在人们真正使用的模型里成立吗？"
    ),
    statement=Text(
        "The components of q and k have mean 0 and variance 1, so 1/√d_k brings the logits to variance 1; without it "
        "attention freezes. (The documents' assumption, put to a trained model.)",
        "q、k 的各分量均值为 0、方差为 1，因此 1/√d_k 使 logit 的方差为 1；没有它，注意力会冻结。（把文档的假设用于训练"
        "好的模型。）",
    ),
    sources=("000", "001", "002", "003", "004"),
    hypothesis=Text(
        "In every head of all-MiniLM-L6-v2 Var q and Var k lie between ½ and 2, and without 1/√d the median row loses "
        "more than half of its entropy (95 % intervals over passages).",
        "在 all-MiniLM-L6-v2 的每个头中，Var q 与 Var k 都在 ½ 与 2 之间；不除以 √d 时，中位的行失去一半以上的熵（按文"
        "段的 95 % 区间）。",
    ),
    expected="conditional",
    experiment=experiment,
    quick={"tokens": 128, "passages": 6},
    full={"tokens": 256},
    steps=STEPS,
    errata=ERRATA,
    needs=minilm.NEEDS,
)
