"""q·k has variance d: for which vectors, and by which formula where it has not."""

from math import sqrt

from torch import Tensor

from isotherm import scale
from isotherm.lab.claim import Claim, Result, Setting, at_most, conclude
from isotherm.lab.departures import DEPARTURES
from isotherm.lab.dots import DISTRIBUTIONS, BlockPlan, DotMoments, independent, moments, multiplier, normal
from isotherm.lab.figures import D, curve, figure, level, predicted
from isotherm.lab.interval import groups, interval, line_over_seeds, over_seeds
from isotherm.lab.mathml import equation, row, sub, sup, total
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.record import Erratum, Figure, Measured, Step

ONE_PERCENT = 0.01
CORRECTED = 0.05
"""How near a corrected formula must come: its departures have heavier tails and fewer draws."""


def experiment(setting: Setting) -> Result:
    """Measure mean and variance for four distributions and every d, and for each departure from the assumptions."""
    dimensions = setting["dimensions"]
    found: dict[tuple[int, int], DotMoments] = {}
    for i, components in enumerate(DISTRIBUTIONS):
        for d in dimensions:
            plan = BlockPlan(d, setting["components"])
            found[i, d] = moments(setting, plan, independent(components.draw), scale.NoScale(), i, d)
            setting.progress(0.8 * len(found) / (len(DISTRIBUTIONS) * len(dimensions)))
    numbers = [_cell(i, d, found[i, d]) for i, d in found]
    kept = all(number.holds for number in numbers)
    departures = {
        (i, d): _paired(setting, i, d) for i in range(len(DEPARTURES)) for d in setting["departure_dimensions"]
    }
    broken = [number for (i, d), pairs in departures.items() for number in _departure(i, d, pairs)]
    off = [_distance(i, d, pairs) for (i, d), pairs in departures.items()]
    corrected = at_most(FORMULAS, max(off), CORRECTED, predicted=0.0)
    everywhere = all(number.holds for number in broken)
    lengths, tails = _lengths(setting), _tails(setting)
    return conclude(
        kept and everywhere,
        _sentence(found, departures),
        (*numbers, *broken, corrected, *lengths, tails),
        (_figure(found, dimensions), _departure_figure(departures, setting["departure_dimensions"])),
        under=kept and corrected.holds is True,
        condition=CONDITION,
    )


def _cell(i: int, d: int, found: DotMoments) -> Measured:
    variance = [value / d for value in found.variance]
    centred = abs(float(found.mean.mean())) <= ONE_PERCENT * sqrt(d)
    holds = centred and abs(interval(variance).mean - 1) <= ONE_PERCENT
    name = Text("Var(q·k)/d, {kind}, d = {d}", "Var(q·k)/d，{kind}，d = {d}")
    return over_seeds(name.format(kind=DISTRIBUTIONS[i].name, d=d), variance, predicted=1.0, document=1.0, holds=holds)


def _paired(setting: Setting, i: int, d: int) -> Tensor:
    """One dot product for each independent pair."""
    q, k = DEPARTURES[i].draw((setting["departure_components"] // d, d), setting.generator(100 + i, d))
    return multiplier(scale.NoScale(), d, 1) * (q * k).sum(-1)


def _squares(pairs: Tensor) -> list[float]:
    return groups((pairs - pairs.mean()).square())


def _departure(i: int, d: int, pairs: Tensor) -> list[Measured]:
    """Whether the statement holds where its assumptions do not; the mean is shown where it should not be 0."""
    departure = DEPARTURES[i]
    right, squares = departure.moments(d), _squares(pairs)
    name = Text("Var(q·k), {name}, d = {d}", "Var(q·k)，{name}，d = {d}").format(name=departure.name, d=d)
    holds = abs(interval(squares).mean / d - 1) <= CORRECTED
    numbers = [over_seeds(name, squares, predicted=right.variance, document=departure.document(d), holds=holds)]
    if right.mean:
        name = Text("mean of q·k, {name}, d = {d}", "q·k 的均值，{name}，d = {d}").format(name=departure.name, d=d)
        holds = abs(float(pairs.mean())) <= CORRECTED * sqrt(d)
        numbers.append(over_seeds(name, groups(pairs), predicted=right.mean, document=0.0, holds=holds))
    return numbers


def _distance(i: int, d: int, pairs: Tensor) -> float:
    """How far mean and variance lie from the corrected formula, as shares of its spread and of its variance."""
    right = DEPARTURES[i].moments(d)
    variance, mean = interval(_squares(pairs)).mean, float(pairs.mean())
    return max(abs(variance / right.variance - 1), abs(mean - right.mean) / sqrt(right.variance))


def _lengths(setting: Setting) -> tuple[Measured, ...]:
    """Given q, the variance over keys is |q|²: it differs from query to query unless q is normalised."""
    d = setting["departure_dimensions"][-1]
    name = Text(
        "spread of |q|²/d between queries (standard deviation), {kind}, d = {d}",
        "各查询 |q|²/d 的标准差，{kind}，d = {d}",
    )
    cases = (
        (Text("normal q", "正态的 q"), independent(normal), sqrt(2 / d)),
        (DEPARTURES[3].name, DEPARTURES[3].draw, 0.0),
    )
    shape = (setting["departure_components"] // d, d)
    numbers = []
    for i, (kind, draw, expected) in enumerate(cases):
        q, _ = draw(shape, setting.generator(200 + i))
        spread = (q.square().sum(-1) / d).reshape(32, -1).std(-1).tolist()
        numbers.append(over_seeds(name.format(kind=kind, d=d), spread, predicted=expected))
    return tuple(numbers)


def _tails(setting: Setting) -> Measured:
    """The fourth moment: q·k is a mixture of normals of different widths, not a normal."""
    d = setting["departure_dimensions"][0]
    q, k = independent(normal)((setting["departure_components"] // d, d), setting.generator(300))
    s = (q * k).sum(-1) / sqrt(d)
    name = Text(
        "kurtosis of q·k, normal q and k, d = {d} (a normal has 3)", "q·k 的峰度，q、k 正态，d = {d}（正态分布为 3）"
    )
    return over_seeds(name.format(d=d), groups(s**4), predicted=3 + 6 / d, document=3.0)


def _sentence(found: dict[tuple[int, int], DotMoments], departures: dict[tuple[int, int], Tensor]) -> Text:
    worst = max(abs(interval(cell.variance).mean / d - 1) for (_, d), cell in found.items())
    d = max(d for _, d in departures)
    offset, shared = (interval(_squares(departures[i, d])).mean for i in (1, 2))
    return SENTENCE.format(
        worst=percent(worst, 2), cells=len(found), d=d, offset=numeral(offset), shared=numeral(shared)
    )


def _figure(found: dict[tuple[int, int], DotMoments], dimensions: tuple[int, ...]) -> Figure:
    lines = [
        line_over_seeds(kind.name, dimensions, [[value / d for value in found[i, d].variance] for d in dimensions])
        for i, kind in enumerate(DISTRIBUTIONS)
    ]
    lines.append(level(Text("predicted: 1", "预测：1"), dimensions, 1.0))
    caption = Text(
        "Variance of q·k over d, for four distributions of unit-variance components. All of them lie on 1 within 1 %: "
        "the shape of the distribution does not matter, only its variance.",
        "四种单位方差分量分布下 q·k 的方差与 d 之比。全都在 1 的 1 % 以内：分布的形状无关紧要，只有方差起作用。",
    )
    y_label = Text("Var(q·k)/d (1 = the documents)", "Var(q·k)/d（1 = 文档所述）")
    return figure("dot-variance-ratio", caption, D, y_label, lines, log="x")


def _departure_figure(departures: dict[tuple[int, int], Tensor], dimensions: tuple[int, ...]) -> Figure:
    lines = []
    for i, departure in enumerate(DEPARTURES):
        values = [_squares(departures[i, d]) for d in dimensions]
        lines.append(line_over_seeds(departure.name, dimensions, values))
        formula = Text("{name}: corrected formula", "{name}：修正公式").format(name=departure.name)
        lines.append(predicted(formula, dimensions, [departure.moments(d).variance for d in dimensions]))
    lines.append(curve(Text("the documents: d", "文档：d"), dimensions, float, "document"))
    caption = Text(
        "Where an assumption fails the variance is not d, but still known. Correlation between the components of one "
        "vector is the worst: its variance grows like d², and 1/√d no longer tames it.",
        "假设不成立时方差不再是 d，但仍有公式可循。最糟的是同一向量内部分量相关：方差按 d² 增长，1/√d 也压不住。",
    )
    y_label = Text("variance of q·k (nats²)", "q·k 的方差（nat²）")
    return figure("dot-variance-departures", caption, D, y_label, lines, log="xy")


FORMULAS = Text(
    "largest distance of a departure from its corrected formula (share of the variance)",
    "各种偏离与其修正公式的最大差距（占方差的比例）",
)
SENTENCE = Text(
    "For independent components of mean 0 and variance 1 the variance of q·k is d within {worst} in all {cells} "
    "cases, whatever their distribution; with components of mean 1 it is {offset} at d = {d}, and with correlated "
    "components {shared}.",
    "分量独立、均值 0、方差 1 时，无论何种分布，全部 {cells} 种情形下 q·k 的方差与 d 相差都在 {worst} 以内；d = {d} "
    "时，若分量均值为 1 则方差为 {offset}，若分量彼此相关则为 {shared}。",
)
CONDITION = Text(
    "q is independent of k, the components of each are uncorrelated, and all have mean 0 and variance 1; their "
    "distribution may be any with a finite variance. Otherwise Var(q·k) = tr(Σ_q Σ_k) + μ_kᵀΣ_qμ_k + μ_qᵀΣ_kμ_q for "
    "independent q and k, and d(1 + ρ²) with mean ρd for normal pairs with correlation ρ. LayerNorm makes it d²/(d − "
    "1), RMSNorm leaves d. A trained model meets none of the assumptions by itself: see «trained-model».",
    "q 与 k 独立，各自的分量互不相关，且均值都为 0、方差都为 1；分布可以是任何方差有限的分布。否则，q、k 独立时 "
    "Var(q·k) = tr(Σ_q Σ_k) + μ_kᵀΣ_qμ_k + μ_qᵀΣ_kμ_q；相关系数为 ρ 的正态对则为 d(1 + ρ²)，均值 ρd。LayerNorm 使之成"
    "为 d²/(d − 1)，RMSNorm 仍为 d。训练好的模型并不自动满足这些假设：见「trained-model」。",
)
STEPS = (
    Step(
        Text(
            "One product of two independent numbers with mean 0 has mean 0.", "两个独立、均值为 0 的数之积，均值为 0。"
        ),
        equation("E [ q_i k_i ]", "E [ q_i ] E [ k_i ]", "0"),
    ),
    Step(
        Text(
            "Its variance is the mean of its square, which splits for the same reason.",
            "方差就是平方的均值，同样可以拆开。",
        ),
        equation("Var ( q_i k_i )", row("E [", sup("q_i", "2"), "] E [", sup("k_i", "2"), "]"), "1"),
    ),
    Step(
        Text(
            "Variances of independent terms add up: d terms of variance 1.",
            "独立项的方差可以相加：d 项，每项方差为 1。",
        ),
        equation("Var ( q · k )", row(total("i = 1", "d"), "Var ( q_i k_i )"), "d"),
    ),
    Step(
        Text(
            "With means μ_q, μ_k and variances v_q, v_k each term has instead the variance below: the means add to "
            "it, they never subtract.",
            "若均值为 μ_q、μ_k，方差为 v_q、v_k，则每一项的方差如下：均值只会使它增大，不会减小。",
        ),
        equation("Var ( q_i k_i )", row("v_q v_k + v_q", sup(sub("μ", "k"), "2"), "+ v_k", sup(sub("μ", "q"), "2"))),
    ),
    Step(
        Text(
            "With covariance matrices Σ_q, Σ_k between components (means 0) the cross terms stay:",
            "若分量之间有协方差矩阵 Σ_q、Σ_k（均值为 0），交叉项就留了下来：",
        ),
        equation("Var ( q · k )", row("tr (", sub("Σ", "q"), sub("Σ", "k"), ")")),
    ),
)
ERRATA = (
    Erratum(
        "000",
        Text("D(XY) = D(X)D(Y) − [E(X)E(Y)]².", "D(XY) = D(X)D(Y) − [E(X)E(Y)]²。"),
        Text(
            "Right only because both means are 0. In general D(XY) = D(X)D(Y) + D(X)E(Y)² + D(Y)E(X)²; with means of "
            "1 the document's line gives 0, the measurement 3 per component.",
            "仅在两个均值都为 0 时成立。一般地 D(XY) = D(X)D(Y) + D(X)E(Y)² + D(Y)E(X)²；均值为 1 时文档的式子给出 0，"
            "实测每个分量为 3。",
        ),
    ),
    Erratum(
        "003",
        Text(
            "D(q_i k_i) = D(q_i)D(k_i) − E²(q_i)E²(k_i), and «q_i d_i has mean 0».",
            "D(q_i k_i) = D(q_i)D(k_i) − E²(q_i)E²(k_i)，以及「q_i d_i 的均值为 0」。",
        ),
        Text(
            "The same slip of sign, hidden by the means being 0; and q_i d_i is meant to be q_i k_i.",
            "同样的符号问题，因均值为 0 而被掩盖；q_i d_i 应为 q_i k_i。",
        ),
    ),
    Erratum(
        "004",
        Text(
            "If Q_ij, K_ij ~ N(0, 1) then W*_ij = Q_i K_iᵀ ~ N(0, d).",
            "若 Q_ij、K_ij ~ N(0, 1)，则 W*_ij = Q_i K_iᵀ ~ N(0, d)。",
        ),
        Text(
            "Mean 0 and variance d are right, normal it is not: given q it is N(0, |q|²), and over all q its kurtosis "
            "is 3 + 6/d. And the entry belongs to K_jᵀ, not K_iᵀ.",
            "均值 0、方差 d 没错，但它不是正态分布：给定 q 时为 N(0, |q|²)，对所有 q 而言峰度为 3 + 6/d。另外应为 "
            "K_jᵀ 而不是 K_iᵀ。",
        ),
    ),
)

CLAIM = Claim(
    id="dot-variance",
    title=Text("The dot product of q and k has variance d", "q 与 k 的点积方差为 d"),
    question=Text(
        "How far apart do the scores q·k lie, and does it depend on the distribution?",
        "得分 q·k 散得多开？与分布有关吗？",
    ),
    statement=Text(
        "If the components of q and k have mean 0 and variance 1, their dot product has mean 0 and variance d_k.",
        "假设向量 q 和 k 的均值为 0，方差为 1，那么点积 q·k 的均值为 0，方差为 d_k。",
    ),
    sources=("000", "001", "002", "003", "004"),
    hypothesis=Text(
        "For normal, uniform, ±1 and Student-t components and every d, |mean| ≤ 0.01·√d and |Var/d − 1| ≤ 1 %. As "
        "written, with nothing said of independence, Var = d within 5 % also for correlated q and k, non-zero means, "
        "correlated components and normalised vectors; where it is not, the corrected formula is right within 5 %.",
        "对正态、均匀、±1 和学生 t 分量及每个 d，|均值| ≤ 0.01·√d 且 |Var/d − 1| ≤ 1 %。照字面（未提独立性），q 与 k "
        "相关、均值非零、分量相关或经过归一化时也应有 Var = d（5 % 以内）；若不成立，则修正公式在 5 % 以内正确。",
    ),
    expected="conditional",
    experiment=experiment,
    quick={
        "dimensions": (1, 4, 16, 64, 256, 1024, 4096),
        "components": 1 << 21,
        "departure_dimensions": (4, 16, 64),
        "departure_components": 1 << 21,
    },
    full={
        "dimensions": tuple(2**k for k in range(13)),
        "components": 1 << 25,
        "departure_dimensions": (4, 16, 64, 256, 1024),
        "departure_components": 1 << 23,
    },
    steps=STEPS,
    errata=ERRATA,
)
