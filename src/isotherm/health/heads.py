"""From row statistics to a head's record: quantiles, histograms, and its state."""

from math import isfinite

import torch
from torch import Tensor

from isotherm.health.thresholds import DIFFUSE, SATURATED, SINK
from isotherm.record import HeadDetail, HeadStats, Spread, State
from isotherm.stats import RowStats

BINS = 20
STRETCHES = 32
SPREADS = ("entropy", "entropy_fraction", "jacobian_trace", "top1", "n_eff")
FIELDS = ("mean", "p10", "p50", "p90", "max")


def head_stats(stats: RowStats) -> tuple[HeadStats, ...]:
    """One record a head, from statistics [B, Hq, R]."""
    summaries = stats.summaries((*SPREADS, "sink", "max_logit", "logit_std"))
    read = {name: {field: getattr(summary, field).tolist() for field in FIELDS} for name, summary in summaries.items()}
    entropy = summaries["entropy"]
    rows, empty, invalid = (getattr(entropy, field).tolist() for field in ("rows", "empty", "invalid"))
    excess, details = _first_key_excess(stats), _details(stats)
    records = []
    for head in range(stats.rest.shape[1]):
        spreads = {name: Spread(*(_finite(read[name][field][head]) for field in FIELDS[:4])) for name in SPREADS}
        gate, fraction = spreads["jacobian_trace"].p50, spreads["entropy_fraction"].p50
        records.append(
            HeadStats(
                head=head,
                state=state(rows[head], invalid[head], gate, fraction, excess[head]),
                **spreads,
                max_logit=_finite(read["max_logit"]["max"][head]),
                logit_std=_finite(read["logit_std"]["p50"][head]),
                sink=_finite(read["sink"]["mean"][head]),
                rows=rows[head],
                empty=empty[head],
                invalid=invalid[head],
                label=stats.label,
                predicted_gate=None,
                predicted_entropy_fraction=None,
                detail=details[head],
                rows_total=None if stats.rows is None else stats.rest.shape[0] * (stats.total_rows or 0),
                entropy_interval=None if stats.rows is None else _finite(entropy.interval[head].item()),
            )
        )
    return tuple(records)


def state(rows: int, invalid: int, gate: float | None, fraction: float | None, excess: float) -> State:
    """A head's state. Invalid before all; a sink explains a closed gate, so it is named before saturation."""
    if invalid:
        return "invalid"
    if not rows:
        return "empty"
    if excess > SINK.value:
        return "sink"
    if gate is not None and gate < SATURATED.value:
        return "saturated"
    return "diffuse" if fraction is not None and fraction > DIFFUSE.value else "balanced"


def _first_key_excess(stats: RowStats) -> list[float]:
    """Mean probability of the first key beyond its even share 1/n, over rows that see more than one key."""
    beyond = stats.sink - 1 / stats.n.clamp(min=1)
    beyond = torch.where(stats.n > 1, beyond, torch.nan)
    return beyond.transpose(0, 1).flatten(1).nanmean(-1).nan_to_num(0.0).tolist()


def _details(stats: RowStats) -> list[HeadDetail]:
    gate, fraction = stats.jacobian_trace, stats.entropy_fraction
    histograms = [_histogram(values).tolist() for values in (gate, fraction)]
    profiles = [_profile(values).tolist() for values in (gate, fraction)]
    return [
        HeadDetail(
            gate_histogram=tuple(histograms[0][head]),
            entropy_histogram=tuple(histograms[1][head]),
            position_gate=tuple(_short(value) for value in profiles[0][head]),
            position_entropy=tuple(_short(value) for value in profiles[1][head]),
        )
        for head in range(gate.shape[1])
    ]


def _histogram(values: Tensor) -> Tensor:
    """Counts of [B, H, R] values in equal bins of [0, 1], per head; NaN is left out."""
    flat = values.transpose(0, 1).flatten(1)
    known = flat.isfinite()
    bins = (flat.nan_to_num(0.0) * BINS).long().clamp(0, BINS - 1)
    return torch.zeros(flat.shape[0], BINS, dtype=torch.long, device=flat.device).scatter_add_(1, bins, known.long())


def _profile(values: Tensor) -> Tensor:
    """Means of [B, H, R] values over equal stretches of the rows, per head."""
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


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _short(value: float) -> float | None:
    return round(value, 4) if isfinite(value) else None
