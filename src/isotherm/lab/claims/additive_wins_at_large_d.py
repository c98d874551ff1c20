"""Additive against unscaled dot product, small d_k and large: trained, from two starts."""

from math import sqrt

from isotherm.lab import contest
from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.interval import interval, over_seeds
from isotherm.lab.mathml import equation, frac, root
from isotherm.lab.numerals import signed
from isotherm.language import Text
from isotherm.record import Erratum, Measured, Step
from isotherm.theory import freezing_threshold

NAME = "wins"
"""The first part of the names of this claim's figures."""
MARGIN = 0.25
"""nats a word: less is a match, more is a loss."""
SCORES = ("multiplicative", "additive")
STARTS = ("unit", "xavier")


def experiment(setting: Setting) -> Result:
    """Train both scores at a small and a large d_k from both starts; recorded larger runs beside."""
    entries = contest.hold(setting, SCORES, STARTS)
    small, large = setting["dimensions"][0], setting["dimensions"][-1]
    leads = {(start, d): _lead(entries, start, d) for start in STARTS for d in (small, large)}
    holds = {
        **{(start, small): interval(leads[start, small]).high < MARGIN for start in STARTS},
        **{(start, large): interval(leads[start, large]).low > MARGIN for start in STARTS},
    }
    unit = holds["unit", small] and holds["unit", large]
    recorded, figures, ends = contest.recorded(NAME, SCORES, setting.records, "additive", "multiplicative")
    curves = (contest.curves(NAME, entries, setting["dimensions"], start) for start in STARTS)
    return conclude(
        all(holds.values()),
        _sentence(small, large, leads),
        (*_measured(entries, leads, holds), *recorded),
        (*curves, contest.britz(NAME), *figures),
        under=unit,
        condition=CONDITION.format(d=large),
        recorded=ends,
    )


def _lead(entries: dict[contest.Key, contest.Contender], start: str, d: int) -> list[float]:
    return contest.lead(entries, ("multiplicative", d, start), ("additive", d, start))


Leads = dict[tuple[str, int], list[float]]


def _measured(
    entries: dict[contest.Key, contest.Contender], leads: Leads, holds: dict[tuple[str, int], bool]
) -> tuple[Measured, ...]:
    numbers = []
    for (start, d), values in leads.items():
        called = contest.NAMES[start]
        numbers.append(over_seeds(LEAD.format(d=d, start=called), values, holds=holds[start, d]))
        numbers.append(contest.size(entries, ("multiplicative", d, start), ("additive", d, start)))
        for score in SCORES:
            expected = sqrt(d) if (score, start) == ("multiplicative", "unit") else None
            numbers += contest.numbers(entries, (score, d, start), expected, AFTER.format(start=called))
    return tuple(numbers)


def _sentence(small: int, large: int, leads: Leads) -> Text:
    us, ul, xs, xl = (signed(interval(leads[start, d]).mean) for start in STARTS for d in (small, large))
    return Text(
        "Where q and k start with unit variance, additive attention leads the unscaled dot product by {us} nats a word "
        "at d_k = {small} and by {ul} at {large}; from Xavier's start, which shrinks W as d_k grows, by {xs} and {xl}.",
        "q、k 以单位方差起步时，加性注意力在 d_k = {small} 时领先未缩放点积 {us} nat/词，在 {large} 时领先 {ul}；而从 "
        "Xavier 起步（d_k 越大 W 越小）则为 {xs} 与 {xl}。",
    ).format(small=small, large=large, us=us, ul=ul, xs=xs, xl=xl)


LEAD = Text(
    "nats a word by which additive leads the unscaled dot product, d_k = {d}, {start}",
    "加性领先未缩放点积的 nat/词，d_k = {d}，{start}",
)
AFTER = Text(", {start}", "，{start}")
CONDITION = Text(
    "q and k start with unit variance at every d_k (a logit spread that grows like √d_k). From Xavier's initialisation "
    "of W in a model of fixed width, where Var W falls as d_k grows, the unscaled dot product does not lose at "
    "d_k = {d} here: the initialisation has done the scaling.",
    "q、k 在每个 d_k 下都以单位方差起步（logit 标准差随 √d_k 增长）。若模型宽度固定、用 Xavier 初始化 W（其方差随 d_k 增"
    "大而减小），未缩放点积在这里 d_k = {d} 时并不落后：初始化已经替它做了缩放。",
)
STEPS = (
    Step(
        Text(
            "With q and k of unit variance the unscaled logits spread like √d_k; somewhat less here, because the keys "
            "of one sentence have a part in common.",
            "q、k 方差为 1 时，未缩放的 logit 按 √d_k 散开；这里略小一些，因为同一句子的各个键有共同的成分。",
        ),
        equation("σ", root("d")),
    ),
    Step(
        Text(
            f"Over n = 5 source words the softmax freezes at σ_c = {freezing_threshold(5):.1f}, that is at d_k = "
            f"{freezing_threshold(5) ** 2:.1f}.",
            f"对 n = 5 个源词，softmax 在 σ_c = {freezing_threshold(5):.1f} 处冻结，即 d_k = "
            f"{freezing_threshold(5) ** 2:.1f}。",
        ),
        equation("σ_c", root("2 ln n")),
    ),
    Step(
        Text(
            "Xavier's W from `width` to d_k dimensions has this variance; for d_k ≫ width it makes q·k smaller by d_k, "
            "more than 1/√d_k does.",
            "从 width 维到 d_k 维的 Xavier 权重方差如下；d_k ≫ width 时，它使 q·k 缩小 d_k 倍，比 1/√d_k 还多。",
        ),
        equation("Var ( W )", frac("2", "width + d_k")),
    ),
)
ERRATA = (
    Erratum(
        "002",
        Text(
            "When d is large, unscaled dot-product attention does worse than additive attention.",
            "当维度太大时，（没有除以根号 d 的）点积注意力效果不如加法注意力。",
        ),
        Text(
            "When d is large and q and k keep unit variance. An initialisation that shrinks with d hides the effect, "
            "and the table the claim rests on (Britz et al. 2017) shows it only at 1024 of its four dimensions.",
            "应为：当 d 很大且 q、k 保持单位方差时。随 d 缩小的初始化会掩盖这一现象；其所依据的表格（Britz 等 2017）四"
            "个维度中也只在 1024 处显现。",
        ),
    ),
)
CLAIM = Claim(
    id="additive-wins-at-large-d",
    title=Text("Unscaled dot products lose to additive attention at large d", "维度大时，未缩放点积不如加性注意力"),
    question=Text("Does it matter in training, or only on paper?", "这在训练中真的要紧，还是只在纸面上？"),
    statement=Text(
        "At small d_k additive and (unscaled) dot-product attention do equally well; as d_k grows, dot-product "
        "attention falls behind, because its large values push the softmax where it has almost no gradient.",
        "d_k 较小时，加性注意力与（未缩放的）点积注意力效果接近；d_k 增大后点积不如加性，因为点积的数值变大，把 "
        "softmax 推向梯度极小的区域。",
    ),
    sources=("000", "002"),
    hypothesis=Text(
        "A recurrent translator, trained with each score on the same data: at the small d_k the dot product's held-out "
        "loss is less than 0.25 nats a word above the additive one's, at the large d_k more (95 % intervals of the "
        "paired difference), both when q and k start with unit variance and from Xavier's initialisation.",
        "同样的数据、不同打分的循环翻译模型：d_k 小时，点积的留出损失比加性高不到 0.25 nat/词，d_k 大时高出更多（配对差"
        "的 95 % 区间）；无论 q、k 以单位方差起步还是 Xavier 初始化都如此。",
    ),
    expected="conditional",
    experiment=experiment,
    quick={**contest.QUICK, "seeds": 8},
    full=contest.FULL,
    steps=STEPS,
    errata=ERRATA,
)
