"""The captured q and k replayed under another rule, exactly.

A rule that sets the scale (none, 1/d, 0.1 …) replaces the one in force, whatever that did to q and k on the way. A rule
that only adds to it (x0.5, log-n, a soft cap, a sink) is applied on top.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor

from isotherm.ops import Problem, statistics_at
from isotherm.probe import Capture
from isotherm.record import WhatIfLayer
from isotherm.scale import ByLayer, Fixed, InverseSqrt, MuP, NoScale, PerDim, PerHead, QueryPreAttnScalar, Rule, Site
from isotherm.scale.rule import factors
from isotherm.stats import RowStats

SETS_THE_SCALE = (InverseSqrt, MuP, NoScale, Fixed, QueryPreAttnScalar, PerHead, PerDim)


def measure(capture: Capture, rows: int | None = None) -> RowStats:
    """The row statistics of a captured call as it was."""
    return _statistics(capture.problem, capture.sink, rows, [capture.problem.scale])[0]


def replay(capture: Capture, rules: Sequence[Rule], index: int, rows: int | None = None) -> list[WhatIfLayer]:
    """One captured call under each of several rules; those that change nothing but the scale are measured together."""
    under = [_under(capture, rule, index) for rule in rules]
    rescaled = [i for i, (problem, sink) in enumerate(under) if _only_rescaled(capture, problem, sink)]
    scales = [under[i][0].scale for i in rescaled]
    found = dict(zip(rescaled, _statistics(capture.problem, capture.sink, rows, scales), strict=True))
    for i, (problem, sink) in enumerate(under):
        if i not in found:
            found[i] = _statistics(problem, sink, rows, [problem.scale])[0]
    return [summarise(index, found[i]) for i in range(len(rules))]


def _only_rescaled(capture: Capture, problem: Problem, sink: Tensor | None) -> bool:
    old = capture.problem
    return problem.q is old.q and problem.k is old.k and problem.softcap == old.softcap and sink is capture.sink


def summarise(index: int, stats: RowStats) -> WhatIfLayer:
    """Medians over all heads and rows, the largest logit, and each head's medians."""
    heads = stats.summaries(("jacobian_trace", "entropy_fraction"))
    gates, entropies = (tuple(_finite(x) for x in summary.p50.tolist()) for summary in heads.values())
    return WhatIfLayer(
        index=index,
        entropy_fraction=_quantile(stats.entropy_fraction, 0.5),
        jacobian_trace=_quantile(stats.jacobian_trace, 0.5),
        gate_p10=_quantile(stats.jacobian_trace, 0.1),
        max_logit=_quantile(stats.max_logit, 1.0),
        head_gate=gates,
        head_entropy=entropies,
    )


def _under(capture: Capture, rule: Rule, index: int) -> tuple[Problem, Tensor | None]:
    problem, visibility = capture.problem, capture.problem.visibility
    rule = _at_layer(rule, index)
    site = Site(problem.q.shape[3], problem.q.shape[1], visibility.positions, visibility.counts)
    resolved = rule.resolve(site)
    scale = problem.scale
    if any(isinstance(factor, SETS_THE_SCALE) for factor in factors(rule)):
        on_the_way = [factor.value for factor in (capture.q_factor, capture.k_factor) if factor.value is not None]
        scale = 1.0
        for value in on_the_way:
            scale /= value
    q, k = problem.q, problem.k
    if resolved.normalise is not None:
        q, k = resolved.normalise(q, k)
    if isinstance(resolved.multiplier, Tensor):
        q = (q.to(problem.dtype) * resolved.multiplier).to(problem.dtype)
    else:
        scale *= resolved.multiplier
    softcap = problem.softcap if resolved.softcap is None else resolved.softcap
    sink = capture.sink if resolved.sink is None else resolved.sink
    return replace(problem, q=q, k=k, scale=scale, softcap=softcap), sink


def _at_layer(rule: Rule, index: int) -> Rule:
    """A by-layer rule knows its layer only here."""
    made = [ByLayer(index) if isinstance(factor, ByLayer) else factor for factor in factors(rule)]
    product = made[0]
    for factor in made[1:]:
        product = product * factor
    return product


def _statistics(problem: Problem, sink: Tensor | None, rows: int | None, scales: Sequence[float]) -> list[RowStats]:
    total, chosen = problem.q.shape[2], None
    if rows is not None and rows < total:
        chosen = torch.linspace(0, total - 1, rows, device=problem.q.device).long().unique()
    found = statistics_at(problem, scales, chosen)
    return found if sink is None else [stats.with_sink(sink.view(-1, 1)) for stats in found]


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _quantile(values: Tensor, fraction: float) -> float | None:
    known = values[values.isfinite()]
    if not known.numel():
        return None
    return known.kthvalue(1 + round(fraction * (known.numel() - 1))).values.item()
