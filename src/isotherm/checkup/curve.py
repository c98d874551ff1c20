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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import exp, log
from statistics import median

import torch
from torch import Tensor

from isotherm.checkup.fetch import fetched, finite_rows, rounded_rows
from isotherm.checkup.memory import Remarks
from isotherm.checkup.rows import measure_rows, median_of, nearest
from isotherm.checkup.together import Tell, Wanted, measure_together
from isotherm.language import Text
from isotherm.ops import Problem
from isotherm.probe import Capture
from isotherm.record import Curve, Layer, LayerCurve
from isotherm.stats import Moments, RowStats
from isotherm.theory import freezing_threshold

FACTORS = tuple(2.0 ** (step / 2) for step in range(-8, 9))
ROWS, ROWS_ON_GPU = 32, 256
"""Most rows of a head and sequence that a curve is taken from."""
DIGITS = 4
DRAWING = Text("drawing the temperature curve of {name}", "绘制 {name} 的温度曲线")

Numbers = Sequence[float | None]


@dataclass(frozen=True, eq=False)
class CurveTable:
    """What a layer's curves are made of, still on its device: medians over the rows [factors, numbers], the counts of rows that
    were seen and that there are, and the layer."""

    layer: Layer
    problem: Problem
    medians: Tensor
    counts: Tensor


def with_curves(
    layers: tuple[Layer, ...],
    captures: Sequence[Capture],
    measured: Sequence[RowStats | None],
    remarks: Remarks,
    tell: Tell = lambda *_: None,
) -> tuple[Layer, ...]:
    """Add each layer's curves, from some of its measured rows; of a call without `measured`, from some of the rows that were
    kept. There are none where no row sees a key, and where the logits have no scale to multiply."""
    most = [ROWS_ON_GPU if capture.problem.q.is_cuda else ROWS for capture in captures]
    kept = [i for i, capture in enumerate(captures) if capture.affine and measured[i] is None]
    wanted = [Wanted(captures[i], most[i], _scales(captures[i])) for i in kept]
    tables: dict[int, CurveTable] = {}
    for place, found in measure_together(wanted, DRAWING, remarks, lambda what, i: tell(what, kept[i])):
        tables[kept[place]] = _table(layers[kept[place]], captures[kept[place]], None, found)
    for number, (capture, stats) in enumerate(zip(captures, measured, strict=True)):
        if capture.affine and stats is not None:
            doing = DRAWING.format(name=capture.name)
            tell(doing, number)
            work = partial(_of_measured, capture, stats)
            found = remarks.within_memory(doing, work, most[number], most[number])
            if found:
                tables[number] = _table(layers[number], capture, stats, found)
    numbers = fetched([part for table in tables.values() for part in (table.medians, table.counts)])
    read = zip(tables, zip(numbers[::2], numbers[1::2], strict=True), strict=True)
    curves = {number: _curves(tables[number], *parts) for number, parts in read}
    return tuple(replace(layer, curve=curves.get(number)) for number, layer in enumerate(layers))


def _table(layer: Layer, capture: Capture, measured: RowStats | None, found: list[RowStats]) -> CurveTable:
    """What the curves are made of, from statistics at each factor."""
    stats = RowStats.cat(found, 1)
    gate, fraction = stats.jacobian_trace, stats.entropy_fraction
    by_head = _medians(torch.stack([gate, fraction, stats.logit_std]))
    medians = torch.cat([_over_heads(gate), _over_heads(fraction), by_head], 1)
    seen = (~stats.empty).any(1).sum()
    total = _rows_of(capture) if measured is None else measured.rest.shape[0] * (measured.total_rows or 0)
    every = torch.full_like(seen, total) if total else (~measured.empty).any(1).sum()  # type: ignore[union-attr]
    return CurveTable(layer, capture.problem, medians, torch.stack([seen, every]))


def _curves(table: CurveTable, medians: Tensor, counts: Tensor) -> LayerCurve | None:
    """A layer's curves from the numbers of its table. None if no row saw a key."""
    seen, total = (int(count) for count in counts.tolist())
    if not seen:
        return None
    layer, heads = table.layer, (medians.shape[1] - 2) // 3
    columns, spreads = medians.T[: 2 + 2 * heads], finite_rows(medians.T[2 + 2 * heads :])
    gate, entropy, *by_head = rounded_rows(columns, DIGITS)
    gates, entropies = by_head[:heads], by_head[heads:]
    sigmas = [head.logit_std for head in layer.head_stats]
    curve = partial(_curve, table.problem, layer.keys)
    whole = curve(gate, entropy, [_middle(at) for at in zip(*spreads, strict=True)], _middle(sigmas))
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
    return Curve(tuple(gate), tuple(entropy), *_rounded((frozen, best)))


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


def _scales(capture: Capture) -> list[float]:
    return [capture.problem.scale * factor for factor in FACTORS]


def _rows_of(capture: Capture) -> int:
    return capture.problem.q.shape[0] * capture.queries


def _of_measured(capture: Capture, measured: RowStats, most: int | None) -> list[RowStats]:
    """Statistics at each factor of up to `most` measured rows, spread evenly over those in which some head sees a key. Rows
    that were left out of `measured`, such as padding, are left out here."""
    known = (~measured.empty).flatten(0, 1).any(0).nonzero().squeeze(-1)
    if not len(known):
        return []
    if most is not None and len(known) > most:
        known = known[torch.linspace(0, len(known) - 1, most, device=known.device).round().long()]
    rows = known if measured.rows is None else measured.rows[known]
    real = ~measured.empty[:, :, known]
    found = measure_rows(capture, rows, _scales(capture))
    return [replace(at, moments=Moments(at.moments.count * real, at.moments.mean, at.moments.m2)) for at in found]


def _medians(values: Tensor) -> Tensor:
    """[factors, 3 · heads] medians over the rows, of three statistics [3, B, factors · heads, R]."""
    flat = values.transpose(1, 2).flatten(2)
    return median_of(flat).unflatten(1, (len(FACTORS), -1)).transpose(0, 1).flatten(1)


def _over_heads(values: Tensor) -> Tensor:
    """At each factor [factors, 1] the median over all heads and rows, from values [B, factors · head, R]."""
    flat = values.unflatten(1, (len(FACTORS), -1)).movedim(1, 0).flatten(1)
    return nearest(flat, 0.5).unsqueeze(1)


def _middle(values: Numbers) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _rounded(values: Numbers) -> tuple[float | None, ...]:
    return tuple(None if value is None else float(f"{value:.{DIGITS}g}") for value in values)
