"""The check-up: probe → measure → audit → what-if → findings → record, each step in a file of its own."""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from torch import nn

from isotherm.checkup.advice import context_of
from isotherm.checkup.curve import with_curves
from isotherm.checkup.findings import about_output, findings, gravest_first, naming_weights
from isotherm.checkup.heads import with_detail
from isotherm.checkup.implementations import compare_implementations
from isotherm.checkup.layers import layers_of
from isotherm.checkup.measure import Batch, look, measure
from isotherm.checkup.subject import ModelSource, subject_of
from isotherm.checkup.weights import about_weights, not_finite_weights
from isotherm.checkup.what_if import check_rules, replay, summarise
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.record import SCHEMA, CheckRecord, Cost, WhatIf
from isotherm.record.versions import versions
from isotherm.scale import Rule
from isotherm.stats import RowStats

Progress = Callable[[Text, float], object]
"""Receives what is being done, and the fraction of the whole that is done."""


def examine(
    model: nn.Module,
    batch: Batch,
    source: ModelSource,
    *,
    what_if: Sequence[str | Rule],
    compare: bool,
    rows: int | None,
    context: int | None,
    detail: bool,
    progress: Progress,
) -> tuple[CheckRecord, tuple[RowStats, ...]]:
    """Check a model on a batch: the record, and each layer's row statistics. `isotherm.check` describes the arguments."""
    rules = check_rules(what_if)  # a misspelt rule fails before the work, not after it
    started = time.perf_counter()
    progress(Text("one forward under the probe", "在探针下前向一次"), 0.0)
    captures, unseen, not_finite, model_seconds = look(model, batch)
    measured = []
    for index, capture in enumerate(captures):
        progress(Text("measuring {name}", "测量 {name}").format(name=capture.name), 0.1 + 0.4 * index / len(captures))
        measured.append(measure(capture, rows, batch))
    subject = subject_of(model, batch, source)
    layers = layers_of(model, captures, measured, untrained=subject.at_initialisation)
    progress(Text("comparing implementations", "比较不同实现"), 0.5)
    comparisons = compare_implementations(model, batch, rows, layers) if compare else ()
    replayed = _what_if(captures, measured, rules, rows, progress)
    if detail:
        layers = with_curves(
            layers, captures, measured, lambda what, layer: progress(what, 0.8 + 0.2 * layer / len(captures))
        )
    found = [
        *about_weights(model, layers, source.weights),
        *about_output(layers, not_finite),
        *findings(subject, layers, comparisons, unseen),
    ]
    record = CheckRecord(
        schema=SCHEMA,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=subject,
        versions=versions("torch", "transformers"),
        layers=with_detail(layers, measured) if detail else layers,
        findings=gravest_first(naming_weights(found, lambda: not_finite_weights(model))),
        what_if=replayed,
        comparisons=comparisons,
        unseen=tuple(unseen),
        cost=Cost(time.perf_counter() - started, model_seconds, _peak_mib()),
        context=context_of(layers, context) if context else None,
    )
    return record, tuple(measured)


def _what_if(
    captures: list[Capture],
    measured: list[RowStats],
    rules: list[tuple[str, Rule]],
    rows: int | None,
    progress: Progress,
) -> tuple[WhatIf, ...]:
    """Every layer as it is, then under each rule; nothing without rules."""
    if not rules:
        return ()
    replayed = []
    for index, capture in enumerate(captures):
        doing = Text("what if, {name}", "假如，{name}").format(name=capture.name)
        progress(doing, 0.6 + 0.2 * index / len(captures))
        replayed.append(replay(capture, [rule for _, rule in rules], index, rows))
    as_is = WhatIf("as is", tuple(summarise(index, stats) for index, stats in enumerate(measured)))
    return as_is, *(WhatIf(text, tuple(layer[i] for layer in replayed)) for i, (text, _) in enumerate(rules))


def _peak_mib() -> float:
    """The largest amount of memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
