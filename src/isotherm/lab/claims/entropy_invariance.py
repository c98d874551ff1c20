"""Does a log n factor keep the entropy of attention steady as the context grows? Only for logits of one spread."""

from functools import lru_cache, partial
from math import log, sqrt

import torch
from torch import Tensor

from isotherm import scale, theory
from isotherm.lab.claim import Claim, Result, Setting, conclude
from isotherm.lab.dots import row_stats
from isotherm.lab.figures import figure, predicted
from isotherm.lab.interval import bisect, interval, line_over_seeds, over_seeds
from isotherm.lab.mathml import bracket, equation, frac, root, row
from isotherm.lab.numerals import numeral
from isotherm.language import Text
from isotherm.record import Figure, Heatmap, Line, Measured, Step

STEADY = 0.1
"""A change of the mean entropy by at most this share from the training length on counts as steady."""


def entropy_of(n: int, spread: float) -> float:
    """The expected entropy over n Gaussian logits of this spread, exact at every n."""
    return theory.gaussian_row(n, spread).entropy


@lru_cache
def level_spread(n: int, entropy: float) -> float:
    """The spread with which n Gaussian logits have this entropy; √(2(ln n − H)) far below freezing."""
    return sum(bisect(lambda spread: entropy_of(n, spread) > entropy, 0.0, 8.0, 24)) / 2


@lru_cache
def balanced_spread(train: int, longest: int) -> float:
    """The spread at the training length with which a log n factor leaves the entropy at the longest what it was there."""
    factor = log(longest) / log(train)

    def grows(spread: float) -> bool:
        return entropy_of(longest, spread * factor) > entropy_of(train, spread)

    return sum(bisect(grows, 0.5, 4.0, 24)) / 2


def experiment(setting: Setting) -> Result:
    """Measure the mean entropy of rows at each length under a constant scale, a log n factor and a level factor."""
    lengths, train = setting["lengths"], setting["train_length"]
    best = balanced_spread(train, lengths[-1])
    spreads = sorted({*setting["spreads"], best})
    series = [("constant", 1.0), ("constant", best), ("level", 1.0), *(("log-n", spread) for spread in spreads)]
    entropy: Entropies = {key: [] for key in series}
    for done, n in enumerate(lengths):
        draws = [_draw(setting, n, generator) for generator in setting.generators(n)]
        for kind, spread in series:
            rule = _rule(kind, spread, n, setting)
            rows = [row_stats(q * spread, k, rule) for q, k in draws]
            entropy[kind, spread].append([stats.entropy.mean().item() for stats in rows])
        setting.progress((done + 1) / len(lengths))
    at = lengths.index(train)
    change = {
        key: [end / start - 1 for start, end in zip(rows[at], rows[-1], strict=True)] for key, rows in entropy.items()
    }
    steady = {key: interval(found).farthest <= STEADY for key, found in change.items()}
    disperses = interval(change["constant", 1.0]).low > STEADY
    everywhere = all(steady["log-n", spread] for spread in spreads)
    somewhere = disperses and steady["log-n", best]
    return conclude(
        disperses and everywhere,
        _sentence(setting, change, best),
        _measured(setting, entropy, change, steady, disperses),
        (_entropy_figure(setting, entropy, best), _fraction_figure(setting, entropy, best)),
        [_heatmap(setting, entropy, spreads)],
        under=somewhere,
        condition=CONDITION.format(best=numeral(best), train=train, longest=lengths[-1]),
    )


Key = tuple[str, float]
Entropies = dict[Key, list[list[float]]]


def _draw(setting: Setting, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    d = setting["dimension"]
    k = torch.randn(1, 1, n, d, generator=generator)
    q = torch.randn(1, 1, setting["rows"], d, generator=generator)
    q *= sqrt(d) / q.norm(dim=-1, keepdim=True)  # given its length, a query's logits are independent normals
    return q.to(setting.device), k.to(setting.device)


def _rule(kind: str, spread: float, n: int, setting: Setting) -> scale.Rule:
    """1/√d, times ln n/ln L, or times what theory says holds the entropy of the training length."""
    if kind == "constant":
        return scale.InverseSqrt()
    if kind == "log-n":
        return scale.LogN(setting["train_length"]) * scale.InverseSqrt()
    return scale.Relative(_factor(kind, spread, n, setting)) * scale.InverseSqrt()


def _factor(kind: str, spread: float, n: int, setting: Setting) -> float:
    train = setting["train_length"]
    if kind == "level":
        return level_spread(n, entropy_of(train, spread)) / spread if n > train else 1.0
    return max(1.0, log(n) / log(train)) if kind == "log-n" else 1.0


def _predicted(setting: Setting, kind: str, spread: float, n: int) -> float:
    return entropy_of(n, spread * _factor(kind, spread, n, setting))


def _measured(
    setting: Setting, entropy: Entropies, change: dict[Key, list[float]], steady: dict[Key, bool], disperses: bool
) -> tuple[Measured, ...]:
    train, longest = setting["train_length"], setting["lengths"][-1]
    numbers = []
    for kind, spread in entropy:
        first, last = (_predicted(setting, kind, spread, n) for n in (train, longest))
        name = CHANGE.format(kind=KINDS[kind], spread=numeral(spread), train=train, longest=longest)
        judged = {"log-n": steady[kind, spread], "constant": disperses if spread == 1 else None}.get(kind)
        document = 0.0 if kind == "log-n" else None
        numbers.append(
            over_seeds(name, change[kind, spread], predicted=last / first - 1, document=document, holds=judged)
        )
    return tuple(numbers)


def _entropy_figure(setting: Setting, entropy: Entropies, best: float) -> Figure:
    lengths = setting["lengths"]
    lines: list[Line] = []
    for kind, spread in entropy:
        if kind == "constant" and spread != 1:
            continue
        name = SERIES.format(kind=KINDS[kind], spread=numeral(spread))
        lines.append(line_over_seeds(name, lengths, entropy[kind, spread]))
        label = Text("{name}: predicted", "{name}：理论").format(name=name)
        lines.append(predicted(label, lengths, partial(_predicted, setting, kind, spread)))
    caption = Text(
        "A constant scale lets the entropy climb with ln n. From the training length on, the log n factor bends it: "
        "too little below a logit spread of {best}, too much above. The level factor is the one theory asks for at "
        "spread 1.",
        "缩放不变时，熵随 ln n 上升。超过训练长度后，log n 因子使其弯折：logit 标准差小于 {best} 时修正不足，大于它时修"
        "正过度。「恒熵因子」是理论在标准差为 1 时要求的因子。",
    ).format(best=numeral(best))
    return figure("entropy-length", caption, KEYS, Text("mean entropy (nats)", "平均熵（nat）"), lines, log="x")


def _fraction_figure(setting: Setting, entropy: Entropies, best: float) -> Figure:
    lengths = setting["lengths"]
    lines = []
    for kind, spread in (("constant", 1.0), ("log-n", best)):
        fractions = [[h / log(n) for h in seeds] for n, seeds in zip(lengths, entropy[kind, spread], strict=True)]
        lines.append(line_over_seeds(SERIES.format(kind=KINDS[kind], spread=numeral(spread)), lengths, fractions))
    caption = Text(
        "What the log n factor can hold steady is the entropy, not its share of ln n: that share falls although the "
        "entropy does not, and rises towards 1 under a constant scale.",
        "log n 因子能稳住的是熵本身，而不是熵占 ln n 的比例：熵不变时这一比例仍在下降；缩放不变时它则趋向 1。",
    )
    return figure("entropy-fraction", caption, KEYS, Text("entropy ÷ ln n (1)", "熵 ÷ ln n（1）"), lines, log="x")


def _heatmap(setting: Setting, entropy: Entropies, spreads: list[float]) -> Heatmap:
    train, at = setting["train_length"], setting["lengths"].index(setting["train_length"])
    lengths = setting["lengths"][at + 1 :]
    values = []
    for spread in spreads:
        rows = [interval(seeds).mean for seeds in entropy["log-n", spread][at:]]
        values.append(tuple(100 * (h / rows[0] - 1) for h in rows[1:]))
    boundary = predicted(Text("no change predicted", "理论上不变"), lengths, partial(balanced_spread, train))
    caption = Text(
        "Entropy gained (+) or lost (−) since n = {train} under the log n factor. Below the curve the factor corrects "
        "too little, above it too much.",
        "在 log n 因子下，自 n = {train} 起熵的增（+）减（−）。曲线以下修正不足，以上修正过度。",
    ).format(train=train)
    return Heatmap(
        "entropy-drift",
        caption,
        KEYS,
        Text("logit spread at the training length (nats)", "训练长度处的 logit 标准差（nat）"),
        Text("change of entropy (%)", "熵的变化（%）"),
        boundary.x,
        tuple(spreads),
        tuple(values),
        boundary,
    )


def _sentence(setting: Setting, change: dict[Key, list[float]], best: float) -> Text:
    values = {
        "train": setting["train_length"],
        "longest": setting["lengths"][-1],
        "constant": f"{100 * interval(change['constant', 1.0]).mean:.0f} %",
        "weak": f"{100 * interval(change['log-n', 1.0]).mean:.0f} %",
        "held": f"{100 * interval(change['log-n', best]).mean:+.1f} %".replace("-", "−"),
        "best": numeral(best),
    }
    return Text(
        "From n = {train} to {longest} the entropy grows by {constant} under a constant scale; a log n factor still "
        "lets it grow by {weak} when the logits start with spread 1, and holds it ({held}) when they start with spread "
        "{best}.",
        "从 n = {train} 到 {longest}，缩放不变时熵增加 {constant}；logit 标准差从 1 开始时，log n 因子仍让熵增加 "
        "{weak}；从 {best} 开始时才能稳住（{held}）。",
    ).format(**values)


KEYS = Text("n (visible keys)", "n（可见键数）")
KINDS = {
    "constant": Text("constant scale", "缩放不变"),
    "log-n": Text("log n factor", "log n 因子"),
    "level": Text("level factor", "恒熵因子"),
}
SERIES = Text("{kind}, spread {spread}", "{kind}，标准差 {spread}")
CHANGE = Text(
    "relative change of entropy from n = {train} to {longest}: {kind}, spread {spread}",
    "n 从 {train} 到 {longest} 时熵的相对变化：{kind}，标准差 {spread}",
)
CONDITION = Text(
    "The logits' spread at the training length is that for which the entropies at both ends agree: {best} nats from n "
    "= {train} to {longest}. Logits that spread less still disperse, logits that spread more freeze. What keeps the "
    "entropy at H for every n is σ = √(2(ln n − H)), not a multiple of ln n.",
    "训练长度处的 logit 标准差恰使两端的熵相等：从 n = {train} 到 {longest} 为 {best} nat。更小则仍会弥散，更大则会冻"
    "结。对每个 n 都把熵保持在 H 的是 σ = √(2(ln n − H))，而不是 ln n 的倍数。",
)
STEPS = (
    Step(
        Text(
            "Below freezing, n Gaussian logits of spread σ have this entropy (random energy model).",
            "冻结之前，n 个标准差为 σ 的高斯 logit 的熵如下（随机能量模型）。",
        ),
        equation("H", row("ln n −", frac("σ^2", "2"))),
    ),
    Step(
        Text("A constant σ lets H grow one nat for every factor e in n.", "σ 不变时，n 每增大 e 倍，H 增加 1 nat。"),
        equation(frac("d H", "d ln n"), "1"),
    ),
    Step(
        Text(
            "The log n factor makes the spread grow from σ_L at the training length L.",
            "log n 因子使标准差从训练长度 L 处的 σ_L 增长。",
        ),
        equation("σ", row("σ_L", frac("ln n", "ln L"))),
    ),
    Step(
        Text(
            "Put into H, the entropy at N equals that at L for one spread only. Near freezing the first formula is too "
            "low; the number in the verdict comes from the exact expectation instead.",
            "代入 H，只有一个标准差能使 N 处的熵等于 L 处的熵。接近冻结时第一个公式偏低，结论中的数值改用精确的期望。",
        ),
        equation("σ_L^2", frac("2 ln^2 L", "ln L + ln N")),
    ),
    Step(
        Text(
            "Keeping H for every n asks for the square root of a logarithm, not for a logarithm.",
            "要对每个 n 保持 H，需要的是对数的平方根，而不是对数。",
        ),
        equation("σ", root(row("2", bracket("ln n − H")))),
    ),
)
CLAIM = Claim(
    id="entropy-invariance",
    title=Text("A log n factor keeps the entropy steady", "log n 因子使熵保持稳定"),
    question=Text("Should attention be sharper when the context is longer?", "上下文变长时，注意力是否应该更尖锐？"),
    statement=Text(
        "To keep the entropy of attention from changing with the length n, the scale should carry a factor log n; a "
        "constant scale lets attention disperse as the context grows (Su 8823, which document 004 refers to).",
        "为了使注意力的熵不随长度 n 变化，缩放应带有 log n 因子；缩放不变时，注意力会随上下文变长而弥散（文档 004 所引"
        "的苏剑林 8823）。",
    ),
    sources=("004",),
    hypothesis=Text(
        "From the training length 512 to 65536 the mean entropy changes by at most 10 % under the log n factor, "
        "whatever the logits' spread at the training length (1 to 4 nats), and by more than 10 % under a constant "
        "scale (95 % intervals).",
        "从训练长度 512 到 65536，在 log n 因子下，不论训练长度处 logit 的标准差如何（1 到 4 nat），平均熵的变化都不超"
        "过 10 %；缩放不变时则超过 10 %（95 % 区间）。",
    ),
    expected="conditional",
    experiment=experiment,
    quick={
        "lengths": (64, 512, 2048, 8192, 65536),
        "train_length": 512,
        "spreads": (1.0, 2.0, 4.0),
        "dimension": 64,
        "rows": 160,
        "seeds": 5,
    },
    full={"lengths": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536), "rows": 512, "seeds": 10},
    steps=STEPS,
)
