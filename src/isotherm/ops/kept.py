"""Small tensors that depend on sizes alone: made once for each device and kept, since making them costs as much as a launch."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from isotherm.ops.observers import tracing

MOST, LONGEST = 256, 1 << 14
"""Tensors kept, and the most numbers in one of them. Others are made for every call."""
GOLDEN = 0.6180339887498949

_kept: dict[object, Tensor] = {}


def positions(first: int, count: int, device: torch.device) -> Tensor:
    """`count` whole numbers from `first` on. Nobody may write into them."""
    return _once(_positions, first, count, device)


def even_sample(count: int, total: int, device: torch.device) -> Tensor:
    """`count` of the indices below `total`, ascending and evenly spread. Nobody may write into them."""
    return _once(_even_sample, total, count, device)


def holds(*tensors: Tensor | None) -> bool:
    """Whether all of these are kept."""
    return all(x is None or any(x is one for one in _kept.values()) for x in tensors)


def make_room(table: dict[Any, Any], most: int) -> None:
    """Drop the oldest entries of a table that is full. Another thread may do so at the same time."""
    while len(table) >= most:
        with suppress(RuntimeError, StopIteration):
            table.pop(next(iter(table)), None)


def _positions(first: int, count: int, device: torch.device) -> Tensor:
    return torch.arange(first, first + count, device=device)


def _even_sample(total: int, count: int, device: torch.device) -> Tensor:
    """One index from each of `count` equal stretches, so that short and long causal rows are both covered.

    The place within a stretch moves on by the golden ratio, so it follows no pattern in the data. This uses no random numbers,
    and a CUDA graph can hold it.
    """
    edges = torch.arange(count + 1, device=device) * total // count
    turns = torch.arange(count, device=device, dtype=torch.float64) * GOLDEN % 1
    return edges[:-1] + (turns * edges.diff()).long()


def _once(make: Callable[[int, int, torch.device], Tensor], number: int, count: int, device: torch.device) -> Tensor:
    """What `make` returns, from an earlier call if there was one. A graph or a mode has tensors of its own."""
    if torch.compiler.is_compiling() or tracing() or torch._C._len_torch_dispatch_stack():
        return make(number, count, device)
    found = _kept.get((make, number, count, device))
    if found is not None:
        return found
    if count > LONGEST or len(_kept) >= MOST or torch._C._are_functorch_transforms_active() or _capturing(device):
        return make(number, count, device)
    with torch.inference_mode(False), torch.no_grad():
        found = make(number, count, device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # a later call may be on another stream
    _kept[make, number, count, device] = found
    return found


def _capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured, whose memory is its own."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
