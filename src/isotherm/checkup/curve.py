"""The temperature curve: gate and entropy of every head when its q·k is multiplied by factors from 1/16 to 16.

Factor 1 is the model as it is. Masks, biases, soft caps and sinks stay as they are. Two more points stand on a curve:

- **Freezing** is the factor at which the logit spread reaches σ_c = √(2 ln n), where the random energy model freezes. Plain
  logits are proportional to the factor, so it is σ_c/σ. With a bias or a cap, the spread is measured at every factor.
- **Best open** is the factor at which factor × gate is largest. Let uⱼ = q·kⱼ with the scale in force, and p = softmax(f·u).
  Then ∂pⱼ/∂uⱼ = f·pⱼ(1 − pⱼ), and the sum over the keys is f·(1 − Σp²) = factor × gate: how much the weights answer q·k,
  which is what q and k learn from. It vanishes at f → 0, where the factor does, and at f → ∞, where the gate closes
  exponentially if one key is ahead. So it has a maximum between. If that is not within the range, or if a soft cap adds a
  slope of its own, there is no such point.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import exp, log
from statistics import median

import torch
from torch import Tensor

from isotherm.language import Text
from isotherm.ops import Problem, statistics_at
from isotherm.probe import Capture
from isotherm.record import Curve, Layer, LayerCurve
from isotherm.record.plain import finite
from isotherm.stats import Moments, RowStats
from isotherm.theory import freezing_threshold

FACTORS = tuple(2.0 ** (step / 2) for step in range(-8, 9))
ROWS, ROWS_ON_GPU = 32, 2048
"""Most rows of a head and sequence that a curve is taken from."""
DIGITS = 4

Numbers = Sequence[float | None]


def with_curves(
    layers: tuple[Layer, ...],
    captures: Sequence[Capture],
    measured: Sequence[RowStats],
    tell: Callable[[Text, int], object],
) -> tuple[Layer, ...]:
    """Add each layer's curves. `tell` is told what is being done and the number of the layer."""
    curved = []
    for number, (layer, capture, stats) in enumerate(zip(layers, captures, measured, strict=True)):
        tell(Text("temperature curve, {name}", "温度曲线，{name}").format(name=layer.name), number)
        curved.append(replace(layer, curve=curve_of(layer, capture, stats)))
    return tuple(curved)


def curve_of(layer: Layer, capture: Capture, measured: RowStats) -> LayerCurve | None:
    """The curves of one captured call, from some of its measured rows. None where no row sees a key, and where the logits
    have no scale to multiply."""
    problem = capture.problem
    if not capture.affine:
        return None
    places = _places(measured, ROWS_ON_GPU if problem.q.is_cuda else ROWS)
    if not len(places):
        return None
    stats = RowStats.cat(_at_factors(capture, measured, places), 1)
    medians = stats.summaries(("jacobian_trace", "entropy_fraction", "logit_std"))
    gates, entropies, spreads = (_by_head(medians[name].p50.unflatten(0, (len(FACTORS), -1))) for name in medians)
    sigmas = [head.logit_std for head in layer.head_stats]
    curve = partial(_curve, problem, layer.keys)
    whole = curve(
        _over_heads(stats.jacobian_trace),
        _over_heads(stats.entropy_fraction),
        [_middle(at) for at in zip(*spreads, strict=True)],
        _middle(sigmas),
    )
    seen, total = (int((~rows.empty).any(1).sum()) for rows in (stats, measured))
    total = total if measured.total_rows is None else measured.rest.shape[0] * measured.total_rows
    return LayerCurve(
        **vars(whole),
        factors=FACTORS,
        heads=tuple(map(curve, gates, entropies, spreads, sigmas)),
        rows=seen,
        rows_total=total,
        label="exact" if seen == total else "sampled",
    )


def _curve(problem: Problem, keys: int, gate: Numbers, entropy: Numbers, spread: Numbers, sigma: float | None) -> Curve:
    linear = problem.bias is None and problem.softcap is None
    frozen = freezing(spread, sigma, freezing_threshold(keys), linear=linear) if keys > 1 else None
    best = best_open(gate) if problem.softcap is None else None
    return Curve(_rounded(gate), _rounded(entropy), *_rounded((frozen, best)))


def freezing(spread: Numbers, now: float | None, critical: float, *, linear: bool) -> float | None:
    """The factor at which the logit spread reaches `critical`; `now` is the spread of all rows at factor 1.

    `spread` at each factor, perhaps from some rows only, tells how the spread grows with the factor.
    """
    if not now:
        return None
    if linear:
        return critical / now
    at_one = spread[FACTORS.index(1.0)]
    if not at_one:
        return None
    wanted = log(critical / now)
    known = [(log(f), log(at / at_one)) for f, at in zip(FACTORS, spread, strict=True) if at]
    for (x, y), (next_x, next_y) in pairwise(known):
        if y <= wanted < next_y:
            return exp(x + (next_x - x) * (wanted - y) / (next_y - y))
    return None


def best_open(gate: Numbers) -> float | None:
    """The factor at which factor × gate is largest; None if that is the first or the last factor."""
    known = [(f * open_, f) for f, open_ in zip(FACTORS, gate, strict=True) if open_ is not None]
    if not known:
        return None
    _, factor = max(known)
    return None if factor in (known[0][1], known[-1][1]) else factor


def _places(measured: RowStats, most: int) -> Tensor:
    """Up to `most` places among the measured rows, spread evenly over those in which some head sees a key."""
    known = (~measured.empty).flatten(0, 1).any(0).nonzero().squeeze(-1)
    if len(known) <= most:
        return known
    return known[torch.linspace(0, len(known) - 1, most, device=known.device).round().long()]


def _at_factors(capture: Capture, measured: RowStats, places: Tensor) -> list[RowStats]:
    """Statistics of these rows at each factor. Rows that were left out of `measured`, such as padding, are left out here."""
    problem = capture.problem
    rows = places if measured.rows is None else measured.rows[places]
    if capture.rows is not None:  # the problem has only these rows of the call
        rows = torch.searchsorted(capture.rows, rows)
    # A GPU has a faster path for all rows, a CPU for sampled ones.
    every_row = problem.q.is_cuda and len(rows) == problem.q.shape[2]
    found = statistics_at(problem, [problem.scale * factor for factor in FACTORS], None if every_row else rows)
    if capture.sink is not None:
        found = [stats.with_sink(capture.sink.view(-1, 1)) for stats in found]
    real = ~measured.empty[:, :, places]
    return [replace(at, moments=Moments(at.moments.count * real, at.moments.mean, at.moments.m2)) for at in found]


def _by_head(table: Tensor) -> list[list[float | None]]:
    """Each head's numbers over the factors, from a table [factor, head]."""
    return [[finite(x) for x in column] for column in table.T.tolist()]


def _over_heads(values: Tensor) -> list[float | None]:
    """At each factor the median over all heads and rows, from values [B, factor · head, R], as `quantile` picks it."""
    ordered = values.unflatten(1, (len(FACTORS), -1)).movedim(1, 0).flatten(1).sort(-1).values  # NaN comes last
    known = (~ordered.isnan()).sum(-1, keepdim=True)
    middle = ((known - 1).clamp(min=0) * 0.5).round().long()
    return [finite(x) for x in ordered.gather(-1, middle).squeeze(-1).tolist()]


def _middle(values: Numbers) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _rounded(values: Numbers) -> tuple[float | None, ...]:
    return tuple(None if value is None else float(f"{value:.{DIGITS}g}") for value in values)
