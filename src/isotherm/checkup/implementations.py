"""Compare a model's attention implementations: they compute one formula, so their statistics must agree."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from isotherm.checkup.layers import layers_of
from isotherm.checkup.measure import Batch, look, measure
from isotherm.checkup.thresholds import SAME_STATISTICS
from isotherm.record import Comparison, HeadStats, Layer

IMPLEMENTATIONS = ("eager", "sdpa")
"""The implementations that run on any machine. Flash needs a GPU, and flex a compiler."""
HALF_PRECISION_ROOM = 5.0
"""How much wider the tolerance is for models in half precision."""


def compare_implementations(
    model: nn.Module, batch: Batch, rows: int | None, present: tuple[Layer, ...]
) -> tuple[Comparison, ...]:
    """Compare the present implementation, measured as `present`, with each other one. Models without a choice give none."""
    current = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if not isinstance(current, str) or not present or not hasattr(model, "set_attn_implementation"):
        return ()
    half = next(model.parameters()).dtype.itemsize < 4
    tolerance = SAME_STATISTICS.value * (HALF_PRECISION_ROOM if half else 1.0)
    results = []
    for other in IMPLEMENTATIONS:
        if other == current:
            continue
        with switched(model, other) as works:
            layers = _measured(model, batch, rows) if works else ()
        if layers:
            results.append(difference(present, layers, (current, other), tolerance))
    return tuple(results)


def _measured(model: nn.Module, batch: Batch, rows: int | None) -> tuple[Layer, ...]:
    captures = look(model, batch).captures
    return layers_of(model, captures, [measure(capture, rows, batch) for capture in captures])


_turns = threading.Condition()
_checked_by: dict[int, int] = {}
"""The models and configurations that are being checked, by id, and the thread that checks each."""


@contextmanager
def taking_turns(model: nn.Module) -> Iterator[None]:
    """Wait until no other thread checks this model, or one that shares a configuration with it: `switched` changes these."""
    thread, taken = threading.get_ident(), set[int]()
    keys = {id(model), *_configurations(model)}
    try:
        with _turns:
            _turns.wait_for(lambda: all(_checked_by.get(key, thread) == thread for key in keys))
            taken |= keys - _checked_by.keys()
            _checked_by.update(dict.fromkeys(taken, thread))
        yield
    finally:
        with _turns:
            for key in taken:
                _checked_by.pop(key, None)
            _turns.notify_all()


def _configurations(model: nn.Module) -> dict[int, Any]:
    """Every configuration of the model's modules, by id."""
    found = (getattr(module, "config", None) for module in model.modules())
    return {id(config): config for config in found if config is not None}


@contextmanager
def switched(model: nn.Module, implementation: str) -> Iterator[bool]:
    """Switch the model to another implementation, if it has it, and restore every configuration afterwards."""
    configs = _configurations(model).values()
    before = [(config, vars(config).copy()) for config in configs if hasattr(config, "__dict__")]
    try:
        try:
            model.set_attn_implementation(implementation)  # type: ignore[operator]
            works = bool(model.config._attn_implementation == implementation)  # type: ignore[union-attr]
        except (ValueError, ImportError, TypeError):
            works = False
        yield works
    finally:
        for config, attributes in before:
            vars(config).clear()
            vars(config).update(attributes)


def difference(a: tuple[Layer, ...], b: tuple[Layer, ...], names: tuple[str, str], tolerance: float) -> Comparison:
    """The first layer that differs by more than the tolerance, since later layers inherit its error; else the worst one."""
    worst = Comparison(names, None, "layers", float(len(a) != len(b)), tolerance, agree=len(a) == len(b))
    if len(a) != len(b):
        return worst
    for one, other in zip(a, b, strict=True):
        statistic, gap = _gap(one, other)
        if worst.layer is None or gap > worst.difference:
            worst = Comparison(names, one.index, statistic, gap, tolerance, agree=gap <= tolerance)
        if gap > tolerance:
            return worst
    return worst


def _gap(one: Layer, other: Layer) -> tuple[str, float]:
    """The statistic that differs most, and its relative difference."""
    gaps = [("none", 0.0)]
    if one.scale.effective is not None and other.scale.effective is not None:
        gaps.append(("scale", _relative(one.scale.effective, other.scale.effective)))
    for a, b in zip(one.head_stats, other.head_stats, strict=True):
        for name, read in _READ.items():
            gaps.append((name, _relative(read(a), read(b), least=_LEAST[name])))
    return max(gaps, key=lambda gap: gap[1])


_READ: dict[str, Callable[[HeadStats], float | None]] = {
    "logit_std": lambda head: head.logit_std,
    "max_logit": lambda head: head.max_logit,
    "entropy": lambda head: head.entropy.mean,
    "jacobian_trace": lambda head: head.jacobian_trace.mean,
}
_LEAST = {"logit_std": 0.05, "max_logit": 1.0, "entropy": 0.5, "jacobian_trace": 0.5}
"""A difference is divided by the statistic's size, but by no less than this: near 0 a relative difference is rounding."""


def _relative(a: float | None, b: float | None, least: float = 0.0) -> float:
    if a is None or b is None:
        return 0.0 if a is b else 1.0
    size = max(abs(a), abs(b), least)
    return abs(a - b) / size if size else 0.0
