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
from itertools import islice, pairwise
from math import exp, log
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from isotherm.checkup.fetch import fetched, finite_rows, rounded_rows
from isotherm.checkup.memory import Remarks
from isotherm.checkup.rows import measure_rows, median_of, nearest
from isotherm.checkup.together import Tell, Together, Wanted, measure_together
from isotherm.language import Text
from isotherm.ops import Problem
from isotherm.probe import Capture
from isotherm.record import Curve, Layer, LayerCurve
from isotherm.stats import Moments, RowStats
from isotherm.theory import freezing_threshold

FACTORS = tuple(2.0 ** (step / 2) for step in range(-8, 9))
ROWS, ROWS_ON_GPU = 32, 256
"""Most rows of a head and sequence that a curve is taken from."""
LOGITS_ON_GPU = 1 << 22
"""Of long inputs a GPU takes so many logits of a head, but no fewer rows than a CPU."""
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


class CurveNumbers(NamedTuple):
    """A table that was read. At each factor: gate and entropy of the layer, then of each head, with the spread of its logits;
    and the number of rows that were seen, and that there are."""

    gate: Numbers
    entropy: Numbers
    gates: Sequence[Numbers]
    entropies: Sequence[Numbers]
    spreads: Sequence[Numbers]
    seen: int
    total: int


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
    waiting: list[Together] = []
    for found in _at_factors(captures, measured, remarks, tell):
        waiting.append(found)
        if sum(one.stats[0].rest.numel() for one in waiting) * len(FACTORS) > AT_ONCE:
            tables |= _tables(waiting, captures, measured)
            waiting = []
    tables |= _tables(waiting, captures, measured)
    read = zip(tables, _read(list(tables.values())), strict=True)
    curves = {number: _curves(layers[number], captures[number].problem, numbers) for number, numbers in read}
    return tuple(replace(layer, curve=curves.get(number)) for number, layer in enumerate(layers))


def _at_factors(
    captures: Sequence[Capture], measured: Sequence[RowStats | None], remarks: Remarks, tell: Tell
) -> Iterator[Together]:
    """The calls that have curves, and their statistics at each factor."""
    most = [_rows_of_a_curve(capture.problem) for capture in captures]
    kept = [i for i, capture in enumerate(captures) if capture.affine and measured[i] is None]
    wanted = [Wanted(captures[i], most[i], _scales(captures[i])) for i in kept]
    for together in measure_together(wanted, DRAWING, remarks, lambda what, i: tell(what, kept[i])):
        yield Together([kept[place] for place in together.calls], together.stats)
    for number, (capture, stats) in enumerate(zip(captures, measured, strict=True)):
        if capture.affine and stats is not None:
            doing = DRAWING.format(name=capture.name)
            tell(doing, number)
            work = partial(_of_measured, capture, stats)
            found = remarks.within_memory(doing, work, most[number], most[number])
            if found:
                yield Together([number], found)


def _rows_of_a_curve(problem: Problem) -> int:
    if not problem.q.is_cuda:
        return ROWS
    return max(ROWS, min(ROWS_ON_GPU, LOGITS_ON_GPU // max(1, problem.k.shape[2])))


def _tables(
    found: Sequence[Together], captures: Sequence[Capture], measured: Sequence[RowStats | None]
) -> dict[int, CurveTable]:
    """What the curves are made of, from statistics at each factor; for layers of one shape at once."""
    tables: dict[int, CurveTable] = {}
    groups: dict[object, list[Together]] = {}
    for one in found:
        first, calls = one.stats[0], len(one.calls)
        sequences, *shape = first.rest.shape
        kind = sequences // calls, *shape, first.rest.device, first.outcomes_beyond_keys
        groups.setdefault(kind, []).append(one)
    for same in groups.values():
        numbers = [number for one in same for number in one.calls]
        stats = RowStats.cat([RowStats.cat(one.stats, 1) for one in same], 0)  # [layers·B, factors·H, R]
        values = torch.stack([stats.jacobian_trace, stats.entropy_fraction, stats.logit_std], 1)
        by_factor = values.unflatten(0, (len(numbers), -1)).unflatten(
            3, (len(FACTORS), -1)
        )  # [layers, B, 3, factors, H, R]
        by_factor = by_factor.movedim(3, 1).flatten(0, 1).transpose(1, 2)  # [layers·factors, 3, B, H, R]
        whole = nearest(by_factor[:, :2].flatten(2), 0.5)
        of_heads = median_of(by_factor.transpose(2, 3).flatten(3)).flatten(1)
        parts = torch.cat([whole, of_heads], 1).split(len(FACTORS))
        seen = (~stats.empty).any(1).unflatten(0, (len(numbers), -1)).sum((1, 2))
        counts = [_rows_of(captures[number], measured[number], seen) for number in numbers]
        both = (CurveTable(part, torch.stack(two)) for part, *two in zip(parts, seen, counts, strict=True))
        tables |= zip(numbers, both, strict=True)
    return tables


def _rows_of(capture: Capture, measured: RowStats | None, like: Tensor) -> Tensor:
    """How many rows a call has."""
    if measured is not None and measured.total_rows is None:
        return (~measured.empty).any(1).sum()
    total = capture.queries if measured is None else measured.total_rows or 0
    return torch.full((), capture.problem.q.shape[0] * total, dtype=like.dtype, device=like.device)


def _read(tables: Sequence[CurveTable]) -> Iterator[CurveNumbers]:
    """What each table says, read from their devices and rounded at once."""
    if not tables:
        return
    numbers = fetched([part for table in tables for part in (table.medians, table.counts)])
    medians, counts = [each.T for each in numbers[::2]], numbers[1::2]  # [numbers, factors]
    first_spread = [2 + 2 * ((len(each) - 2) // 3) for each in medians]
    cut = list(zip(medians, first_spread, strict=True))
    rounded = iter(rounded_rows(torch.cat([each[:first] for each, first in cut]), DIGITS))
    spreads = iter(finite_rows(torch.cat([each[first:] for each, first in cut])))
    for (each, first), (seen, total) in zip(cut, torch.stack(counts).tolist(), strict=True):
        own, rest = list(islice(rounded, first)), list(islice(spreads, len(each) - first))
        yield CurveNumbers(own[0], own[1], own[2 : first // 2 + 1], own[first // 2 + 1 :], rest, int(seen), int(total))


def _curves(layer: Layer, problem: Problem, numbers: CurveNumbers) -> LayerCurve | None:
    """A layer's curves. None if no row saw a key."""
    if not numbers.seen:
        return None
    sigmas = [head.logit_std for head in layer.head_stats]
    curve = partial(_curve, problem, layer.keys)
    spread = [_middle(at) for at in zip(*numbers.spreads, strict=True)]
    whole = curve(numbers.gate, numbers.entropy, spread, _middle(sigmas))
    return LayerCurve(
        **vars(whole),
        factors=FACTORS,
        heads=tuple(map(curve, numbers.gates, numbers.entropies, numbers.spreads, sigmas)),
        rows=numbers.seen,
        rows_total=numbers.total,
        label="exact" if numbers.seen == numbers.total else "sampled",
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
