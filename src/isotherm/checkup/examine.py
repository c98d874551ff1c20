"""The check-up: probe → measure → audit → what-if → findings → record, each step in a file of its own."""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import torch
from torch import nn

from isotherm.checkup.about_scales import judged_scales
from isotherm.checkup.advice import Advisor
from isotherm.checkup.advised import advised
from isotherm.checkup.context import context_of
from isotherm.checkup.curve import with_curves
from isotherm.checkup.declarations import Given, read_declared
from isotherm.checkup.findings import about_output, findings, gravest_first, naming_weights
from isotherm.checkup.implementations import compare_implementations
from isotherm.checkup.layers import layers_of
from isotherm.checkup.loading.loaded import Progress
from isotherm.checkup.looking import HowMeasured
from isotherm.checkup.measure import Batch, Look, look, measured_heads
from isotherm.checkup.memory import Remarks
from isotherm.checkup.outliers import with_outliers
from isotherm.checkup.products import Products
from isotherm.checkup.subject import ModelSource, subject_of
from isotherm.checkup.weights import about_weights, not_finite_weights
from isotherm.checkup.what_if import check_rules, replayed
from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.record import SCHEMA, CheckRecord, Cost, Layer, WhatIf
from isotherm.record.versions import versions
from isotherm.scale import Rule
from isotherm.stats import RowStats

Result = TypeVar("Result")


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
    declared: Given = None,
) -> tuple[CheckRecord, tuple[RowStats, ...]]:
    """Check a model on a batch: the record, and each layer's row statistics. `isotherm.check` describes the arguments."""
    rules, yours = check_rules(what_if), read_declared(declared)  # a misspelt rule fails before the work, not after it
    started = time.perf_counter()
    progress(Text("one forward under the probe", "在探针下前向一次"), 0.0)
    how = HowMeasured(rows, detail, progress=progress)
    looked, remarks = _looked(model, batch, how), how.remarks
    captures = looked.captures
    yours.check([capture.name for capture in captures])
    measured, heads = measured_heads(looked, how)
    subject = subject_of(model, batch, source, captures)
    layers = layers_of(model, captures, heads, yours=yours)
    layers, about_scales = judged_scales(model, batch, layers)
    progress(Text("comparing implementations", "比较不同实现"), 0.5)
    comparisons, skipped = compare_implementations(model, batch, rows, layers, captures) if compare else ((), ())
    products, advisor = Products(captures, rows, remarks), Advisor(model, batch, rows, captures, layers, remarks)
    found = [*about_weights(model, layers, source.weights), *about_output(layers, looked.not_finite), *about_scales]
    found += map(products.judged, findings(subject, layers, comparisons, looked.unseen))
    found = with_outliers(model, captures, layers, found)
    layers, found = advised(advisor, captures, layers, found, products, untrained=subject.at_initialisation)
    layers = _with_curves(layers, looked, measured, remarks, progress) if detail else layers
    record = CheckRecord(
        schema=SCHEMA,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=subject,
        versions=versions("torch", "transformers"),
        layers=layers,
        findings=gravest_first(naming_weights(found, lambda: not_finite_weights(model))),
        what_if=_what_if(looked, measured, rules, rows, remarks, progress),
        comparisons=comparisons,
        unseen=tuple(looked.unseen),
        cost=Cost(time.perf_counter() - started, looked.seconds, _peak_mib()),
        context=context_of(layers, context) if context else None,
        not_compared=skipped,
        remarks=remarks.all(),
    )
    return record, tuple(measured)


def _looked(model: nn.Module, batch: Batch, how: HowMeasured) -> Look:
    try:
        return look(model, batch, how)
    except torch.OutOfMemoryError as error:
        raise ArgumentError("batch", Text("one on which the model's forward fits in memory", "模型前向放得进内存的批次"),
                            got=Text("memory ran out", "内存不足")) from error  # fmt: skip


def without_gradients(work: Callable[[], Result]) -> Result:
    """Do some work that runs a model, without gradients unless the model's forward itself takes some (a force field does)."""
    try:
        with torch.no_grad():
            return work()
    except RuntimeError as error:
        if "does not require grad" not in str(error):
            raise
    return work()


def _with_curves(
    layers: tuple[Layer, ...], looked: Look, measured: Sequence[RowStats], remarks: Remarks, progress: Progress
) -> tuple[Layer, ...]:
    captures = looked.captures
    of_kept = [index in looked.taken or _is_plain(capture) for index, capture in enumerate(captures)]
    known = [None if kept else stats for kept, stats in zip(of_kept, measured, strict=True)]
    return with_curves(layers, captures, known, remarks, lambda what, i: progress(what, 0.6 + 0.2 * i / len(captures)))


def _is_plain(capture: Capture) -> bool:
    """Whether every row sees a key, as far as is known without reading from a GPU."""
    return capture.problem.q.is_cuda and capture.padded is None and capture.problem.visibility.mask is None


def _what_if(
    looked: Look,
    measured: Sequence[RowStats],
    rules: list[tuple[str, Rule]],
    rows: int | None,
    remarks: Remarks,
    progress: Progress,
) -> tuple[WhatIf, ...]:
    """Every layer as it is, then under each rule; nothing without rules."""
    if not rules:
        return ()
    captures = looked.captures

    def tell(what: Text, number: int) -> None:
        progress(what, 0.8 + 0.2 * number / len(captures))

    read = replayed(captures, measured, [rule for _, rule in rules], rows, remarks, tell)
    names = ["as is", *(text for text, _ in rules)]
    return tuple(WhatIf(name, tuple(layer[i] for layer in read)) for i, name in enumerate(names))


def _peak_mib() -> float:
    """The largest amount of memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
