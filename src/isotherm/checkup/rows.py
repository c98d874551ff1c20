"""The statistics of the softmax rows of a captured call: of every row, or of some."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from isotherm.ops import Problem, statistics_at
from isotherm.probe import Capture
from isotherm.record.plain import finite
from isotherm.stats import Moments, RowStats, sorted_values


def measure(capture: Capture, rows: int | None = None) -> RowStats:
    """Measure a captured call: every row, or `rows` rows spread evenly. Padded rows become empty."""
    return measure_at(capture, rows, [capture.problem.scale])[0]


def measure_at(capture: Capture, rows: int | None, scales: Sequence[float]) -> list[RowStats]:
    """The same at each of several scales, which share one pass over the keys where they can."""
    problem, sampled = _at_hand(capture.problem), capture.rows is not None
    found = statistics(problem, capture.sink, rows, scales, padded=None if sampled else capture.padded)
    if capture.rows is None:
        return found
    kept = [capture.rows if stats.rows is None else capture.rows[stats.rows] for stats in found]
    named = [replace(stats, rows=rows, total_rows=capture.total) for stats, rows in zip(found, kept, strict=True)]
    return [without_padding(stats, capture.padded) for stats in named]


def measure_rows(capture: Capture, rows: Tensor, scales: Sequence[float]) -> list[RowStats]:
    """Statistics of these rows at each of several scales, padded ones too."""
    if capture.rows is not None:  # the problem has only these rows of the call
        rows = torch.searchsorted(capture.rows, rows)
    problem = _at_hand(capture.problem)
    found = statistics_at(problem, scales, rows)
    return found if capture.sink is None else [stats.with_sink(capture.sink.view(-1, 1)) for stats in found]


def _at_hand(problem: Problem) -> Problem:
    """The problem with its keys on the device of its queries: of long inputs they are kept in the host's memory."""
    if problem.k.device == problem.q.device:
        return problem
    k = problem.k.to(problem.q.device)
    return replace(problem, k=k, v=k)


def statistics(
    problem: Problem, sink: Tensor | None, rows: int | None, scales: Sequence[float], *, padded: Tensor | None
) -> list[RowStats]:
    """Measure a problem at each of several scales, which share one pass over the keys where they can. Rows that are True in
    `padded` [B, T] become empty."""
    total, chosen = problem.q.shape[2], None
    if rows is not None and rows < total:
        chosen = spread_rows(total, rows, problem.q.device)
    found = [without_padding(stats, padded) for stats in statistics_at(problem, scales, chosen)]
    return found if sink is None else [stats.with_sink(sink.view(-1, 1)) for stats in found]


def spread_rows(total: int, rows: int, device: torch.device) -> Tensor:
    """Up to `rows` of `total` rows, spread evenly, in order. One row alone is the last: under a causal mask the first sees a
    single key."""
    places = torch.linspace(total - 1, 0, min(rows, total), device=device, dtype=torch.float64)
    return places.long().flip(0)


def nearest(values: Tensor, *fractions: float) -> Tensor:
    """Along the last axis the value that each fraction of the others lies below, nothing in between. What is not finite is left
    out; NaN if nothing is left. With several fractions they are the first axis."""
    ordered, known = _ordered(values)
    places = [((known - 1).clamp(min=0) * fraction).round().long() for fraction in fractions]
    found = [ordered.gather(-1, place).squeeze(-1) for place in places]
    return found[0] if len(found) == 1 else torch.stack(found)


def quantile(values: Tensor, fraction: float) -> float | None:
    """The finite value that this fraction of all others lies below; None if none is finite."""
    return finite(nearest(values.flatten(), fraction).item())


def median_of(values: Tensor) -> Tensor:
    """The median along the last axis, between two numbers their mean. What is not finite is left out."""
    ordered, known = _ordered(values)
    last = (known - 1).clamp(min=0)
    low, high = (ordered.gather(-1, place).squeeze(-1) for place in (last // 2, (last + 1) // 2))
    return low + (high - low) / 2


def _ordered(values: Tensor) -> tuple[Tensor, Tensor]:
    """The values in order with NaN, which comes last, for all that are not finite and once more; and how many are finite."""
    finite = values.isfinite()
    clean = torch.where(finite, values, torch.nan)
    nothing = clean.new_full((*clean.shape[:-1], 1), torch.nan) if not clean.shape[-1] else clean[..., :0]
    return sorted_values(torch.cat([clean, nothing], -1) if nothing.shape[-1] else clean), finite.sum(-1, keepdim=True)


def without_padding(stats: RowStats, padded: Tensor | None) -> RowStats:
    """The statistics with rows that are True in `padded` [B, T] empty."""
    if padded is None:
        return stats
    padded = padded if stats.rows is None else padded[:, stats.rows.to(padded.device)]
    moments = stats.moments
    real = ~padded.unsqueeze(1).to(moments.count.device)
    return replace(stats, moments=Moments(moments.count * real, moments.mean, moments.m2))
