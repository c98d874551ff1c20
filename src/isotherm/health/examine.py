"""The check-up itself: one forward under the probe, then everything that can be read from what it brought back."""

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.health.advice import advise, context
from isotherm.health.audit import audit
from isotherm.health.compare import compare_implementations
from isotherm.health.declare import Place, declared
from isotherm.health.findings import findings
from isotherm.health.heads import heads_of_layers
from isotherm.health.what_if import measure, replay, summarise
from isotherm.language import Text
from isotherm.probe import Capture, probe
from isotherm.record import SCHEMA, CheckRecord, Comparison, Cost, Layer, Subject, Unseen, WhatIf, WhatIfLayer
from isotherm.scale import parse
from isotherm.stats import Moments, RowStats

Batch = Mapping[str, Any] | Sequence[Any] | Tensor
Progress = Callable[[Text, float], object]
"""Told what is being done, and how much of the whole is done."""


@dataclass(frozen=True)
class Options:
    """What a check-up should do beyond looking: rules to replay, whether to compare implementations, a longer context."""

    what_if: tuple[str, ...] = ("none", "1/d", "x0.5", "x2")
    compare: bool = True
    context: int | None = None
    rows: int | None = None


@dataclass(frozen=True)
class Examination:
    """The record, and the statistics of every row it was made from, a `RowStats` [B, Hq, T] for each layer."""

    record: CheckRecord
    rows: tuple[RowStats, ...]


def examine(
    model: nn.Module,
    batch: Batch,
    options: Options,
    *,
    name: str,
    origin: str,
    progress: Progress = lambda _what, _done: None,
) -> Examination:
    """Everything there is to know of this model's attention on this batch. The model is left as it was found."""
    rules = [(text, parse(text)) for text in options.what_if]  # a misspelt rule fails before the work, not after it
    started = time.perf_counter()
    progress(Text("one forward under the probe", "在探针下前向一次"), 0.0)
    captures, unseen, model_seconds = look(model, batch)
    untrained = looks_untrained(model)
    measured = []
    for index, capture in enumerate(captures):
        progress(Text("measuring {name}", "测量 {name}").format(name=capture.name), 0.1 + 0.4 * index / len(captures))
        measured.append(without_padding(measure(capture, options.rows), capture, batch))
    layers = _layers(model, captures, measured, untrained=untrained)
    comparisons: tuple[Comparison, ...] = ()
    if options.compare:
        progress(Text("comparing implementations", "比较不同实现"), 0.5)
        comparisons = compare_implementations(model, layers, look_again(model, batch, options.rows))
    replayed = [WhatIf("as is", tuple(summarise(i, stats) for i, stats in enumerate(measured)))] if rules else []
    others: list[list[WhatIfLayer]] = []
    for index, capture in enumerate(captures if rules else []):
        doing = Text("what if, {name}", "假如，{name}").format(name=capture.name)
        progress(doing, 0.6 + 0.4 * index / len(captures))
        others.append(replay(capture, [rule for _, rule in rules], index, options.rows))
    replayed += [WhatIf(text, tuple(layer[i] for layer in others)) for i, (text, _) in enumerate(rules)]
    subject = _subject(model, batch, name, origin, untrained=untrained)
    missing = tuple(unseen)
    record = CheckRecord(
        schema=SCHEMA,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=subject,
        versions=_versions(),
        layers=layers,
        findings=findings(subject, layers, comparisons, missing),
        what_if=tuple(replayed),
        comparisons=comparisons,
        unseen=missing,
        cost=Cost(time.perf_counter() - started, model_seconds, _peak_mib()),
        context=context(layers, options.context) if options.context else None,
    )
    return Examination(record, tuple(measured))


def look(model: nn.Module, batch: Batch) -> tuple[list[Capture], list[Unseen], float]:
    """One forward under the probe: what it saw, what it could not, and the seconds it took. Random states are kept."""
    with torch.random.fork_rng(), torch.no_grad(), probe(model) as seen:
        started = time.perf_counter()
        call(model, batch)
        seconds = time.perf_counter() - started
    return seen.captures, seen.unseen, seconds


def call(model: nn.Module, batch: Batch) -> Any:
    """The model on the batch: keyword arguments, positional ones, or one tensor."""
    if isinstance(batch, Tensor):
        return model(batch)
    return model(**batch) if isinstance(batch, Mapping) else model(*batch)


def look_again(model: nn.Module, batch: Batch, rows: int | None) -> Callable[[], tuple[Layer, ...]]:
    """The same look, for `compare_implementations` to take under another implementation."""

    def look_now() -> tuple[Layer, ...]:
        captures, _, _ = look(model, batch)
        measured = [without_padding(measure(capture, rows), capture, batch) for capture in captures]
        return _layers(model, captures, measured, untrained=False)

    return look_now


def _layers(
    model: nn.Module, captures: list[Capture], measured: list[RowStats], *, untrained: bool
) -> tuple[Layer, ...]:
    layers = []
    for index, (capture, stats, heads) in enumerate(zip(captures, measured, heads_of_layers(measured), strict=True)):
        place = _place(model, index, capture)
        expected = declared(place)
        layer = Layer(
            index=index,
            name=capture.name,
            kind=capture.kind,
            heads=capture.problem.q.shape[1],
            kv_heads=capture.problem.k.shape[1],
            head_dim=capture.problem.q.shape[3],
            keys=int(stats.n.max()) if stats.n.numel() else 0,
            implementation=capture.implementation,
            scale=audit(capture, expected),
            head_stats=heads,
        )
        layers.append(replace(layer, advice=advise(layer, capture, expected, place, at_initialisation=untrained)))
    return tuple(layers)


def _place(model: nn.Module, index: int, capture: Capture) -> Place:
    """The module by its name, and the configuration of it or of the nearest module around it."""
    names = capture.name.split(".") if capture.name else []
    around = [model.get_submodule(".".join(names[:end])) for end in range(len(names), -1, -1)]
    config = next((found for module in around if (found := getattr(module, "config", None)) is not None), None)
    layer = getattr(around[0], "layer_idx", None)
    return Place(around[0], config, index if layer is None else int(layer), capture.problem.q.shape[3])


def without_padding(stats: RowStats, capture: Capture, batch: Batch) -> RowStats:
    """Queries that are padding are no rows of anybody's: they count as empty."""
    if not isinstance(batch, Mapping):
        return stats
    in_decoder = "decoder" in capture.name and ("decoder_input_ids" in batch or "decoder_attention_mask" in batch)
    mask = batch.get("decoder_attention_mask" if in_decoder else "attention_mask")
    rows = stats.rows if stats.rows is not None else torch.arange(capture.problem.q.shape[2])
    if (
        not isinstance(mask, Tensor)
        or mask.dim() != 2
        or mask.shape != (stats.rest.shape[0], capture.problem.q.shape[2])
    ):
        return stats
    if bool(mask.all()):
        return stats
    real = (mask[:, rows.to(mask.device)] != 0).unsqueeze(1).to(stats.rest.device)
    moments = stats.moments
    return replace(stats, moments=Moments(moments.count * real, moments.mean, moments.m2))


def looks_untrained(model: nn.Module) -> bool:
    """Whether every norm still has its first gain: training moves them all."""
    norms = [module for module in model.modules() if "norm" in type(module).__name__.lower()]
    gains = [gain for norm in norms if (gain := _gain(norm)) is not None]
    return bool(gains) and all(bool(gain.eq(1).all() or gain.eq(0).all()) for gain in gains)


def _gain(module: nn.Module) -> Tensor | None:
    weight = getattr(module, "weight", None)
    return weight.detach() if isinstance(weight, Tensor) and weight.dim() == 1 and not weight.is_meta else None


def _subject(model: nn.Module, batch: Batch, name: str, origin: str, *, untrained: bool) -> Subject:
    values = (
        list(batch.values()) if isinstance(batch, Mapping) else [batch] if isinstance(batch, Tensor) else list(batch)
    )
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
        at_initialisation=untrained,
    )


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
    """The most memory this process has held, so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
