"""Are q and k of a trained model as the derivation assumes, and what would its attention be without 1/√d?"""

import torch
from torch import Tensor

from isotherm import scale, theory
from isotherm.lab import minilm
from isotherm.lab.claim import Result, Setting, conclude
from isotherm.lab.content import read_content
from isotherm.lab.dots import row_stats
from isotherm.lab.figures import LAYER, MEASURED, curve, figure, heads_map, predicted
from isotherm.lab.interval import geometric, interval, line_over_seeds, over_seeds
from isotherm.lab.numerals import numeral, percent
from isotherm.language import Text
from isotherm.record import Figure, Measured

SAYS = read_content(__file__)
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
    return conclude(
        every and freezes,
        _sentence(seen),
        _measured(seen, every, typical, freezes),
        (_spread_figure(seen), _entropy_figure(seen)),
        [heads_map("trained-heads", SAYS["heads-caption"], SAYS["axis-spread"], spread)],
        under=typical and freezes,
        condition=SAYS["condition"].format(**_condition(seen)),
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
        """The median over all heads."""
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
        over_seeds(SAYS["near-one"], [one.near for one in seen], document=1.0, holds=every),
        over_seeds(SAYS["var-q"], [one.median("var_q") for one in seen], document=1.0, holds=typical),
        over_seeds(SAYS["var-k"], [one.median("var_k") for one in seen], document=1.0, holds=typical),
        over_seeds(SAYS["largest-var-q"], [one.var_q.max().item() for one in seen]),
        over_seeds(SAYS["mean-q"], [one.median("mean_q") for one in seen], document=0.0),
        over_seeds(SAYS["mean-k"], [one.median("mean_k") for one in seen], document=0.0),
        over_seeds(SAYS["correlation"], [one.median("correlation") for one in seen], document=0.0),
        over_seeds(SAYS["kurtosis"], [one.median("kurtosis") for one in seen], predicted=3.0),
        over_seeds(SAYS["spread"], [one.median("spread") for one in seen], predicted=naive, document=1.0),
        over_seeds(SAYS["aligned"], [_median(one.spread / one.naive) for one in seen], predicted=1.0),
        over_seeds(SAYS["widest"], widest),
        over_seeds(SAYS["beyond"], [wide / one.critical for wide, one in zip(widest, seen, strict=True)]),
        over_seeds(SAYS["entropy"], [_median(one.scaled.entropy_fraction) for one in seen]),
        over_seeds(SAYS["entropy-without"], [_median(one.unscaled.entropy_fraction) for one in seen]),
        over_seeds(SAYS["lost"], [one.lost for one in seen], holds=freezes),
        over_seeds(SAYS["gate"], [_tenth(one.scaled.jacobian_trace) for one in seen], geometric),
        over_seeds(SAYS["gate-without"], [_tenth(one.unscaled.jacobian_trace) for one in seen], geometric),
        over_seeds(SAYS["past"], past),
    )


def _spread_figure(seen: list[_Passage]) -> Figure:
    spread, naive = (
        torch.stack([getattr(one, name) for one in seen]).mean(0).flatten() for name in ("spread", "naive")
    )
    order = spread.argsort()
    ranks = range(1, len(order) + 1)
    critical = interval([one.critical for one in seen]).mean
    lines = (
        curve(MEASURED, ranks, spread[order].tolist()),
        predicted(SAYS["isotropic"], ranks, naive[order].tolist()),
        predicted(SAYS["critical"], ranks, lambda _: critical),
        curve(SAYS["assumption"], ranks, lambda _: 1.0, "document"),
    )
    return figure("trained-spread", SAYS["spread-caption"], SAYS["axis-rank"], SAYS["axis-spread"], lines, log="y")


def _entropy_figure(seen: list[_Passage]) -> Figure:
    layers = range(seen[0].spread.shape[0])
    lines = []
    for name, label in (("scaled", SAYS["with-scale"]), ("unscaled", SAYS["without-scale"])):
        values = [[_median(getattr(one, name).entropy_fraction[layer]) for one in seen] for layer in layers]
        lines.append(line_over_seeds(label, layers, values))
    return figure("trained-entropy", SAYS["entropy-caption"], LAYER, SAYS["entropy-y"], lines)


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
    return SAYS["outcome"].format(**values)


CLAIM = SAYS.claim(
    id="trained-model",
    sources=("000", "001", "002", "003", "004"),
    expected="conditional",
    experiment=experiment,
    quick={"tokens": 128, "passages": 6},
    full={"tokens": 256},
    needs=minilm.NEEDS,
)
