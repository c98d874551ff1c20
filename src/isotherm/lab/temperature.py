"""Scaled beside unscaled attention over the head dimension: the whole point of 1/√d in one table."""

from collections.abc import Callable
from math import log

import torch
from torch import Tensor

from isotherm.lab.dots import row_stats
from isotherm.record import DimensionRow, RuleAtDimension, TemperatureTable
from isotherm.scale import InverseSqrt, NoScale, Rule
from isotherm.theory import RowExpectation, freezing_threshold, gaussian_attention

DIMENSIONS = (16, 32, 64, 128, 256, 512, 1024)


def measure(
    n: int = 1024, heads: int = 4, seed: int = 0, progress: Callable[[int], object] = lambda _: None
) -> TemperatureTable:
    """Independent unit-variance q and k under 1/√d and without it; `progress` is told each d when it is done."""
    rows = []
    for d in DIMENSIONS:
        generator = torch.Generator().manual_seed(seed + d)
        q, k = (torch.randn(1, heads, n, d, generator=generator) for _ in range(2))
        scaled = _read(q, k, InverseSqrt(), gaussian_attention(n, d, d**-0.5))
        unscaled = _read(q, k, NoScale(), gaussian_attention(n, d, 1.0))
        rows.append(DimensionRow(d, scaled, unscaled))
        progress(d)
    return TemperatureTable(n, heads * n, freezing_threshold(n), tuple(rows))


def _read(q: Tensor, k: Tensor, rule: Rule, predicted: RowExpectation) -> RuleAtDimension:
    stats = row_stats(q, k, rule)
    return RuleAtDimension(
        logit_std=stats.logit_std.mean().item(),
        entropy=stats.entropy_fraction.mean().item(),
        entropy_predicted=predicted.entropy / log(k.shape[2]),
        gate=stats.jacobian_trace.mean().item(),
        gate_predicted=predicted.jacobian_trace,
        gate_p10=stats.jacobian_trace.flatten().quantile(0.1).item(),
    )
