"""The check-up: probe → measure → audit → what-if → findings → record, each step in a file of its own."""

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor, nn

from isotherm.checkup.advice import advise, context_of
from isotherm.checkup.audit import audit
from isotherm.checkup.declare import Place, declared
from isotherm.checkup.findings import findings
from isotherm.checkup.heads import heads_of_layers, with_detail
from isotherm.checkup.implementations import compare_implementations
from isotherm.checkup.measure import Batch, look, measure
from isotherm.checkup.what_if import check_rules, replay, summarise
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.record import SCHEMA, CheckRecord, Cost, Layer, Subject, WhatIf
from isotherm.scale import Rule
from isotherm.stats import RowStats

Progress = Callable[[Text, float], object]
"""Receives what is being done, and the fraction of the whole that is done."""


def examine(
    model: nn.Module,
    batch: Batch,
    *,
    what_if: Sequence[str | Rule],
    compare: bool,
    rows: int | None,
    context: int | None,
    detail: bool,
    name: str,
    origin: str,
    progress: Progress,
) -> tuple[CheckRecord, tuple[RowStats, ...]]:
    """Check a model on a batch: the record, and each layer's row statistics. `isotherm.check` describes the arguments."""
    rules = check_rules(what_if)  # a misspelt rule fails before the work, not after it
    started = time.perf_counter()
    progress(Text("one forward under the probe", "在探针下前向一次"), 0.0)
    captures, unseen, model_seconds = look(model, batch)
    measured = []
    for index, capture in enumerate(captures):
        progress(Text("measuring {name}", "测量 {name}").format(name=capture.name), 0.1 + 0.4 * index / len(captures))
        measured.append(measure(capture, rows, batch))
    subject = _subject(model, batch, name, origin)
    layers = _layers(model, captures, measured, untrained=subject.at_initialisation)
    progress(Text("comparing implementations", "比较不同实现"), 0.5)
    comparisons = compare_implementations(model, layers, lambda: _look_again(model, batch, rows)) if compare else ()
    replayed = _what_if(captures, measured, rules, rows, progress)
    record = CheckRecord(
        schema=SCHEMA,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=subject,
        versions=_versions(),
        layers=with_detail(layers, measured) if detail else layers,
        findings=findings(subject, layers, comparisons, tuple(unseen)),
        what_if=replayed,
        comparisons=comparisons,
        unseen=tuple(unseen),
        cost=Cost(time.perf_counter() - started, model_seconds, _peak_mib()),
        context=context_of(layers, context) if context else None,
    )
    return record, tuple(measured)


def _look_again(model: nn.Module, batch: Batch, rows: int | None) -> tuple[Layer, ...]:
    """The layers as `compare_implementations` sees them under another implementation."""
    captures, _, _ = look(model, batch)
    return _layers(model, captures, [measure(capture, rows, batch) for capture in captures], untrained=False)


def _layers(
    model: nn.Module, captures: list[Capture], measured: list[RowStats], *, untrained: bool
) -> tuple[Layer, ...]:
    layers = []
    for index, (capture, stats, heads) in enumerate(zip(captures, measured, heads_of_layers(measured), strict=True)):
        place = _place(model, index, capture)
        expected = declared(place)
        keys = int(stats.n.max()) if stats.n.numel() else 0
        layers.append(
            Layer(
                index=index,
                name=capture.name,
                kind=capture.kind,
                heads=capture.problem.q.shape[1],
                kv_heads=capture.problem.k.shape[1],
                head_dim=capture.problem.q.shape[3],
                keys=keys,
                implementation=capture.implementation,
                scale=audit(capture, expected),
                head_stats=heads,
                advice=advise(heads, keys, capture, expected, place, at_initialisation=untrained),
            )
        )
    return tuple(layers)


def _place(model: nn.Module, index: int, capture: Capture) -> Place:
    """Find the layer's module by its name, and the configuration of that module or of the nearest one around it."""
    names = capture.name.split(".") if capture.name else []
    around = [model.get_submodule(".".join(names[:end])) for end in range(len(names), -1, -1)]
    config = next((found for module in around if (found := getattr(module, "config", None)) is not None), None)
    layer = getattr(around[0], "layer_idx", None)
    return Place(around[0], config, index if layer is None else int(layer), capture.problem.q.shape[3])


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
        progress(doing, 0.6 + 0.4 * index / len(captures))
        replayed.append(replay(capture, [rule for _, rule in rules], index, rows))
    as_is = WhatIf("as is", tuple(summarise(index, stats) for index, stats in enumerate(measured)))
    return as_is, *(WhatIf(text, tuple(layer[i] for layer in replayed)) for i, (text, _) in enumerate(rules))


def _subject(model: nn.Module, batch: Batch, name: str, origin: str) -> Subject:
    values = list(batch.values()) if isinstance(batch, Mapping) else [batch] if isinstance(batch, Tensor) else batch
    first = next((value for value in values if isinstance(value, Tensor)), torch.zeros(1, 0))
    parameter = next(model.parameters(), torch.zeros(0))
    return Subject(
        name=name,
        architecture=type(model).__name__,
        origin=origin,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype=str(parameter.dtype).removeprefix("torch."),
        device=str(parameter.device),
        tokens=int(first.shape[1]) if first.dim() > 1 else 0,
        batch=int(first.shape[0]) if first.dim() else 1,
        at_initialisation=_looks_untrained(model),
    )


def _looks_untrained(model: nn.Module) -> bool:
    """Whether every norm still has its initial gain: training moves all of them."""
    norms = [module for module in model.modules() if "norm" in type(module).__name__.lower()]
    weights = [getattr(norm, "weight", None) for norm in norms]
    gains = [w.detach() for w in weights if isinstance(w, Tensor) and w.dim() == 1 and not w.is_meta]
    return bool(gains) and all(bool(gain.eq(1).all() or gain.eq(0).all()) for gain in gains)


@cache
def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in ("isotherm", "torch", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _peak_mib() -> float:
    """The largest amount of memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
