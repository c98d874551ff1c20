"""Does a log n factor keep the entropy of attention steady as the context grows? Only for logits of one spread."""

from functools import lru_cache, partial
from math import log, sqrt

import torch
from torch import Tensor

from isotherm import scale, theory
from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import row_stats
from isotherm.lab.figures import figure, predicted
from isotherm.lab.interval import bisect, interval, line_over_seeds, over_seeds
from isotherm.lab.numerals import numeral
from isotherm.language import Text
from isotherm.record import Figure, Heatmap, Line, Measured

SAYS = read_content(__file__)
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
    """The spread at the training length with which a log n factor gives the longest length the same entropy."""
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
        q, k = (torch.cat(part) for part in zip(*draws, strict=True))
        for kind, spread in series:
            rows = row_stats(q * spread, k, _rule(kind, spread, n, setting))
            entropy[kind, spread].append(rows.entropy.mean((1, 2)).tolist())
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
        condition=SAYS["condition"].format(best=numeral(best), train=train, longest=lengths[-1]),
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
        name = SAYS["change"].format(kind=SAYS[f"kind-{kind}"], spread=numeral(spread), train=train, longest=longest)
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
        name = SAYS["series"].format(kind=SAYS[f"kind-{kind}"], spread=numeral(spread))
        lines.append(line_over_seeds(name, lengths, entropy[kind, spread]))
        label = SAYS["series-predicted"].format(name=name)
        lines.append(predicted(label, lengths, partial(_predicted, setting, kind, spread)))
    caption = SAYS["entropy-caption"].format(best=numeral(best))
    return figure("entropy-length", caption, SAYS["axis-keys"], SAYS["entropy-y"], lines, log="x")


def _fraction_figure(setting: Setting, entropy: Entropies, best: float) -> Figure:
    lengths = setting["lengths"]
    lines = []
    for kind, spread in (("constant", 1.0), ("log-n", best)):
        fractions = [[h / log(n) for h in seeds] for n, seeds in zip(lengths, entropy[kind, spread], strict=True)]
        name = SAYS["series"].format(kind=SAYS[f"kind-{kind}"], spread=numeral(spread))
        lines.append(line_over_seeds(name, lengths, fractions))
    return figure("entropy-fraction", SAYS["fraction-caption"], SAYS["axis-keys"], SAYS["fraction-y"], lines, log="x")


def _heatmap(setting: Setting, entropy: Entropies, spreads: list[float]) -> Heatmap:
    train, at = setting["train_length"], setting["lengths"].index(setting["train_length"])
    lengths = setting["lengths"][at + 1 :]
    values = []
    for spread in spreads:
        rows = [interval(seeds).mean for seeds in entropy["log-n", spread][at:]]
        values.append(tuple(100 * (h / rows[0] - 1) for h in rows[1:]))
    boundary = predicted(SAYS["no-change"], lengths, partial(balanced_spread, train))
    caption = SAYS["drift-caption"].format(train=train)
    return Heatmap(
        "entropy-drift",
        caption,
        SAYS["axis-keys"],
        SAYS["drift-y"],
        SAYS["drift-value"],
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
    return SAYS["outcome"].format(**values)


CLAIM = SAYS.claim(
    id="entropy-invariance",
    sources=("004",),
    expected="conditional",
    experiment=experiment,
    quick={
        "lengths": (64, 512, 2048, 8192, 65536),
        "train_length": 512,
        "spreads": (1.0, 2.0, 4.0),
        "dimension": 32,
        "rows": 128,
        "seeds": 5,
    },
    full={"lengths": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536), "rows": 512, "seeds": 10},
)
