"""Run a model once under the probe and measure every softmax row of what it captured."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isotherm.ops import Problem, statistics_at
from isotherm.probe import Capture, NotFinite, Seen, is_finite, probe
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
    """Run one forward under the probe, and a second one if there is something to look at more closely."""
    seen, output, seconds = _look(model, batch, ())
    if seen.suspects:
        seen, output, _ = _look(model, batch, seen.suspects)
    not_finite = seen.not_finite
    if not_finite is None and not is_finite(output):
        not_finite = NotFinite("", None)
    return Look(seen.captures, seen.unseen, not_finite, seconds)


def _look(model: nn.Module, batch: Batch, closely: Sequence[str]) -> tuple[Seen, Any, float]:
    with torch.random.fork_rng(), torch.no_grad(), probe(model, closely) as seen:
        started = time.perf_counter()
        output = call(model, batch)
        seconds = time.perf_counter() - started
    return seen, output, seconds


def call(model: nn.Module, batch: Batch) -> Any:
    """Call the model on a batch of any of the three kinds."""
    if isinstance(batch, Tensor):
        return model(batch)
    return model(**batch) if isinstance(batch, Mapping) else model(*batch)


def measure(capture: Capture, rows: int | None = None, batch: Batch = ()) -> RowStats:
    """Measure a captured call: every row, or `rows` rows spread evenly. Rows that `batch` marks as padding become empty."""
    stats = statistics(capture.problem, capture.sink, rows, [capture.problem.scale])[0]
    if capture.rows is not None:
        kept = capture.rows if stats.rows is None else capture.rows[stats.rows]
        stats = replace(stats, rows=kept, total_rows=capture.total)
    return _without_padding(stats, capture, batch)


def statistics(problem: Problem, sink: Tensor | None, rows: int | None, scales: Sequence[float]) -> list[RowStats]:
    """Measure a problem at each of several scales, which share one pass over the keys where they can."""
    total, chosen = problem.q.shape[2], None
    if rows is not None and rows < total:
        chosen = torch.linspace(0, total - 1, rows, device=problem.q.device).long().unique()
    found = statistics_at(problem, scales, chosen)
    return found if sink is None else [stats.with_sink(sink.view(-1, 1)) for stats in found]


def quantile(values: Tensor, fraction: float) -> float | None:
    """The finite value that this fraction of the others lies below; None if none is finite."""
    known = values[values.isfinite()]
    if not known.numel():
        return None
    return known.kthvalue(1 + round(fraction * (known.numel() - 1))).values.item()


def _without_padding(stats: RowStats, capture: Capture, batch: Batch) -> RowStats:
    if not isinstance(batch, Mapping):
        return stats
    queries = capture.problem.q.shape[2]
    in_decoder = "decoder" in capture.name and ("decoder_input_ids" in batch or "decoder_attention_mask" in batch)
    mask = batch.get("decoder_attention_mask" if in_decoder else "attention_mask")
    if not isinstance(mask, Tensor) or mask.shape != (stats.rest.shape[0], queries) or bool(mask.all()):
        return stats
    rows = stats.rows if stats.rows is not None else torch.arange(queries)
    real = (mask[:, rows.to(mask.device)] != 0).unsqueeze(1).to(stats.rest.device)
    moments = stats.moments
    return replace(stats, moments=Moments(moments.count * real, moments.mean, moments.m2))
