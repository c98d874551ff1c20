"""Replay captured q and k under another rule, exactly.

A rule that sets the scale (none, 1/d, 0.1, cosine …) replaces the scale in force, including what the model multiplied into q
and k before the kernel. Any other rule (x0.5, log-n, a soft cap, a sink) is applied on top of the scale in force.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from torch import Tensor

from isotherm.checkup.measure import quantile, statistics
from isotherm.errors import ArgumentError, named
from isotherm.language import Text
from isotherm.ops import Problem
from isotherm.probe import Capture, Factor
from isotherm.record import WhatIfLayer
from isotherm.record.plain import finite
from isotherm.scale import Rule, Site, parse
from isotherm.stats import RowStats


def check_rules(rules: Sequence[str | Rule]) -> list[tuple[str, Rule]]:
    """Each rule with its name. Refuses a misspelt rule, and one that leaves no softmax rows to measure."""
    if isinstance(rules, str) or not all(isinstance(rule, str | Rule) for rule in rules or ()):
        expected = Text("a list of rules, as objects or as text", "规则（对象或文本）的列表")
        raise ArgumentError("what_if", expected, got=repr(rules)[:80])
    with named(scale="what_if"):
        parsed = [(str(rule), parse(rule) if isinstance(rule, str) else rule) for rule in rules or ()]
    for text, rule in parsed:
        if not rule.has_softmax:
            raise ArgumentError("what_if", Text("rules with a softmax", "含有 softmax 的规则"), got=repr(text))
    return parsed


def replay(capture: Capture, rules: Sequence[Rule], index: int, rows: int | None = None) -> list[WhatIfLayer]:
    """Measure one captured call under each rule. Rules that change only the scale share one pass over the keys. Logits that are
    no affine function of q·k have no scale to change: nothing is said about them."""
    if not capture.affine:
        return [WhatIfLayer(index, None, None, None, None) for _ in rules]
    under = [_under(capture, rule, index) for rule in rules]
    rescaled = [i for i, (problem, sink) in enumerate(under) if _only_rescaled(capture, problem, sink)]
    scales = [under[i][0].scale for i in rescaled]
    measured = statistics(capture.problem, capture.sink, rows, scales, padded=capture.padded)
    found = dict(zip(rescaled, measured, strict=True))
    for i, (problem, sink) in enumerate(under):
        if i not in found:
            found[i] = statistics(problem, sink, rows, [problem.scale], padded=capture.padded)[0]
    return [summarise(index, found[i]) for i in range(len(rules))]


def _only_rescaled(capture: Capture, problem: Problem, sink: Tensor | None) -> bool:
    old = capture.problem
    return problem.q is old.q and problem.k is old.k and problem.softcap == old.softcap and sink is capture.sink


def summarise(index: int, stats: RowStats) -> WhatIfLayer:
    """Medians over all heads and rows, the largest logit, and each head's medians."""
    heads = stats.summaries(("jacobian_trace", "entropy_fraction"))
    gates, entropies = (tuple(finite(x) for x in summary.p50.tolist()) for summary in heads.values())
    return WhatIfLayer(
        index=index,
        entropy_fraction=quantile(stats.entropy_fraction, 0.5),
        jacobian_trace=quantile(stats.jacobian_trace, 0.5),
        gate_p10=quantile(stats.jacobian_trace, 0.1),
        max_logit=quantile(stats.max_logit, 1.0),
        head_gate=gates,
        head_entropy=entropies,
    )


def _carried(factor: Factor) -> float:
    """The number that the model multiplied into q or k: since its projection, or since it normalised them."""
    number = factor.after_norm if factor.kind == "normalised" else factor.value
    return 1.0 if number is None else number


def _under(capture: Capture, rule: Rule, index: int) -> tuple[Problem, Tensor | None]:
    """The captured problem and sink under a rule.

    The logits are scale·q·k, and q·k may already carry factors that the model multiplied in. A normalisation removes these
    factors from q and k, so they then belong to the scale.
    """
    problem, visibility = capture.problem, capture.problem.visibility
    resolved = rule.at_layer(index).resolve(
        Site(problem.q.shape[3], problem.q.shape[1], visibility.positions, visibility.counts)
    )
    carried = prod(_carried(factor) for factor in (capture.q_factor, capture.k_factor))
    scale = 1 / carried if rule.sets_scale else problem.scale
    q, k = problem.q, problem.k
    if resolved.normalise is not None:
        q, k = resolved.normalise(q, k)
        scale *= carried
    if isinstance(resolved.multiplier, Tensor):
        q = (q.to(problem.dtype) * resolved.multiplier).to(problem.dtype)
    else:
        scale *= resolved.multiplier
    softcap = problem.softcap if resolved.softcap is None else resolved.softcap
    sink = capture.sink if resolved.sink is None else resolved.sink
    return replace(problem, q=q, k=k, scale=scale, softcap=softcap), sink
