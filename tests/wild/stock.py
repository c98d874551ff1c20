"""What a row of the tables of stock models says: how to build a model small and offline, and what a check-up should find."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, Any]
"""A model in evaluation mode, and a batch for it."""
TOKENS, BATCH, VOCABULARY = 20, 2, 99


@dataclass(frozen=True)
class Stock:
    """`layers` attention computations in one forward (those without a softmax need not be counted), of which at most `unseen`
    are only listed as unseen and at most `unknown` have a scale that is not known. `true` are the codes of errors and warnings
    that are true of this model as it is built here, and `why` says why. `whole` batches are dictionaries that the model takes
    as one argument."""

    library: str
    build: Callable[[], Made]
    layers: int
    unseen: int = 0
    unknown: int = 0
    true: frozenset[str] = frozenset()
    why: str = ""
    whole: bool = False


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def words(n: int = TOKENS, *, batch: int = BATCH, below: int = VOCABULARY, seed: int = 1) -> Tensor:
    return torch.randint(3, below, (batch, n), generator=torch.Generator().manual_seed(seed))


def image(side: int = 32, *, batch: int = BATCH, channels: int = 3) -> Tensor:
    return noise(batch, channels, side, side)


def tensors(output: Any) -> Iterator[Tensor]:
    """Every tensor of a model's output, however nested."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from tensors(value)
    elif hasattr(output, "__dict__"):
        yield from tensors(vars(output))
