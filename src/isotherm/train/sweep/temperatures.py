"""Measure a model's attention during training, with the probe and the row statistics."""

from typing import Any

import torch
from torch import Tensor, nn

from isotherm.checkup.rows import measure, quantile
from isotherm.ops import Score
from isotherm.probe import probe
from isotherm.record.sweep import Temperature
from isotherm.stats import RowStats
from isotherm.train.batches import Batch
from isotherm.train.sweep.model_stack import ModelStack
from isotherm.train.tokens import PAD

EXAMPLES = 8
"""Held-out examples looked at."""
STATISTICS = ("jacobian_trace", "entropy_fraction", "logit_std")


def projections(model: nn.Module) -> tuple[list[str], list[str]]:
    """The parameters of every W_q and of every W_k, by name."""
    names = [name for name, _ in model.named_parameters()]
    parts = {name: name.split(".")[-2:-1] for name in names}
    return [name for name in names if parts[name] == ["query"]], [name for name in names if parts[name] == ["key"]]


@torch.no_grad()
def temperature(stack: ModelStack, model: int, batch: Batch) -> Temperature:
    """One model of the stack, as it is now, on a few examples of a batch.

    Counted are the rows of tokens whose labels ask for something or, in an encoder, of tokens that are not padding; not rows
    with one visible key, whose softmax is always 1.
    """
    few = batch.map(lambda tokens: tokens[:EXAMPLES])
    rows = rows_of(stack.alone(model), few.inputs)
    values = {name: [_counting(getattr(stats, name), stats, few) for stats in rows] for name in STATISTICS}
    gate, entropy, spread = (torch.cat(values[name]) if rows else torch.empty(0) for name in STATISTICS)
    return Temperature(
        step=stack.taken,
        gate=quantile(gate, 0.5),
        gate_p10=quantile(gate, 0.1),
        entropy_fraction=quantile(entropy, 0.5),
        logit_std=quantile(spread, 0.5),
    )


def rows_of(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[RowStats]:
    """The statistics of every softmax row of one forward. A `Score`, which a probe cannot see into, computes them itself."""
    scores = [module for module in model.modules() if isinstance(module, Score)]
    if not scores:
        with probe(model) as seen:
            model(*inputs)
        return [measure(capture) for capture in seen.captures]
    calls: list[tuple[Score, tuple[Any, ...], dict[str, Any]]] = []
    hooks = [score.register_forward_pre_hook(lambda *call: calls.append(call), with_kwargs=True) for score in scores]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    found = [score(*given, **{**options, "stats": True}).stats for score, given, options in calls]
    return [stats for stats in found if stats is not None]


def _counting(values: Tensor, stats: RowStats, batch: Batch) -> Tensor:
    """The values [B, H, T] of the rows that count. The number of queries tells which tokens they are."""
    counts = (stats.n > 1) & ~stats.invalid
    for places in (batch.labels != PAD, *(tokens != PAD for tokens in batch.inputs)):
        if places.shape[1] == counts.shape[-1]:
            return values[counts & places.unsqueeze(1)]
    return values[counts]
