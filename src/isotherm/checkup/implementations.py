"""Compare a model's attention implementations: they compute one formula, so their statistics must agree."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.checkup.fetch import fetched
from isotherm.checkup.layers import layers_of
from isotherm.checkup.looking import HowMeasured
from isotherm.checkup.measure import Batch, look, measured_heads
from isotherm.checkup.piece import ENTRIES, OF_A_PIECE, entries, piece_of
from isotherm.checkup.thresholds import SAME_STATISTICS
from isotherm.checkup.wrappers import with_implementations
from isotherm.language import Text
from isotherm.ops import Problem
from isotherm.probe import Capture
from isotherm.probe.members import modules_of
from isotherm.record import Comparison, HeadStats, Layer, NotCompared
from isotherm.record.plain import finite

IMPLEMENTATIONS = ("eager", "sdpa")
"""The implementations that run on any machine. Flash needs a GPU, and flex a compiler."""
REFUSED = Text("{part} refuses it ({error})", "{part} 拒绝切换（{error}）")
STAYS = Text("{part} stays with {implementation}", "{part} 仍使用 {implementation}")
RAISED = Text("the model did not run under it ({error})", "模型在该实现下无法运行（{error}）")
NOTHING_SEEN = Text("no attention was seen under it", "在该实现下没有看到任何注意力")
TOO_LARGE = Text(
    "its n × n matrices of this batch do not fit in memory, and the batch cannot be cut into a piece",
    "该批次的 n × n 矩阵放不进内存，而批次又无法截取一部分",
)
Seen = tuple[Sequence[Capture], tuple[Layer, ...]]
HALF_PRECISION_ROOM = 5.0
"""How much wider the tolerance is for models in half precision."""


def compare_implementations(
    model: nn.Module, batch: Batch, rows: int | None, present: tuple[Layer, ...], captures: Sequence[Capture]
) -> tuple[tuple[Comparison, ...], tuple[NotCompared, ...]]:
    """Compare the present implementation, captured and measured as `present`, with each other one; and say which could not be
    compared, and why. A model without a choice gives neither. Of a large batch both run on a piece."""
    parts = with_implementations(model)
    if not parts or not present:
        return (), ()
    current = " + ".join(dict.fromkeys(part.config._attn_implementation for part in parts))
    half = next(model.parameters()).dtype.itemsize < 4
    tolerance = SAME_STATISTICS.value * (HALF_PRECISION_ROOM if half else 1.0)
    found = [
        _compared(model, batch, rows, (captures, present), (current, other), tolerance)
        for other in IMPLEMENTATIONS
        if other != current
    ]
    compared = tuple(one for one in found if isinstance(one, Comparison))
    return compared, tuple(one for one in found if isinstance(one, NotCompared))


def _compared(
    model: nn.Module, batch: Batch, rows: int | None, present: Seen, names: tuple[str, str], tolerance: float
) -> Comparison | NotCompared:
    """Compare two implementations on the batch, or on a piece of it: on ever smaller ones while memory runs out."""
    most = ENTRIES
    while True:
        piece = piece_of(batch, present[0], most)
        if piece is None:
            return NotCompared(names[1], TOO_LARGE)
        try:
            ours = present if piece.on is None else _measured(model, piece.batch, rows)
            with switched(model, names[1]) as why_not:
                theirs = _measured(model, piece.batch, rows) if why_not is None else ([], ())
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            most = min(most, entries(present[0]), OF_A_PIECE) // 16
            continue
        except Exception as error:
            return NotCompared(names[1], RAISED.format(error=_said(error)))
        if not theirs[1] or not ours[1]:
            return NotCompared(names[1], why_not or NOTHING_SEEN)
        excused = inherited(ours[0], theirs[0], ours[1])
        return replace(difference(ours[1], theirs[1], names, tolerance, excused), on=piece.on)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _measured(model: nn.Module, batch: Batch, rows: int | None) -> Seen:
    how = HowMeasured(rows)
    looked = look(model, batch, how)
    return looked.captures, layers_of(model, looked.captures, measured_heads(looked, how)[1])


def inherited(one: Sequence[Capture], other: Sequence[Capture], layers: Sequence[Layer]) -> list[float]:
    """How much each layer's statistics may differ because its q and k do: rounding in earlier layers is multiplied by the
    size of the logits, and a model whose logits are far too large multiplies it again in each layer."""
    pairs = list(zip(one, other, layers, strict=False))
    apart = fetched([_direction(a.problem, b.problem) for a, b, _ in pairs])
    largest = [max((abs(head.max_logit or 0.0) for head in layer.head_stats), default=0.0) for _, _, layer in pairs]
    return [(finite(float(gap)) or 0.0) * size for gap, size in zip(apart, largest, strict=True)]


def _direction(one: Problem, other: Problem) -> Tensor:
    """How far q and k of `other` are from a multiple of those of `one`, as a part of their sizes. 0 if they cannot be
    compared."""
    total = torch.zeros((), dtype=torch.float64, device=one.q.device)
    for name in "qk":
        a, b = getattr(one, name).double(), getattr(other, name).double()
        if a.shape == b.shape and a.device == b.device and a.numel():
            rest = b - a * ((a * b).sum() / a.square().sum())
            total = total + (rest.norm() / b.norm()).to(total.device).nan_to_num(0.0, 0.0, 0.0)
    return total


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
    found = (getattr(module, "config", None) for _, module in modules_of(model))
    return {id(config): config for config in found if config is not None}


@contextmanager
def switched(model: nn.Module, implementation: str) -> Iterator[Text | None]:
    """Switch every part of the model that has a choice to another implementation, and restore every configuration afterwards.
    Gives None if all parts are switched, else the reason why one is not."""
    configs = _configurations(model).values()
    before = [(config, vars(config).copy()) for config in configs if hasattr(config, "__dict__")]
    try:
        yield _switch(model, implementation)
    finally:
        for config, attributes in before:
            vars(config).clear()
            vars(config).update(attributes)


def _switch(model: nn.Module, implementation: str) -> Text | None:
    """Switch every part of the model; the reason if one does not."""
    for part in with_implementations(model):
        able = getattr(part, "_can_set_attn_implementation", None)
        if callable(able) and not able():  # transformers would print a warning, and change nothing
            return STAYS.format(part=type(part).__name__, implementation=part.config._attn_implementation)
        try:
            part.set_attn_implementation(implementation)
        except (ValueError, ImportError, TypeError, AttributeError) as error:
            return REFUSED.format(part=type(part).__name__, error=_said(error))
        if part.config._attn_implementation != implementation:
            return STAYS.format(part=type(part).__name__, implementation=part.config._attn_implementation)
    return None


def difference(
    a: tuple[Layer, ...],
    b: tuple[Layer, ...],
    names: tuple[str, str],
    tolerance: float,
    inherited: Sequence[float] = (),
) -> Comparison:
    """The first layer that differs by more than the tolerance and what it inherited from earlier layers; else the worst one."""
    worst = Comparison(names, None, "layers", float(len(a) != len(b)), tolerance, agree=len(a) == len(b))
    if len(a) != len(b):
        return worst
    for one, other, excused in zip(a, b, chain(inherited, repeat(0.0)), strict=False):
        statistic, gap = _gap(one, other, excused)
        if worst.layer is None or gap > worst.difference:
            worst = Comparison(names, one.index, statistic, gap, tolerance, agree=gap <= tolerance)
        if gap > tolerance:
            return worst
    return worst


def _gap(one: Layer, other: Layer, inherited: float) -> tuple[str, float]:
    """The statistic that differs most, and its relative difference beyond what was inherited. A scale inherits nothing."""
    gaps = [("none", 0.0)]
    if one.scale.effective is not None and other.scale.effective is not None:
        gaps.append(("scale", _relative(one.scale.effective, other.scale.effective)))
    for a, b in zip(one.head_stats, other.head_stats, strict=True):
        for name, read in _READ.items():
            gaps.append((name, max(0.0, _relative(read(a), read(b), least=_LEAST[name]) - inherited)))
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
