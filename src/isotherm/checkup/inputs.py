"""What a batch holds: how many sequences, pictures or sounds, and how many positions each of them has."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from isotherm.probe import Capture
from isotherm.record import Unit

COLOURS = (1, 2, 3, 4)
"""Sizes of an axis that holds the colours of a picture."""


@dataclass(frozen=True)
class Contents:
    """The contents of a batch. `positions` are those of one sequence, picture or sound; 0 if unknown. `size` is the height and
    width of a picture, or the length of a sound."""

    batch: int
    positions: int
    unit: Unit
    size: tuple[int, ...] = ()


def contents(batch: Any, captures: Sequence[Capture] = ()) -> Contents:
    """What the first tensor of a batch holds: tokens if it has whole numbers, else what its shape and the positions that
    self-attention saw say together."""
    first = next(tensors(batch), None)
    if first is None or first.dim() == 0:
        return Contents(1, 0, "positions" if first is not None else "tokens")
    if first.is_nested:
        return Contents(first.size(0), max(len(part) for part in first.unbind()), "positions")
    shape = tuple(first.shape)
    if not first.is_floating_point():
        return Contents(1, shape[0], "tokens") if len(shape) == 1 else Contents(shape[0], shape[1], "tokens")
    if len(shape) == 4:
        return Contents(shape[0], _seen(captures, shape[0]), "patches", _height_and_width(shape))
    if len(shape) == 3 and (seen := _seen(captures, shape[0])):
        return _of_three_axes(shape, seen, captures)
    if len(shape) == 2 and (seen := _seen(captures, shape[0])):
        if shape[0] in _lengths(captures):
            return Contents(1, shape[0], "positions")
        return (
            Contents(shape[0], seen, "frames", shape[1:]) if shape[1] > seen else Contents(shape[0], seen, "positions")
        )
    return Contents(shape[0], shape[1] if len(shape) > 1 else 0, "positions")


def _of_three_axes(shape: tuple[int, ...], seen: int, captures: Sequence[Capture]) -> Contents:
    """[B, T, D] or [T, B, D] if attention saw so many positions; else a spectrum [B, bins, frames] if its last axis is long."""
    lengths = _lengths(captures)
    if shape[1] in lengths:
        return Contents(shape[0], shape[1], "positions")
    if shape[0] in lengths:
        return Contents(shape[1], shape[0], "positions")
    sound = shape[2] > shape[1] and shape[2] >= seen
    return Contents(shape[0], seen, "frames", shape[2:]) if sound else Contents(shape[0], seen, "positions")


def tensors(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch, in order, those of dicts within it too."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, (Mapping, list, tuple)):
        for value in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors(value)


def _lengths(captures: Sequence[Capture]) -> set[int]:
    return {capture.queries for capture in captures if capture.kind == "self"}


def _seen(captures: Sequence[Capture], batch: int) -> int:
    """How many positions of one member of the batch the first attention over them saw, in all its windows."""
    first = next((capture for capture in captures if capture.kind in ("self", "channel")), None)
    if first is None:
        return 0
    q, k = first.problem.q, first.problem.k
    windows = q.shape[0] // batch if batch and q.shape[0] % batch == 0 else 1
    return windows * (q.shape[3] if first.kind == "channel" else max(first.queries, k.shape[2]))


def _height_and_width(shape: tuple[int, ...]) -> tuple[int, int]:
    """[B, C, H, W], or [B, H, W, C] if only the last axis can be that of the colours."""
    last = shape[3] in COLOURS and shape[1] not in COLOURS
    return (shape[1], shape[2]) if last else (shape[2], shape[3])


def across_pictures(capture: Capture, model: nn.Module, batch: Any) -> Capture:
    """The capture, called batch if it attends from one picture of the batch to the others.

    `nn.MultiheadAttention` takes the first axis for the sequence unless it is told otherwise. For pictures it is certain that
    the first axis of the model's input is the batch. For sequences it is not: a model may take them with the tokens first.
    """
    first = next(tensors(batch), None)
    if first is None or first.dim() != 4 or not first.is_floating_point() or capture.implementation != "multi-head":
        return capture
    module, sequences, rows = model.get_submodule(capture.name), capture.problem.q.shape[0], capture.queries
    across = rows == capture.problem.k.shape[2] == first.shape[0] != sequences
    return replace(capture, kind="batch") if across and not getattr(module, "batch_first", True) else capture
