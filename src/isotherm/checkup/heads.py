"""Turn row statistics into each head's record: quantiles, state, histograms and theory's prediction."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from math import log
from typing import Any

import torch
from torch import Tensor

from isotherm.checkup.thresholds import DIFFUSE, SATURATED, SINK
from isotherm.record import HeadDetail, HeadStats, Layer, Spread, State
from isotherm.record.plain import finite
from isotherm.stats import RowStats, Summary
from isotherm.theory import gaussian_row

BINS = 20
STRETCHES = 32
WIDEST = 1e3
"""The largest logit spread to predict for."""
SPREADS = ("entropy", "entropy_fraction", "jacobian_trace", "top1", "n_eff")
FIELDS = ("mean", "p10", "p50", "p90", "max")
"""Fields of a `Summary`, in the order `_plain` reads them."""


def heads_of_layers(layers: list[RowStats]) -> list[tuple[HeadStats, ...]]:
    """Each layer's head records. Layers of one shape are summarised together, which takes a tenth of the time."""
    made: dict[int, tuple[HeadStats, ...]] = {}
    for group in _same_shape(layers):
        numbers = [range(layers[index].rest.shape[1]) for index in group]
        records = iter(head_stats(RowStats.cat([layers[index] for index in group], 1), [*chain(*numbers)]))
        made |= {index: tuple(islice(records, len(heads))) for index, heads in zip(group, numbers, strict=True)}
    return [made[index] for index in range(len(layers))]


def _same_shape(layers: list[RowStats]) -> list[list[int]]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, stats in enumerate(layers):
        sampled = None if stats.rows is None else tuple(stats.rows.tolist())
        shape = (stats.rest.shape[0], stats.rest.shape[2], sampled, stats.total_rows, stats.outcomes_beyond_keys)
        groups.setdefault((*shape, stats.rest.device), []).append(index)
    return list(groups.values())


def head_stats(stats: RowStats, numbers: Sequence[int]) -> list[HeadStats]:
    """One record for each head of statistics [B, Hq, R]. `numbers` are the heads' indices within their layers."""
    summaries = stats.summaries((*SPREADS, "sink", "max_logit", "logit_std"))
    entropy = summaries["entropy"]
    read = dict(zip(summaries, _plain(list(summaries.values())), strict=True))
    counts = zip(*(getattr(entropy, name).tolist() for name in ("rows", "empty", "invalid")), strict=True)
    excess = _first_key_excess(stats)
    sampled = stats.rows is not None
    records = []
    for head, (number, (rows, empty, invalid)) in enumerate(zip(numbers, counts, strict=True)):
        spreads: dict[str, Any] = {name: Spread(*(column[head] for column in read[name][:4])) for name in SPREADS}
        gate, fraction = spreads["jacobian_trace"].p50, spreads["entropy_fraction"].p50
        records.append(
            HeadStats(
                head=number,
                state=state(rows, invalid, gate, fraction, excess[head]),
                **spreads,
                max_logit=read["max_logit"][4][head],
                logit_std=read["logit_std"][2][head],
                sink=read["sink"][0][head],
                rows=rows,
                empty=empty,
                invalid=invalid,
                label=stats.label,
                predicted_gate=None,
                predicted_entropy_fraction=None,
                rows_total=stats.rest.shape[0] * (stats.total_rows or 0) if sampled else None,
                entropy_interval=finite(entropy.interval[head].item()) if sampled else None,
            )
        )
    return records


def _plain(summaries: list[Summary]) -> list[list[list[float | None]]]:
    """Summaries as plain numbers [summary][field][head], None where a number is not finite."""
    table = torch.stack([torch.stack([getattr(summary, name) for name in FIELDS]) for summary in summaries])
    numbers: list[list[list[float | None]]] = table.tolist()
    if bool(table.isfinite().all()):
        return numbers
    return [[[None if x is None else finite(x) for x in column] for column in columns] for columns in numbers]


def state(rows: int, invalid: int, gate: float | None, fraction: float | None, excess: float) -> State:
    """A head's state. `invalid` comes first. `sink` comes before `saturated`, because a sink explains a closed gate. A softmax
    over one key is not saturated: its gate cannot be open, and it has no fraction of ln n."""
    if invalid:
        return "invalid"
    if not rows:
        return "empty"
    if excess > SINK:
        return "sink"
    if gate is not None and gate < SATURATED and fraction is not None:
        return "saturated"
    return "diffuse" if fraction is not None and fraction > DIFFUSE else "balanced"


def _first_key_excess(stats: RowStats) -> list[float]:
    """Per head, how far the first key's mean probability exceeds 1/n, over rows that see more than one key."""
    beyond = stats.sink - 1 / stats.n.clamp(min=1)
    beyond = torch.where(stats.n > 1, beyond, torch.nan)
    return beyond.transpose(0, 1).flatten(1).nanmean(-1).nan_to_num(0.0).tolist()


def with_detail(layers: tuple[Layer, ...], measured: list[RowStats]) -> tuple[Layer, ...]:
    """Add histograms, profiles and predictions to each head. Takes about a millisecond a head."""
    return tuple(
        replace(
            layer,
            head_stats=tuple(
                replace(_predicted(head, layer.keys), detail=detail)
                for head, detail in zip(layer.head_stats, _details(stats), strict=True)
            ),
        )
        for layer, stats in zip(layers, measured, strict=True)
    )


def _predicted(head: HeadStats, keys: int) -> HeadStats:
    """The head with what Gaussian logits of its spread would give."""
    if head.logit_std is None or keys < 2 or not 0 < head.logit_std < WIDEST:
        return head
    # Two digits of the spread fix the prediction well within its scatter over rows, and let heads share one integral.
    row = gaussian_row(keys, float(f"{head.logit_std:.2g}"))
    return replace(head, predicted_gate=row.jacobian_trace, predicted_entropy_fraction=row.entropy / log(keys))


def _details(stats: RowStats) -> list[HeadDetail]:
    """Histograms and profiles of each head, from statistics [B, Hq, R]."""
    gate, fraction = stats.jacobian_trace, stats.entropy_fraction
    histograms = [_histogram(values).tolist() for values in (gate, fraction)]
    profiles = [_profile(values).round(decimals=4).tolist() for values in (gate, fraction)]
    return [
        HeadDetail(
            gate_histogram=tuple(histograms[0][head]),
            entropy_histogram=tuple(histograms[1][head]),
            position_gate=tuple(map(finite, profiles[0][head])),
            position_entropy=tuple(map(finite, profiles[1][head])),
        )
        for head in range(gate.shape[1])
    ]


def _histogram(values: Tensor) -> Tensor:
    """Counts [H, BINS] of values [B, H, R] in equal bins of [0, 1]; NaN is left out."""
    flat = values.transpose(0, 1).flatten(1)
    known = flat.isfinite()
    bins = (flat.nan_to_num(0.0) * BINS).long().clamp(0, BINS - 1)
    return torch.zeros(flat.shape[0], BINS, dtype=torch.long, device=flat.device).scatter_add_(1, bins, known.long())


def _profile(values: Tensor) -> Tensor:
    """Means [H, stretches] of values [B, H, R] over equal stretches of the rows."""
    rows = values.shape[-1]
    stretches = min(STRETCHES, max(1, rows))
    where = (torch.arange(rows, device=values.device) * stretches) // max(1, rows)
    known = values.isfinite()
    total = torch.zeros(values.shape[1], stretches, dtype=torch.float64, device=values.device)
    count = torch.zeros_like(total)
    index = where.expand(values.shape[1], rows)
    total.scatter_add_(1, index, torch.where(known, values, 0.0).sum(0))
    count.scatter_add_(1, index, known.sum(0).double())
    return total / count
