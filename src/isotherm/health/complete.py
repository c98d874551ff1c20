"""What a reader wants beside the figures: theory's prediction for each head, and its rows in finer pictures.

Kept apart from the measurement, which has to be quick: this costs about a millisecond a head.
"""

from dataclasses import replace
from math import log

from isotherm.health.heads import details
from isotherm.record import CheckRecord, HeadStats, Layer
from isotherm.stats import RowStats
from isotherm.theory import gaussian_row

WIDEST = 1e3


def complete(record: CheckRecord, rows: tuple[RowStats, ...]) -> CheckRecord:
    """The record with predictions, histograms and profiles filled in from each layer's row statistics."""
    layers = (_with_details(layer, stats) for layer, stats in zip(record.layers, rows, strict=True))
    return replace(record, layers=tuple(_with_predictions(layer) for layer in layers))


def _with_details(layer: Layer, stats: RowStats) -> Layer:
    pairs = zip(layer.head_stats, details(stats), strict=True)
    return replace(layer, head_stats=tuple(replace(head, detail=detail) for head, detail in pairs))


def _with_predictions(layer: Layer) -> Layer:
    return replace(layer, head_stats=tuple(_head(head, layer.keys) for head in layer.head_stats))


def _head(head: HeadStats, keys: int) -> HeadStats:
    if head.logit_std is None or keys < 2 or not 0 < head.logit_std < WIDEST:
        return head
    # Two digits of σ decide the prediction to within its own spread over rows, and let heads share one integral.
    row = gaussian_row(keys, float(f"{head.logit_std:.2g}"))
    return replace(head, predicted_gate=row.jacobian_trace, predicted_entropy_fraction=row.entropy / log(keys))
