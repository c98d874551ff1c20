"""What a score costs: additive and dot-product attention counted operation by operation, and timed beside it."""

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from isotherm import ops
from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.figures import D_K, MILLISECONDS, POSITIONS, curve, figure
from isotherm.lab.interval import power
from isotherm.lab.mathml import equation, row, sub, total
from isotherm.lab.numerals import numeral
from isotherm.lab.stopwatch import seconds, timed
from isotherm.lab.tally import Tally
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Line, Measured, Step


class ScoreCosts(NamedTuple):
    """Operation counts of both scores for n queries and n keys of d dimensions."""

    n: int
    d: int
    additive: Tally
    dot: Tally


def experiment(setting: Setting) -> Result:
    """Count the operations of both scores at every size, and time them."""
    costs = [_count(setting, n, d) for n in setting["lengths"] for d in setting["dimensions"]]
    same = all(cost.additive.multiply_adds == cost.dot.multiply_adds for cost in costs)
    hidden = all(cost.additive.tanhs == cost.n**2 * cost.d and cost.dot.tanhs == 0 for cost in costs)
    more = all(cost.additive.written > cost.dot.written for cost in costs)
    growth = power(setting["dimensions"], [_ratio(cost) for cost in costs if cost.n == setting["lengths"][-1]])
    setting.progress(0.3)
    timings, timing_figures = _timings(setting)
    last = costs[-1]
    macs, tanhs, ratio = numeral(last.dot.multiply_adds), numeral(last.additive.tanhs), f"{_ratio(last):.0f}"
    return conclude(
        same and hidden and more and growth > 0,
        SENTENCE.format(n=last.n, d=last.d, macs=macs, tanhs=tanhs, ratio=ratio),
        _measured(last, same, hidden, more, growth),
        [_figure(costs, setting)],
        timings=timings,
        timing_figures=timing_figures,
    )


def _ratio(cost: ScoreCosts) -> float:
    return cost.additive.written / cost.dot.written


def _states(setting: Setting, n: int, d: int) -> tuple[Tensor, ops.Additive, ops.Multiplicative]:
    """States of one sentence, and the two scores with the same projections; v has variance 1/d."""
    generator = setting.generator(n, d)
    additive, dot = ops.Additive(d, d, d), ops.Multiplicative(d, d, d)
    for module in (additive.query, additive.key, additive.out):
        module.weight.data = torch.randn(module.weight.shape, generator=generator) / sqrt(d)
    dot.load_state_dict({name: value for name, value in additive.state_dict().items() if name != "out.weight"})
    states = torch.randn(1, n, d, generator=generator)
    return states.to(setting.device), additive.to(setting.device), dot.to(setting.device)


def _attend(dot: ops.Multiplicative, states: Tensor) -> Tensor:
    """The multiplicative score's own attention by matrix products, every one of them in sight of the tally."""
    q, k, v = (x.unsqueeze(1) for x in (dot.query(states), dot.key(states), states))
    return ops.attention(q, k, v, scale=dot.rule, impl="reference").output


@torch.no_grad()
def _count(setting: Setting, n: int, d: int) -> ScoreCosts:
    states, additive, dot = _states(setting, n, d)
    with Tally() as first:
        additive(states, states)
    with Tally() as second:
        _attend(dot, states)
    return ScoreCosts(n, d, first, second)


def _measured(cost: ScoreCosts, same: bool, hidden: bool, more: bool, growth: float) -> tuple[Measured, ...]:
    n, d, additive, dot = cost
    sums = 2 * n * d * d + 2 * n * n * d
    counted = (
        Measured(AT_SIZE.format(n=n, d=d, what=COUNTED[name]), value, predicted=wanted, holds=holds)
        for name, value, wanted, holds in (
            ("additive-sums", additive.multiply_adds, sums, same),
            ("dot-sums", dot.multiply_adds, sums, same),
            ("additive-tanhs", additive.tanhs, n * n * d, hidden),
            ("dot-tanhs", dot.tanhs, 0, hidden),
            ("written", _ratio(cost), None, more),
            ("largest", additive.largest / dot.largest, None, None),
        )
    )
    return (*counted, Measured(GROWTH, growth, holds=growth > 0))


def _figure(costs: list[ScoreCosts], setting: Setting) -> Figure:
    lines = []
    for n in setting["lengths"]:
        at_n = [cost for cost in costs if cost.n == n]
        lines.append(curve(Text(f"n = {n}", f"n = {n}"), [cost.d for cost in at_n], map(_ratio, at_n)))
    caption = Text(
        "Bytes the additive score writes for each byte of the dot product, at equal multiply-adds. The hidden layer "
        "has d_k numbers for every pair of positions, so the gap widens with d_k: additive attention does not become "
        "more efficient.",
        "乘加次数相同时，加性打分写出的字节数是点积的多少倍。每一对位置都有 d_k 个隐藏单元，因此差距随 d_k 扩大：加性注"
        "意力并不会变得更高效。",
    )
    return figure("cost-bytes", caption, D_K, Text("bytes written, ratio (1)", "写出字节数之比（1）"), lines, log="xy")


@torch.no_grad()
def _timings(setting: Setting) -> tuple[tuple[Measured, ...], tuple[Figure, ...]]:
    """The scores alone, three ways, over d_k at one n and over n at one d_k."""
    n, d = setting["timed_length"], setting["timed_dimension"]
    over_d = [(n, each) for each in setting["dimensions"]]
    over_n = [(each, d) for each in setting["lengths"]]
    found = {size: _time(setting, *size) for size in dict.fromkeys(over_d + over_n)}
    timings = tuple(
        timed(AT.format(name=WAYS[name], n=at_n, d=at_d), times)
        for (at_n, at_d), ways in found.items()
        for name, times in ways.items()
    )

    def curves(sizes: list[tuple[int, int]], axis: int) -> tuple[Line, ...]:
        x, middle = [size[axis] for size in sizes], setting["repeats"] // 2
        return tuple(curve(way, x, [1e3 * found[size][name][middle] for size in sizes]) for name, way in WAYS.items())

    by_d = figure("cost-time-d", BY_D, D_K, MILLISECONDS, curves(over_d, 1), log="xy")
    by_n = figure("cost-time-n", BY_N, POSITIONS, MILLISECONDS, curves(over_n, 0), log="xy")
    return timings, (by_d, by_n)


def _time(setting: Setting, n: int, d: int) -> dict[str, list[float]]:
    """Times of the scores computed as one matrix product, as elementwise products, and by the additive hidden layer."""
    states, additive, dot = _states(setting, n, d)
    q, k = dot.query(states), dot.key(states)
    ways: dict[str, Callable[[], Tensor]] = {
        "product": lambda: q @ k.transpose(1, 2),
        "apart": lambda: (q.unsqueeze(2) * k.unsqueeze(1)).sum(-1),
        "additive": lambda: additive.logits(states, states),
    }
    return {name: seconds(work, setting["repeats"], setting.device) for name, work in ways.items()}


AT_SIZE = Text("at n = {n}, d_k = {d}: {what}", "n = {n}、d_k = {d} 时：{what}")
COUNTED = {
    "additive-sums": Text("multiply-adds, additive", "加性的乘加次数"),
    "dot-sums": Text("multiply-adds, dot product", "点积的乘加次数"),
    "additive-tanhs": Text("tanh evaluations, additive", "加性的 tanh 次数"),
    "dot-tanhs": Text("tanh evaluations, dot product", "点积的 tanh 次数"),
    "written": Text("bytes written, additive ÷ dot product", "写出字节数之比（加性 ÷ 点积）"),
    "largest": Text("largest tensor, additive ÷ dot product", "最大张量之比（加性 ÷ 点积）"),
}
GROWTH = Text("power of d_k in the ratio of bytes written", "写出字节数之比随 d_k 的幂次")
WAYS = {
    "product": Text("dot product, one matrix product", "点积：一次矩阵乘法"),
    "apart": Text("dot product, multiplied and summed apart", "点积：逐元素相乘再求和"),
    "additive": Text("additive, with its hidden layer", "加性：含隐藏层"),
}
BY_D = Text(
    "The n × n scores, three ways. The two dot products do the same multiplications: what lies between them is the "
    "optimised matrix product; what lies above is the tanh.",
    "计算 n × n 个打分的三种做法。两条点积曲线做的乘法完全相同，两者之差就是矩阵乘法的优化；再往上是 tanh 的代价。",
)
BY_N = Text(
    "The same over the number of positions: all three grow like n², and keep their distance.",
    "同样的时间随位置数的变化：三者都按 n² 增长，差距保持不变。",
)
AT = Text("{name}, n = {n}, d_k = {d} (ms)", "{name}，n = {n}，d_k = {d}（毫秒）")
SENTENCE = Text(
    "At n = {n} and d_k = {d} both need {macs} multiply-adds, but additive attention also needs {tanhs} tanh "
    "evaluations and writes {ratio} times the bytes, because its hidden layer cannot be one matrix product.",
    "n = {n}、d_k = {d} 时两者都要 {macs} 次乘加，但加性注意力还要 {tanhs} 次 tanh，写出的字节数是点积的 {ratio} 倍，因"
    "为它的隐藏层无法写成一次矩阵乘法。",
)
STEPS = (
    Step(
        Text(
            "Both scores project n queries and n keys (2nd² multiply-adds), combine d_k products for each of n² pairs, "
            "and mix n² values of d_k numbers.",
            "两种打分都要投影 n 个查询和 n 个键（2nd² 次乘加），为 n² 对位置各合并 d_k 个乘积，再混合 n² 份 d_k 维的"
            "值。",
        ),
        equation(sub("N", "×+"), row("2 n d^2 + 2 n^2 d")),
    ),
    Step(
        Text(
            "The dot product's middle term is one matrix product, Q Kᵀ: d_k products are summed where they are made, "
            "and only n² sums are written.",
            "点积的中间一项就是一次矩阵乘法 Q Kᵀ：d_k 个乘积在原处累加，只写出 n² 个和。",
        ),
        equation("S", "Q K^⊤"),
    ),
    Step(
        Text(
            "The additive score has a tanh between the sum and v, so d_k hidden numbers must exist for every pair.",
            "加性打分在求和与 v 之间隔着 tanh，因此每一对位置都必须有 d_k 个隐藏数。",
        ),
        equation("S_ij", row(total("u = 1", "d"), "v_u tanh ( a_iu + b_ju )")),
    ),
)
ERRATA = (
    Erratum(
        "000",
        Text(
            "At small d_k the two do equally well, but as d_k grows the *efficiency* of the additive score rises "
            "markedly.",
            "在 d_k 较小时两者的效果接近，但是随着 d_k 增大，Add 效率会明显提高。",
        ),
        Text(
            "It is the quality of the additive score that pulls ahead of an unscaled dot product (Vaswani et al. 2017, "
            "§3.2.1). Its efficiency does not: the ratio of bytes written grows with d_k.",
            "随 d_k 增大而领先于未缩放点积的是加性打分的效果（Vaswani 等 2017，§3.2.1），不是效率：它写出的字节数之比随"
            " d_k 增大。",
        ),
    ),
)
CLAIM = Claim(
    id="additive-versus-dot-cost",
    title=Text("The dot product is the cheaper score", "点积打分更便宜"),
    question=Text("Why multiply vectors instead of adding them?", "为什么用相乘而不是相加来打分？"),
    statement=Text(
        "The additive score looks simple but wraps a tanh and v around it, a whole hidden layer; matrix multiplication "
        "has very mature fast implementations. So dot-product attention is cheaper.",
        "Add 方法虽然计算简单，但是外面套着 tanh 和 v，相当于一个完整的隐层；而矩阵乘法已经有了非常成熟的加速实现。因此"
        "点积注意力更便宜。",
    ),
    sources=("000",),
    hypothesis=Text(
        "At every n and d_k tried: the multiply-adds are equal, additive attention evaluates n²·d_k tanh and the dot "
        "product none, additive attention writes more bytes, and the ratio of bytes grows with d_k. Counts, so no seed "
        "matters.",
        "在试过的每个 n 和 d_k 上：乘加次数相等；加性要算 n²·d_k 次 tanh，点积为零；加性写出更多字节，且字节数之比随 "
        "d_k 增大。这些都是计数，与随机种子无关。",
    ),
    expected="confirmed",
    experiment=experiment,
    quick={
        "lengths": (32, 64, 128, 256),
        "dimensions": (16, 32, 64, 128, 256),
        "timed_length": 128,
        "timed_dimension": 64,
        "repeats": 5,
    },
    full={
        "lengths": (32, 64, 128, 256, 512),
        "dimensions": (16, 32, 64, 128, 256, 512),
        "timed_length": 256,
        "repeats": 15,
    },
    steps=STEPS,
    errata=ERRATA,
)
