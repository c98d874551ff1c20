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

from collections.abc import Iterator, Sequence
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
AT_ONCE = 1 << 22
"""How many rows at all factors are summarised together."""
DIGITS = 4
DRAWING = Text("drawing the temperature curve of {name}", "绘制 {name} 的温度曲线")

Numbers = Sequence[float | None]


@dataclass(frozen=True, eq=False)
class CurveTable:
    """What a layer's curves are made of, still on its device: medians over the rows [factors, numbers], and the numbers of rows
    that were seen, and that there are."""

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
    tables: dict[int, CurveTable] = {}
    waiting: dict[int, list[RowStats]] = {}
    for number, found in _at_factors(captures, measured, remarks, tell):
        waiting[number] = found
        if sum(stats[0].rest.numel() for stats in waiting.values()) * len(FACTORS) > AT_ONCE:
            tables |= _tables(waiting, captures, measured)
            waiting = {}
    tables |= _tables(waiting, captures, measured)
    numbers = fetched([part for table in tables.values() for part in (table.medians, table.counts)])
    read = dict(zip(tables, zip(numbers[::2], numbers[1::2], strict=True), strict=True))
    curves = {i: _curves(layers[i], captures[i].problem, *parts) for i, parts in read.items()}
    return tuple(replace(layer, curve=curves.get(number)) for number, layer in enumerate(layers))


def _at_factors(
    captures: Sequence[Capture], measured: Sequence[RowStats | None], remarks: Remarks, tell: Tell
) -> Iterator[tuple[int, list[RowStats]]]:
    """The number of each call that has curves, and its statistics at each factor."""
    most = [ROWS_ON_GPU if capture.problem.q.is_cuda else ROWS for capture in captures]
    kept = [i for i, capture in enumerate(captures) if capture.affine and measured[i] is None]
    wanted = [Wanted(captures[i], most[i], _scales(captures[i])) for i in kept]
    for place, found in measure_together(wanted, DRAWING, remarks, lambda what, i: tell(what, kept[i])):
        yield kept[place], found
    for number, (capture, stats) in enumerate(zip(captures, measured, strict=True)):
        if capture.affine and stats is not None:
            doing = DRAWING.format(name=capture.name)
            tell(doing, number)
            work = partial(_of_measured, capture, stats)
            found = remarks.within_memory(doing, work, most[number], most[number])
            if found:
                yield number, found


def _tables(
    found: dict[int, list[RowStats]], captures: Sequence[Capture], measured: Sequence[RowStats | None]
) -> dict[int, CurveTable]:
    """What the curves are made of, from statistics at each factor; for layers of one shape at once."""
    tables: dict[int, CurveTable] = {}
    groups: dict[object, list[int]] = {}
    for number, at in found.items():
        groups.setdefault((at[0].rest.shape, at[0].rest.device, at[0].outcomes_beyond_keys), []).append(number)
    for same in groups.values():
        stats = RowStats.cat([at for number in same for at in found[number]], 1)
        values = torch.stack(
            [stats.jacobian_trace, stats.entropy_fraction, stats.logit_std]
        )  # [3, B, layers·factors·H, R]
        by_factor = values.unflatten(2, (len(same) * len(FACTORS), -1)).movedim(2, 0)  # [layers·factors, 3, B, H, R]
        whole = nearest(by_factor[:, :2].flatten(2), 0.5)
        of_heads = median_of(by_factor.transpose(2, 3).flatten(3)).flatten(1)
        parts = torch.cat([whole, of_heads], 1).split(len(FACTORS))
        seen = (~stats.empty).unflatten(1, (len(same), -1)).any(2).sum((0, 2))
        counts = [_rows_of(captures[number], measured[number], seen) for number in same]
        rows = zip(seen, counts, strict=True)
        tables |= zip(
            same, (CurveTable(part, torch.stack(two)) for part, two in zip(parts, rows, strict=True)), strict=True
        )
    return tables


def _rows_of(capture: Capture, measured: RowStats | None, like: Tensor) -> Tensor:
    """How many rows a call has."""
    if measured is not None and measured.total_rows is None:
        return (~measured.empty).any(1).sum()
    total = capture.queries if measured is None else measured.total_rows or 0
    return torch.full((), capture.problem.q.shape[0] * total, dtype=like.dtype, device=like.device)


def _curves(layer: Layer, problem: Problem, medians: Tensor, counts: Tensor) -> LayerCurve | None:
    """A layer's curves from the numbers of its table. None if no row saw a key."""
    seen, total = (int(count) for count in counts.tolist())
    if not seen:
        return None
    heads = (medians.shape[1] - 2) // 3
    columns, spreads = medians.T[: 2 + 2 * heads], finite_rows(medians.T[2 + 2 * heads :])
    gate, entropy, *by_head = rounded_rows(columns, DIGITS)
    gates, entropies = by_head[:heads], by_head[heads:]
    sigmas = [head.logit_std for head in layer.head_stats]
    curve = partial(_curve, problem, layer.keys)
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


def _middle(values: Numbers) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _rounded(values: Numbers) -> tuple[float | None, ...]:
    return tuple(None if value is None else float(f"{value:.{DIGITS}g}") for value in values)
