"""A piece of a batch whose n × n matrices fit in memory: what implementations are compared on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

from torch import Tensor

from isotherm.checkup.measure import Batch
from isotherm.language import Text
from isotherm.probe import Capture

ENTRIES = 1 << 27
"""Most entries that one layer's matrices of weights may have together. Of a larger batch a piece is taken."""
OF_A_PIECE = 1 << 25
"""How many they may have in a piece."""
ONE = Text("the first sequence", "第一个序列")
PART = Text("{end} {some} of {all} tokens", "{all} 个词元中的{end} {some} 个")
OF_ONE = Text("{part} of the first sequence", "第一个序列的 {part}")
FIRST, LAST = Text("the first", "前"), Text("the last", "后")


@dataclass(frozen=True)
class Piece:
    """A batch to run, and which part of the whole it is: None if all of it."""

    batch: Batch
    on: Text | None


def entries(captures: Sequence[Capture]) -> int:
    """The most entries that a layer's matrices of weights have together."""
    sizes = (capture.problem.q.shape[:2].numel() * capture.queries * capture.problem.k.shape[2] for capture in captures)
    return max(sizes, default=0)


def piece_of(batch: Batch, captures: Sequence[Capture], most: int = ENTRIES) -> Piece | None:
    """The batch, if its matrices have at most that many entries; else its first sequence, and of that as many tokens as fit.
    None if it cannot be cut."""
    size = entries(captures)
    if size <= most:
        return Piece(batch, None)
    values = list(_values(batch))
    ids = next((value for value in values if value.dim() == 2 and not value.is_floating_point()), None)
    if ids is None or not all(_can_be_cut(value, ids) for value in values):
        return None
    sequences, tokens = ids.shape
    some = min(tokens, isqrt(tokens * tokens * sequences * min(most, OF_A_PIECE) // size))
    if some < 2:
        return None
    end = _end(batch, ids)
    part = PART.format(end=FIRST if end else LAST, some=f"{some:,}", all=f"{tokens:,}")
    words = part if sequences == 1 else ONE if some == tokens else OF_ONE.format(part=part)
    return Piece(_cut(batch, ids, slice(0, some) if end else slice(tokens - some, tokens)), words)


def _values(batch: Any) -> list[Tensor]:
    """The tensors of a batch."""
    values = [batch] if isinstance(batch, Tensor) else batch.values() if isinstance(batch, Mapping) else batch
    return [value for value in values if isinstance(value, Tensor)]


def _can_be_cut(value: Tensor, ids: Tensor) -> bool:
    """Whether the value belongs to the ids: [B, n, …], or [n] for the positions, or a number."""
    return value.dim() == 0 or value.shape[:2] == ids.shape or value.shape == ids.shape[1:]


def _end(batch: Batch, ids: Tensor) -> bool:
    """Whether the sequence begins at its first token, and not with padding."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    return not isinstance(mask, Tensor) or mask.shape != ids.shape or bool(mask[0, 0])


def _cut(batch: Any, ids: Tensor, tokens: slice) -> Any:
    if isinstance(batch, Tensor):
        return batch[:1, tokens] if batch.shape[:2] == ids.shape else batch[tokens] if batch.dim() else batch
    if isinstance(batch, Mapping):
        return {name: _cut(value, ids, tokens) if isinstance(value, Tensor) else value for name, value in batch.items()}
    return [_cut(value, ids, tokens) if isinstance(value, Tensor) else value for value in batch]
