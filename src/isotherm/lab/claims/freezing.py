"""The phase diagram of attention: for which d and n a softmax over random scores is frozen, with and without a scale."""

from math import log, sqrt

from isotherm import scale, theory
from isotherm.lab.claim import Claim, Result, Setting, all_hold, at_most, conclude
from isotherm.lab.dots import multiplier
from isotherm.lab.interval import interval, over_seeds
from isotherm.lab.mathml import equation, frac, root, row, sup
from isotherm.lab.numerals import numeral, percent
from isotherm.lab.phase import dot_rows, rows_over, rules
from isotherm.lab.phase_diagram import Grid, boundary, collapse, cut, heatmaps, largest, spread
from isotherm.language import Text
from isotherm.record import Measured, Step

AS_WRITTEN, EXACT, SOUND = 0.1, 0.03, 0.9
"""How near σ* must come to √(2 ln n) and to its finite-n value, and the share of cells that must agree with theory."""
FREE = 64
"""With this many keys or more, a scaled row is expected to stay open at every d."""


def experiment(setting: Setting) -> Result:
    """Measure rows under every rule over d and n, and find where the unscaled ones freeze."""
    lengths, coarse = setting["lengths"], setting["dimensions"][::2]
    points = [("none", d) for d in setting["dimensions"]] + [(name, d) for name in list(rules())[1:] for d in coarse]
    grid: Grid = {}
    for i, n in enumerate(lengths):
        grid[n] = rows_over(setting, n, points, rules())
        setting.progress(0.7 * (i + 1) / len(lengths))
    frozen_at = {n: spread(grid[n]["none", setting["dimensions"][-1]].reach) for n in lengths}
    limits = [_limit(n, values) for n, values in frozen_at.items()]
    checks = (_distance(frozen_at), _agreement(grid, coarse), _real(setting, grid), *_scaled(grid, coarse))
    return conclude(
        all_hold((*limits, *checks)),
        _sentence(grid, setting, frozen_at),
        (*limits, *checks),
        (collapse(grid, setting), boundary(frozen_at), cut(grid, setting)),
        heatmaps(grid, setting),
        under=all_hold(checks),
        condition=CONDITION,
    )


def _limit(n: int, values: list[float]) -> Measured:
    name = Text(
        "σ* where rows over n = {n} keys freeze (√(2 ln n) = {limit})",
        "n = {n} 个键的行冻结处的 σ*（√(2 ln n) = {limit}）",
    )
    limit = theory.freezing_threshold(n)
    near = abs(interval(values).mean / limit - 1) <= AS_WRITTEN
    return over_seeds(name.format(n=n, limit=numeral(limit)), values, predicted=largest(n), holds=near)


def _distance(frozen_at: dict[int, list[float]]) -> Measured:
    """How far σ* is from the expected largest of n normals, beyond what its interval allows."""
    far = [
        max(interval(values).low - largest(n), largest(n) - interval(values).high, 0.0) / largest(n)
        for n, values in frozen_at.items()
    ]
    return at_most(DISTANCE, max(far), EXACT, predicted=0.0)


def _agreement(grid: Grid, dimensions: tuple[int, ...]) -> Measured:
    """Cells whose 95 % interval of the attended logit contains its exact expectation, to a part in 10⁴."""
    inside = []
    for n, cells in grid.items():
        for (name, d), rows in cells.items():
            if d in dimensions:
                expected = theory.gaussian_attention(n, d, multiplier(rules()[name], d, n))
                found = interval(spread(rows.stats.lse - rows.stats.entropy))
                wanted = expected.lse - expected.entropy
                inside.append(found.low - 1e-4 * wanted <= wanted <= found.high + 1e-4 * wanted)
    part = sum(inside) / len(inside)
    return Measured(AGREEMENT.format(count=len(inside)), part, predicted=0.95, holds=part >= SOUND)


def _real(setting: Setting, grid: Grid) -> Measured:
    """Rows of whole dot products against rows of components along q, in standard errors of their difference."""
    apart = []
    for n in setting["real_lengths"]:
        for d in setting["real_dimensions"]:
            seeds = [dot_rows(setting, n, d, scale.NoScale(), seed) for seed in range(setting["seeds"])]
            for statistic in ("gate", "entropy"):
                ours = interval([float(getattr(rows, statistic).mean()) for rows in seeds])
                theirs = interval(spread(getattr(grid[n]["none", d], statistic)))
                error = sqrt(ours.spread**2 / ours.count + theirs.spread**2 / theirs.count)
                apart.append(abs(ours.mean - theirs.mean) / error)
    return at_most(REAL, max(apart), 4)


def _scaled(grid: Grid, dimensions: tuple[int, ...]) -> tuple[Measured, ...]:
    """With 1/√d and with log n no row freezes; with 1/d every row goes flat."""
    wide = [n for n in grid if n >= FREE]
    lowest = {
        name: min(float(grid[n][name, d].gate.mean()) for n in wide for d in dimensions) for name in ("1/√d", "log n")
    }
    last = dimensions[-1]
    flat = min(float(grid[n]["1/d", last].entropy.mean()) for n in grid)
    shut = max(float(grid[n]["none", last].gate.mean()) for n in grid)
    return (
        *(Measured(LOWEST.format(rule=name, n=FREE), value, holds=value >= SOUND) for name, value in lowest.items()),
        Measured(FLAT.format(d=last), flat, predicted=1.0, holds=flat >= 0.99),
        Measured(SHUT.format(d=last), shut, holds=shut <= 0.2),
    )


def _sentence(grid: Grid, setting: Setting, frozen_at: dict[int, list[float]]) -> Text:
    n, d = setting["shown"], setting["dimensions"][-2]
    limit, star = f"{2 * log(n):.1f}", f"{interval(frozen_at[n]).mean ** 2:.1f}"
    none = percent(float(grid[n]["none", d].gate.mean()), 0)
    scaled = percent(min(float(grid[n]["1/√d", d].gate.mean()) for d in setting["dimensions"][::2]))
    return SENTENCE.format(n=n, d=d, limit=limit, star=star, none=none, scaled=scaled)


DISTANCE = Text(
    "largest distance of σ* from the expected largest of n normals, beyond its interval (share)",
    "σ* 与 n 个正态数最大值期望的最大差距（扣除区间，比例）",
)
AGREEMENT = Text(
    "share of {count} cells whose 95 % interval contains the exact expectation",
    "{count} 个格点中 95 % 区间包含精确期望的比例",
)
REAL = Text(
    "largest difference between whole dot products and the exact reduction (standard errors)",
    "完整点积与精确约化之间的最大差（标准误）",
)
LOWEST = Text("lowest mean gate with {rule}, all d, n ≥ {n}", "用 {rule} 时闸门均值的最小值，所有 d，n ≥ {n}")
FLAT = Text("lowest mean entropy/ln n with 1/d at d = {d}, all n", "用 1/d、d = {d} 时熵/ln n 均值的最小值，所有 n")
SHUT = Text("highest mean gate without a scale at d = {d}, all n", "不缩放、d = {d} 时闸门均值的最大值，所有 n")
SENTENCE = Text(
    "Over n = {n} keys unscaled attention freezes at d = {star} (limit 2 ln n = {limit}); at d = {d} its gate is down "
    "to {none}, with 1/√d it is at least {scaled} at every d.",
    "n = {n} 个键时，未缩放的注意力在 d = {star} 处冻结（极限 2 ln n = {limit}）；d = {d} 时闸门只剩 {none}，用 1/√d "
    "则在任何 d 下都不低于 {scaled}。",
)
CONDITION = Text(
    "In the limit of large ln n. At finite n rows freeze at σ* = E[largest of n standard normals], which is 87 % of "
    "√(2 ln n) at n = 1024, 91 % at n = 65,536 and only 48 % at n = 2: a little earlier than the formula says. Scores "
    "must be independent and normal given q, as at initialisation.",
    "在 ln n 很大的极限下成立。n 有限时，行在 σ* = E[n 个标准正态数的最大值] 处冻结：n = 1024 时是 √(2 ln n) 的 87 %，"
    "n = 65,536 时 91 %，n = 2 时只有 48 %：比公式所说略早。得分须在给定 q 时独立且为正态，如初始化时那样。",
)
STEPS = (
    Step(
        Text(
            "Among n scores drawn from N(0, σ²) about this many lie near the height s:",
            "从 N(0, σ²) 抽出的 n 个得分中，高度 s 附近约有这么多：",
        ),
        row("n", sup("e", row("−", frac("s^2", row("2", sup("σ", "2")))))),
    ),
    Step(
        Text(
            "There are none left above the height where this number is 1: the largest score.",
            "当这个数降到 1，再往上就没有了：这就是最大得分。",
        ),
        equation("s_max", row("σ", root("2 ln n"))),
    ),
    Step(
        Text(
            "The softmax weighs each by eˢ. Number times weight is largest at",
            "softmax 给每个得分的权重为 eˢ。个数乘权重在此处最大：",
        ),
        row(frac("d", "d s"), row("(", "s −", frac("s^2", row("2", sup("σ", "2"))), ")"), "= 0 ⇒ s =", sup("σ", "2")),
    ),
    Step(
        Text(
            "While that height is populated, many keys share the attention. Once it lies above the largest score, "
            "only the largest is left: frozen.",
            "只要那个高度上还有键，注意力就由许多键分享；一旦它高过最大得分，就只剩最大的那个：冻结。",
        ),
        row(sup("σ", "2"), "> σ", root("2 ln n"), "⇔ σ >", root("2 ln n")),
    ),
    Step(
        Text("Unscaled, σ = √d, so a head freezes once", "不缩放时 σ = √d，所以一个头冻结的条件是"),
        row("d > 2 ln n"),
    ),
    Step(
        Text(
            "Divided by √d, σ = 1, which is below √(2 ln n) for every n ≥ 2: it never does.",
            "除以 √d 后 σ = 1，对一切 n ≥ 2 都小于 √(2 ln n)：永远不会冻结。",
        ),
        row("1 <", root("2 ln n")),
    ),
)

CLAIM = Claim(
    id="freezing",
    title=Text("Unscaled attention freezes at d = 2 ln n", "未缩放的注意力在 d = 2 ln n 处冻结"),
    question=Text(
        "For which head dimension and context length does attention need 1/√d at all?",
        "头维度多大、上下文多长时，注意力才真正需要 1/√d？",
    ),
    statement=Text(
        "A softmax over n independent N(0, σ²) scores freezes at σ = √(2 ln n); unscaled, where σ = √d, at d = 2 ln n.",
        "对 n 个独立 N(0, σ²) 得分的 softmax 在 σ = √(2 ln n) 处冻结；不缩放时 σ = √d，即在 d = 2 ln n 处。",
    ),
    sources=(),
    hypothesis=Text(
        "(a) For every n the point σ* at which the attended logit stops rising, measured at the largest d, lies "
        "within 10 % of √(2 ln n). (b) The 95 % interval of σ* comes within 3 % of the expected largest of n normals, "
        "and at least 90 % of cells contain the exact expectation in their 95 % interval; (c) rows of whole dot "
        "products agree with the reduction within 4 standard errors; (d) with 1/√d and log n the mean gate stays "
        "above 0.9 for n ≥ 64 at every d, with 1/d entropy/ln n passes 0.99 at the largest d, and without a scale the "
        "gate falls below 0.2 there.",
        "(a) 对每个 n，被关注的 logit 停止上升的点 σ*（在最大的 d 处测量）与 √(2 ln n) 相差在 10 % 以内。(b) σ* 的 95 "
        "% 区间与 n 个正态数最大值期望相差在 3 % 以内，且至少 90 % 的格点 95 % 区间包含精确期望；(c) 完整点积的行与约"
        "化的行相差在 4 个标准误以内；(d) 用 1/√d 与 log n 时，n ≥ 64 的闸门均值在每个 d 都高于 0.9；用 1/d 时最大 d "
        "处熵/ln n 超过 0.99；不缩放时该处闸门低于 0.2。",
    ),
    expected="conditional",
    experiment=experiment,
    quick={
        "dimensions": tuple(2**k for k in range(1, 13)),
        "lengths": (2, 4, 16, 64, 256, 1024, 4096, 16384, 65536),
        "rows": {2: 256, 4: 256, 16: 256, 64: 256, 256: 256, 1024: 256, 4096: 128, 16384: 64, 65536: 32},
        "shown": 1024,
        "real_dimensions": (2, 16, 128, 1024),
        "real_lengths": (4, 64, 1024),
        "queries": 64,
        "seeds": 8,
    },
    full={
        "lengths": tuple(2**k for k in range(1, 17)),
        "rows": {2**k: 1024 if k <= 12 else 256 for k in range(1, 17)},
        "real_dimensions": (2, 8, 32, 128, 512, 2048),
        "real_lengths": (2, 16, 128, 1024, 4096),
        "seeds": 16,
    },
    steps=STEPS,
)
