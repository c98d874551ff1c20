"""Run a model once under the probe and measure every softmax row of what it captured."""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isotherm.checkup.inputs import across_pictures
from isotherm.checkup.padding import with_padding
from isotherm.ops import Problem, statistics_at
from isotherm.probe import Capture, NotFinite, Seen, is_finite, probe
from isotherm.probe.heads import head_count
from isotherm.probe.kinds import with_landmarks
from isotherm.probe.slices import merge_slices
from isotherm.record import Unseen
from isotherm.stats import Moments, RowStats

Batch = Mapping[str, Any] | Sequence[Any] | Tensor
"""Keyword arguments for the model, positional ones, or one tensor."""


class Look(NamedTuple):
    """One forward under the probe: its captures, what the probe could not see, the first output that was not finite (None if
    all were), and the seconds it took."""

    captures: list[Capture]
    unseen: list[Unseen]
    not_finite: NotFinite | None
    seconds: float


def look(model: nn.Module, batch: Batch) -> Look:
    """Run one forward under the probe, and a second one if there is something to look at more closely. The caller's grad mode
    is kept, and no capture holds on to the graph."""
    seen, output, seconds = _look(model, batch, ())
    if seen.suspects:
        seen, output, _ = _look(model, batch, seen.suspects)
    not_finite = seen.not_finite
    if not_finite is None and not is_finite(output):
        not_finite = NotFinite("", None)
    captures, place = merge_slices(seen.captures, _head_counts(model, seen.captures))
    if not_finite is not None and not_finite.capture is not None:
        not_finite = NotFinite(not_finite.module, place[not_finite.capture])
    captures = [across_pictures(capture, model, batch) for capture in with_landmarks(captures)]
    return Look(with_padding(captures, model, batch), seen.unseen, not_finite, seconds)


def _head_counts(model: nn.Module, captures: Sequence[Capture]) -> dict[str, int | None]:
    """The number of heads that each captured module declares."""
    return {name: head_count(_submodule(model, name)) for name in {capture.name for capture in captures}}


def _submodule(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except (AttributeError, RuntimeError):  # compiled modules have other names, and scripted ones cannot be asked
        return None


def _look(model: nn.Module, batch: Batch, closely: Sequence[str]) -> tuple[Seen, Any, float]:
    with torch.random.fork_rng(), probe(model, closely) as seen:
        started = time.perf_counter()
        output = call(model, batch)
        seconds = time.perf_counter() - started
    return seen, output, seconds


def call(model: nn.Module, batch: Batch) -> Any:
    """Call the model on a batch of any of the three kinds. A dict among positional arguments is copied: models that take one
    (sentence-transformers, Lightning) add to it."""
    if isinstance(batch, Tensor):
        return model(batch)
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*(copy.copy(value) if isinstance(value, Mapping) else value for value in batch))


def measure(capture: Capture, rows: int | None = None) -> RowStats:
    """Measure a captured call: every row, or `rows` rows spread evenly. Padded rows become empty."""
    stats = statistics(capture.problem, capture.sink, rows, [capture.problem.scale], padded=capture.padded)[0]
    if capture.rows is None:
        return stats
    kept = capture.rows if stats.rows is None else capture.rows[stats.rows]
    return replace(stats, rows=kept, total_rows=capture.total)


def statistics(
    problem: Problem, sink: Tensor | None, rows: int | None, scales: Sequence[float], *, padded: Tensor | None
) -> list[RowStats]:
    """Measure a problem at each of several scales, which share one pass over the keys where they can. Rows that are True in
    `padded` [B, T] become empty."""
    total, chosen = problem.q.shape[2], None
    if rows is not None and rows < total:
        # From the last row, so that one row alone is not the first: under a causal mask that sees a single key.
        chosen = torch.linspace(total - 1, 0, rows, device=problem.q.device).long().unique()
    found = [_without_padding(stats, padded) for stats in statistics_at(problem, scales, chosen)]
    return found if sink is None else [stats.with_sink(sink.view(-1, 1)) for stats in found]


def quantile(values: Tensor, fraction: float) -> float | None:
    """The finite value that this fraction of the others lies below; None if none is finite."""
    known = values[values.isfinite()]
    if not known.numel():
        return None
    return known.kthvalue(1 + round(fraction * (known.numel() - 1))).values.item()


def _without_padding(stats: RowStats, padded: Tensor | None) -> RowStats:
    if padded is None:
        return stats
    padded = padded if stats.rows is None else padded[:, stats.rows.to(padded.device)]
    moments = stats.moments
    real = ~padded.unsqueeze(1).to(moments.count.device)
    return replace(stats, moments=Moments(moments.count * real, moments.mean, moments.m2))
