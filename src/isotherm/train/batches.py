"""Batches whose order is a pure function of seed and step: a resumed run needs no memory of where its data stood."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isotherm.train.tokens import PAD


def generator(seed: int, *stream: int) -> torch.Generator:
    """A generator for one stream of random numbers, the same on every machine.

    >>> torch.rand(1, generator=generator(0, 1, 2)) == torch.rand(1, generator=generator(0, 1, 2))
    tensor([True])
    """
    for number in stream:
        seed = (seed * 1_000_003 + number + 1) % 2**63
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Batch:
    """What a model is called with, and the token it should say at each place: labels [..., T], PAD where nothing is asked."""

    inputs: tuple[Tensor, ...]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def tokens(self) -> int:
        """How many tokens the labels ask for."""
        return int((self.labels != PAD).sum())

    def part(self, index: int, count: int) -> "Batch":
        """The index-th of `count` parts. Where no row is left for a part, it is one row that asks for nothing."""
        if index >= len(self):
            return Batch(tuple(tensor[:1] for tensor in self.inputs), torch.full_like(self.labels[:1], PAD))
        return self.map(lambda tensor: tensor[index::count])

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with every tensor changed."""
        return Batch(tuple(change(tokens) for tokens in self.inputs), change(self.labels))

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))


class Ragged:
    """Rows of different lengths, end to end in one tensor; `rows` returns some of them padded."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
        self._starts = self.lengths.cumsum(0) - self.lengths
        self._flat = torch.tensor([token for row in rows for token in row], dtype=torch.int32)

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self, indices: Tensor) -> Tensor:
        """These rows, padded on the right to the longest of them: [B, longest]."""
        lengths = self.lengths[indices].unsqueeze(1)
        places = torch.arange(int(lengths.max())).unsqueeze(0)
        inside = places < lengths
        found = self._flat[(self._starts[indices].unsqueeze(1) + places).where(inside, 0)]
        return found.where(inside, PAD).long()


class BatchOrder:
    """Which examples make each step's batch. They have similar lengths, so that little of the batch is padding.

    The examples are sorted by length and cut where a batch is full. The sorted lengths, and so the cuts, are the same in every
    epoch. The order of equally long examples and the order of the batches change from epoch to epoch.
    """

    def __init__(self, lengths: Tensor, budget: int, seed: int) -> None:
        self._lengths, self._seed = lengths, seed
        self._cuts = _cut(lengths.sort().values.tolist(), budget)
        self._epoch, self._examples, self._batches = -1, lengths, lengths

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._cuts)

    def at(self, step: int) -> Tensor:
        """The examples of a step, counted from 0."""
        epoch, place = divmod(step, len(self))
        if epoch != self._epoch:
            drawn = generator(self._seed, epoch)
            mixed = torch.randperm(len(self._lengths), generator=drawn)
            self._examples = mixed[self._lengths[mixed].argsort(stable=True)]
            self._batches = torch.randperm(len(self), generator=drawn)
            self._epoch = epoch
        start, end = self._cuts[int(self._batches[place])]
        return self._examples[start:end]


def _cut(lengths: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Where to cut sorted lengths, so that rows times the longest row stays within the budget; one row always fits."""
    cuts, start = [], 0
    for end, length in enumerate(lengths):
        if end > start and (end + 1 - start) * length > budget:
            cuts.append((start, end))
            start = end
    cuts.append((start, len(lengths)))
    return cuts
