"""Compare a model's attention implementations: they compute one formula, so their statistics must agree."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from isotherm.checkup.differences import Numbers, apart, difference, inherited, of_layers, of_tables
from isotherm.checkup.looking import HowMeasured
from isotherm.checkup.measure import Batch, look, measured_tables
from isotherm.checkup.piece import ENTRIES, OF_A_PIECE, entries, piece_of
from isotherm.checkup.thresholds import SAME_STATISTICS
from isotherm.checkup.wrappers import with_implementations
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.probe.members import modules_of
from isotherm.record import Comparison, Layer, NotCompared

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
OTHER_HEADS = Text("another number of heads was seen under it", "在该实现下看到的头数不同")
HALF_PRECISION_ROOM = 5.0
"""How much wider the tolerance is for models in half precision."""


class Compared(NamedTuple):
    """The calls of one forward, and their statistics."""

    captures: Sequence[Capture]
    statistics: Sequence[Numbers]


NOTHING = Compared((), ())


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
    seen = Compared(captures, of_layers(present))
    found = [
        _compared(model, batch, rows, seen, (current, other), tolerance)
        for other in IMPLEMENTATIONS
        if other != current
    ]
    compared = tuple(one for one in found if isinstance(one, Comparison))
    return compared, tuple(one for one in found if isinstance(one, NotCompared))


def _compared(
    model: nn.Module, batch: Batch, rows: int | None, present: Compared, names: tuple[str, str], tolerance: float
) -> Comparison | NotCompared:
    """Compare two implementations on the batch, or on a piece of it: on ever smaller ones while memory runs out."""
    most = ENTRIES
    while True:
        piece = piece_of(batch, present.captures, most)
        if piece is None:
            return NotCompared(names[1], TOO_LARGE)
        try:
            ours = present if piece.on is None else _measured(model, piece.batch, rows, present.captures)
            with switched(model, names[1]) as why_not:
                theirs = NOTHING if why_not else _measured(model, piece.batch, rows, ours.captures)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            most = min(most, entries(present.captures), OF_A_PIECE) // 16
            continue
        except Exception as error:
            return NotCompared(names[1], RAISED.format(error=_said(error)))
        if not theirs.captures or not ours.captures:
            return NotCompared(names[1], why_not or NOTHING_SEEN)
        if any(len(a) != len(b) for a, b in zip(ours.statistics, theirs.statistics, strict=False)):
            return NotCompared(names[1], OTHER_HEADS)
        gaps = apart(ours.captures, theirs.captures)
        excused = inherited(gaps, ours.statistics)
        return replace(difference(ours.statistics, theirs.statistics, names, tolerance, excused, gaps), on=piece.on)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _measured(model: nn.Module, batch: Batch, rows: int | None, alike: Sequence[Capture]) -> Compared:
    """The calls of one forward. A glance sees those of the attention functions that a model looks up by name; if they are not
    the same calls as `alike`, everything is followed."""
    how = HowMeasured(rows)
    looked = look(model, batch, how, glance=True)
    if _calls(looked.captures) != _calls(alike):
        looked = look(model, batch, how)
    elif looked.captures[0].queries == alike[0].queries:  # on the same batch the same queries are padding
        same = zip(looked.captures, alike, strict=True)
        looked = looked._replace(captures=[replace(one, padded=other.padded) for one, other in same])
    return Compared(looked.captures, of_tables(measured_tables(looked, how)[1]))


def _calls(captures: Sequence[Capture]) -> list[tuple[str, object]]:
    return [(capture.name, capture.problem.q.shape[1]) for capture in captures]


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
