"""Turn row statistics into each head's record: quantiles, state, histograms and theory's prediction.

What is reported of a head is first computed as numbers on the rows' device, for all heads of all layers at once, and then read
at once (`fetch.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from isotherm.checkup.fetch import fetched, finite_rows
from isotherm.checkup.thresholds import DIFFUSE, SATURATED, SINK
from isotherm.record import HeadDetail, HeadStats, Spread, State
from isotherm.stats import RowStats
from isotherm.theory import gaussian_row

AT_ONCE = 1 << 21
"""How many rows are summarised together at most: sorting them takes some 300 bytes for each."""
BINS = 20
LANES = 64
"""Counters of each bin: rows that add to one counter wait for each other on a GPU."""
STRETCHES = 32
WIDEST = 1e3
"""The largest logit spread to predict for."""
SPREADS = ("entropy", "entropy_fraction", "jacobian_trace", "top1", "n_eff")
COUNTS = ("rows", "empty", "invalid", "keys")
COLUMNS = (*(f"{name} {field}" for name in SPREADS for field in ("mean", "p10", "p50", "p90")), "max_logit", "logit_std",
           "sink", "excess", "interval", *COUNTS)  # fmt: skip
"""The numbers of a head without detail; the detail follows them: two histograms and two profiles."""


@dataclass(frozen=True, eq=False)
class HeadTable:
    """The numbers that are reported of the heads of a layer, [heads, columns]. `total` is the number of rows of a head if they
    are a sample."""

    numbers: Tensor
    label: Literal["exact", "sampled"]
    total: int | None


class LayerHeads(NamedTuple):
    """The heads of a layer, and the largest number of visible keys that a row had."""

    records: tuple[HeadStats, ...]
    keys: int


def heads_of_layers(layers: Sequence[RowStats], *, detail: bool = False) -> list[tuple[HeadStats, ...]]:
    """Each layer's head records. With `detail` they have histograms, profiles and predictions."""
    return [heads.records for heads in read_heads(head_tables(layers, detail=detail))]


def head_tables(layers: Sequence[RowStats], *, detail: bool) -> list[HeadTable]:
    """Each layer's numbers. Layers of one shape are summarised together, which takes a tenth of the time."""
    made: dict[int, HeadTable] = {}
    for group in _same_shape(layers):
        stats = RowStats.cat([layers[index] for index in group], 1)
        few = max(1, AT_ONCE // max(1, stats.rest.shape[0] * stats.rest.shape[2]))
        heads = [_numbers(some, detail=detail) for some in _split(stats, few)]
        parts = torch.cat(heads).split([layers[index].rest.shape[1] for index in group])
        total = None if stats.rows is None else stats.rest.shape[0] * (stats.total_rows or 0)
        made |= {index: HeadTable(part, stats.label, total) for index, part in zip(group, parts, strict=True)}
    return [made[index] for index in range(len(layers))]


def _split(stats: RowStats, heads: int) -> list[RowStats]:
    """Statistics [B, Hq, R] of so many heads at a time."""
    if stats.rest.shape[1] <= heads:
        return [stats]
    places = [slice(start, start + heads) for start in range(0, stats.rest.shape[1], heads)]
    return [stats.map(lambda values, place=place: values[:, place]) for place in places]  # type: ignore[misc]


def read_heads(tables: Sequence[HeadTable]) -> list[LayerHeads]:
    """The heads of each layer, read at once."""
    found = []
    for table, numbers in zip(tables, fetched([table.numbers for table in tables]), strict=True):
        keys = int(numbers[:, COLUMNS.index("keys")].amax()) if len(numbers) else 0
        plain, details = finite_rows(numbers[:, : len(COLUMNS)]), _detail(numbers[:, len(COLUMNS) :])
        both = enumerate(zip(plain, details, strict=True))
        found.append(
            LayerHeads(tuple(_record(number, row, detail, table, keys) for number, (row, detail) in both), keys)
        )
    return found


def _same_shape(layers: Sequence[RowStats]) -> list[list[int]]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, stats in enumerate(layers):
        shape = (stats.rest.shape[0], stats.rest.shape[2], stats.rows is None, stats.total_rows)
        groups.setdefault((*shape, stats.outcomes_beyond_keys, stats.rest.device), []).append(index)
    return list(groups.values())


def _numbers(stats: RowStats, *, detail: bool) -> Tensor:
    """[heads, columns] of statistics [B, Hq, R]."""
    sampled = stats.rows is not None
    summaries = stats.summaries((*SPREADS, "logit_std"))
    entropy = summaries["entropy"]
    columns = [getattr(summaries[name], field) for name in SPREADS for field in ("mean", "p10", "p50", "p90")]
    columns += [_largest(stats.max_logit), summaries["logit_std"].p50, _by_head(stats.sink).nanmean(-1), _excess(stats)]
    columns += [entropy.interval if sampled else torch.full_like(entropy.mean, torch.nan)]
    keys = stats.n.amax((0, 2)) if stats.n.numel() else stats.n.sum((0, 2))
    columns += [entropy.rows, entropy.empty, entropy.invalid, keys]
    table = torch.stack([column.double() for column in columns], 1)
    return torch.cat([table, *_details(stats)], 1) if detail else table


def _by_head(values: Tensor) -> Tensor:
    """[B, H, R] → [H, B·R]."""
    return values.transpose(0, 1).flatten(1)


def _largest(values: Tensor) -> Tensor:
    """The largest finite number of each head; NaN where there is none."""
    known = _by_head(torch.where(values.isfinite(), values, -torch.inf))
    largest = torch.cat([known, known.new_full((known.shape[0], 1), -torch.inf)], 1).amax(1)
    return torch.where(largest.isinf(), torch.nan, largest)


def _excess(stats: RowStats) -> Tensor:
    """Per head, how far the first key's mean probability exceeds 1/n, over rows that see more than one key."""
    beyond = stats.sink - 1 / stats.n.clamp(min=1)
    return _by_head(torch.where(stats.n > 1, beyond, torch.nan)).nanmean(-1).nan_to_num(0.0)


def _record(
    number: int, numbers: Sequence[float | None], detail: HeadDetail | None, table: HeadTable, keys: int
) -> HeadStats:
    max_logit, logit_std, sink, excess, interval, *counts = numbers[4 * len(SPREADS) :]
    rows, empty, invalid, _ = (int(count or 0) for count in counts)
    entropy, fraction, gate, top1, n_eff = (Spread(*numbers[i : i + 4]) for i in range(0, 4 * len(SPREADS), 4))
    predicted = (None, None) if detail is None else _predicted(logit_std, keys)
    return HeadStats(
        head=number,
        state=state(rows, invalid, gate.p50, fraction.p50, excess or 0.0),
        entropy=entropy,
        entropy_fraction=fraction,
        jacobian_trace=gate,
        top1=top1,
        n_eff=n_eff,
        max_logit=max_logit,
        logit_std=logit_std,
        sink=sink,
        rows=rows,
        empty=empty,
        invalid=invalid,
        label=table.label,
        predicted_gate=predicted[0],
        predicted_entropy_fraction=predicted[1],
        detail=detail,
        rows_total=table.total,
        entropy_interval=interval,
    )


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


def _predicted(logit_std: float | None, keys: int) -> tuple[float | None, float | None]:
    """The gate and the entropy fraction that Gaussian logits of that spread would give."""
    if logit_std is None or keys < 2 or not 0 < logit_std < WIDEST:
        return None, None
    # Two digits of the spread fix the prediction well within its scatter over rows, and let heads share one integral.
    row = gaussian_row(keys, float(f"{logit_std:.2g}"))
    return row.jacobian_trace, row.entropy / log(keys)


def _details(stats: RowStats) -> Iterator[Tensor]:
    """Histograms and profiles of each head, from statistics [B, Hq, R]."""
    gate, fraction = stats.jacobian_trace, stats.entropy_fraction
    yield from (_histogram(values).double() for values in (gate, fraction))
    yield from (_profile(values).round(decimals=4) for values in (gate, fraction))


def _detail(numbers: Tensor) -> list[HeadDetail] | list[None]:
    """The detail of each head, from its last columns; None where there are no such columns."""
    if not numbers.shape[1]:
        return [None] * len(numbers)
    counts = numbers[:, : 2 * BINS].long().unflatten(1, (2, BINS)).tolist()
    profiles = finite_rows(numbers[:, 2 * BINS :])
    stretches = (numbers.shape[1] - 2 * BINS) // 2
    return [
        HeadDetail(tuple(gate), tuple(entropy), tuple(profile[:stretches]), tuple(profile[stretches:]))
        for (gate, entropy), profile in zip(counts, profiles, strict=True)
    ]


def _histogram(values: Tensor) -> Tensor:
    """Counts [H, BINS] of values [B, H, R] in equal bins of [0, 1]; NaN is left out."""
    flat = values.transpose(0, 1).flatten(1)
    known = flat.isfinite()
    bins = (flat.nan_to_num(0.0) * BINS).long().clamp(0, BINS - 1)
    places = bins * LANES + torch.arange(flat.shape[1], device=flat.device) % LANES
    counts = torch.zeros(flat.shape[0], BINS * LANES, dtype=torch.long, device=flat.device)
    return counts.scatter_add_(1, places, known.long()).unflatten(1, (BINS, LANES)).sum(-1)


def _profile(values: Tensor) -> Tensor:
    """Means [H, stretches] of values [B, H, R] over equal stretches of the rows."""
    rows = values.shape[-1]
    stretches = min(STRETCHES, max(1, rows))
    if rows and rows % stretches == 0:
        cut = values.unflatten(-1, (stretches, -1))
        known = cut.isfinite()
        return torch.where(known, cut, 0.0).sum((0, 3), dtype=torch.float64) / known.sum((0, 3))
    where = (torch.arange(rows, device=values.device) * stretches) // max(1, rows)
    known = values.isfinite()
    total = torch.zeros(values.shape[1], stretches, dtype=torch.float64, device=values.device)
    count = torch.zeros_like(total)
    index = where.expand(values.shape[1], rows)
    total.scatter_add_(1, index, torch.where(known, values, 0.0).sum(0))
    count.scatter_add_(1, index, known.sum(0).double())
    return total / count
