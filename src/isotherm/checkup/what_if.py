"""Replay captured q and k under another rule, exactly.

A rule that sets the scale (none, 1/d, 0.1, cosine …) replaces the scale in force, including what the model multiplied into q
and k before the kernel. Any other rule (x0.5, log-n, a soft cap, a sink) is applied on top of the scale in force.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from isotherm.checkup.fetch import fetched
from isotherm.checkup.looking import QUERIES
from isotherm.checkup.memory import Remarks
from isotherm.checkup.rows import median_of, nearest
from isotherm.checkup.together import Tell, Wanted, measure_together
from isotherm.errors import ArgumentError, named
from isotherm.language import Text
from isotherm.ops import Problem
from isotherm.probe import Capture, Factor
from isotherm.record import WhatIfLayer
from isotherm.record.plain import finite
from isotherm.scale import Relative, Rule, Site, parse
from isotherm.stats import RowStats

AT_ONCE = 1 << 24
"""Most numbers that wait to be summarised together."""
ONE = 1e-3
"""How near to 1 a factor is that was measured in half precision and is 1."""
AS_IS = Relative(1.0)
REPLAYING = Text("replaying {name} under other rules", "在其他规则下重放 {name}")
SOME_ROWS = Text(
    "What-if was computed on {rows} of {total} rows of each head, spread evenly.",
    "“假如”取每个头 {total} 行中均匀分布的 {rows} 行计算。",
)


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


def replayed(
    captures: Sequence[Capture], measured: Sequence[RowStats], rules: Sequence[Rule], rows: int | None, remarks: Remarks,
    tell: Tell,
) -> list[list[WhatIfLayer]]:  # fmt: skip
    """Each captured call as it is, of which the statistics are known as `measured`, and under each rule. On a GPU all are
    measured on some of the rows."""
    samples = [_sample(capture, rows, remarks) for capture in captures]
    under = [
        _Under(capture, [*([AS_IS] if sample.few else []), *rules], index)
        for index, (capture, sample) in enumerate(zip(captures, samples, strict=True))
        if capture.affine
    ]
    wanted = [Wanted(one.capture, samples[one.index].rows, one.scales) for one in under]
    tables = WhatIfTables()
    for together in measure_together(wanted, REPLAYING, remarks, lambda what, i: tell(what, under[i].index)):
        for number, stats in together.apart():
            index = under[number].index
            found = under[number].complete(stats, samples[index].rows, remarks)
            tables.add(index, found if samples[index].few else [measured[index], *found])
    for index, capture in enumerate(captures):
        if not capture.affine:  # these logits have no scale to change
            tables.add(index, [measured[index]])
    return tables.read(1 + len(rules))


class _Sample(NamedTuple):
    """How many rows to measure, None for all; and whether these are `few`er than were measured."""

    rows: int | None
    few: bool


def _sample(capture: Capture, rows: int | None, remarks: Remarks) -> _Sample:
    """On a GPU so many rows as of long inputs are kept."""
    total, q = capture.queries, capture.problem.q
    some = max(1, QUERIES // max(1, q.shape[0] * q.shape[1])) if q.is_cuda else total
    wanted = total if rows is None else rows
    few = (capture.rows is not None and q.shape[2] < total) or some < min(total, wanted)
    if not few:
        return _Sample(rows, few)
    if rows is None:
        remarks.add(SOME_ROWS.format(rows=f"{min(some, q.shape[2]):,}", total=f"{total:,}"))
    return _Sample(min(some, wanted), few)


def replay(capture: Capture, rules: Sequence[Rule], index: int, rows: int | None = None) -> list[RowStats]:
    """Measure one captured call under each rule."""
    under, remarks = _Under(capture, rules, index), Remarks()
    return under.complete(Wanted(capture, rows, under.scales).measured(rows), rows, remarks)


class _Under:
    """A captured call under rules. Rules that change only the scale, to these `scales`, share one pass over the keys."""

    def __init__(self, capture: Capture, rules: Sequence[Rule], index: int) -> None:
        self.capture, self.index = capture, index
        self._under = [_under(capture, rule, index) for rule in rules]
        self._rescaled = [i for i, one in enumerate(self._under) if _only_rescaled(capture, *one)]
        self.scales = [self._under[i][0].scale for i in self._rescaled]

    def complete(self, rescaled: Sequence[RowStats], rows: int | None, remarks: Remarks) -> list[RowStats]:
        """The call under each rule, of which those at `scales` were measured."""
        found = dict(zip(self._rescaled, rescaled, strict=True))
        doing, total = REPLAYING.format(name=self.capture.name), self.capture.problem.q.shape[2]
        for i, (problem, sink) in enumerate(self._under):
            if i not in found:
                wanted = Wanted(replace(self.capture, problem=problem, sink=sink), rows, [problem.scale])
                (found[i],) = remarks.within_memory(doing, wanted.measured, rows, total)
        return [found[i] for i in range(len(self._under))]


def _only_rescaled(capture: Capture, problem: Problem, sink: Tensor | None) -> bool:
    old = capture.problem
    return problem.q is old.q and problem.k is old.k and problem.softcap == old.softcap and sink is capture.sink


class WhatIfTables:
    """Summarises layers under rules. What is said of them stays on their device until it is read, all of it at once."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Sequence[RowStats]]] = []
        self._tables: list[tuple[int, Tensor]] = []

    def add(self, index: int, under: Sequence[RowStats]) -> None:
        """Add a layer as it is and under the rules, or under those of which something can be said."""
        self._waiting.append((index, under))
        if sum(len(under) * under[0].rest.numel() for _, under in self._waiting) > AT_ONCE:
            self._summarise()

    def read(self, rules: int) -> list[list[WhatIfLayer]]:
        """Each layer under each of so many rules, the first of which is as it is."""
        self._summarise()
        numbers = fetched([table for _, table in self._tables])
        tables = sorted(zip((index for index, _ in self._tables), numbers, strict=True), key=lambda table: table[0])
        nothing = [None] * rules
        return [
            [
                WhatIfLayer(index, None, None, None, None) if row is None else _layer(index, row)
                for row in [*table.tolist(), *nothing][:rules]
            ]
            for index, table in tables
        ]

    def _summarise(self) -> None:
        """Turn the statistics that wait into tables [rules, numbers]; those of one shape at once."""
        waiting, self._waiting = self._waiting, []
        groups: dict[object, list[tuple[int, int, RowStats]]] = {}
        for index, under in waiting:
            for rule, stats in enumerate(under):
                kind = stats.rest.shape, stats.rest.device, stats.outcomes_beyond_keys
                groups.setdefault(kind, []).append((index, rule, stats))
        rows: dict[tuple[int, int], Tensor] = {}
        for same in groups.values():
            stats = RowStats.cat([stats for _, _, stats in same], 1)  # [B, N·H, rows]
            values = torch.stack([stats.jacobian_trace, stats.entropy_fraction, stats.max_logit])
            table = _table(values.unflatten(2, (len(same), -1)).movedim(2, 0))
            rows |= {(index, rule): row for (index, rule, _), row in zip(same, table, strict=True)}
        for index, under in waiting:
            self._tables.append((index, torch.stack([rows[index, rule] for rule in range(len(under))])))


def _table(values: Tensor) -> Tensor:
    """For each layer and rule the medians over all heads and rows, the largest logit, and each head's medians, from gates,
    entropy fractions and largest logits [N, 3, B, H, rows]."""
    two = values[:, :2].transpose(2, 3).flatten(3)  # [N, 2, H, B·rows]
    logits = values[:, 2].flatten(1)
    largest = torch.where(logits.isfinite(), logits, -torch.inf)
    largest = torch.cat([largest, largest.new_full((len(largest), 1), -torch.inf)], 1).amax(1)
    middle, low = nearest(two.flatten(2), 0.5, 0.1)
    numbers = [middle[:, 1], middle[:, 0], low[:, 0], torch.where(largest.isinf(), torch.nan, largest)]
    return torch.cat([torch.stack(numbers, 1), median_of(two).flatten(1)], 1)


def _layer(index: int, numbers: Sequence[float]) -> WhatIfLayer:
    known = [finite(number) for number in numbers]
    heads = (len(known) - 4) // 2
    middle, gate, low, largest = known[:4]
    return WhatIfLayer(index, middle, gate, low, largest, tuple(known[4 : 4 + heads]), tuple(known[4 + heads :]))


def _carried(factor: Factor) -> float:
    """The number that the model multiplied into q or k: since its projection, or since it normalised them. A number that cannot
    be told from 1 is 1."""
    number = factor.after_norm if factor.kind == "normalised" else factor.value
    return 1.0 if number is None or abs(number - 1) < ONE else number


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
