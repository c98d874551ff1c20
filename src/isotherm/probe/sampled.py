"""A few vectors of q or k, and of the projections and norms around it, at the same tokens.

They are gathered while the model runs, on its device, without waiting for it; `factors.trace` reads them once the forward is
over. All lengths come to the host together (`read`), because every reading waits for a GPU to finish.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isotherm.probe.capture import Factor
from isotherm.probe.frames import Frame, Record, Recorded
from isotherm.probe.keep import storage_of
from isotherm.probe.layouts import tokens, viewed, without_head_axis

TOKENS = 48
"""How many tokens are compared, spread over the sequence."""
SEQUENCES = 4
"""How many sequences of the batch are compared."""


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors [b, …, t, …, dim] of one tensor at some tokens. `lengths` [b, t, blocks] are theirs, on the host, once read."""

    at: Tensor
    lengths: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Candidate:
    """Vectors of q or k, and the blocks that a record's output may be cut into, at the same tokens: [b, t, heads, dim] and
    [b, t, blocks, dim]."""

    record: Recorded
    used: Vectors
    output: Vectors


@dataclass(frozen=True, eq=False)
class Whole:
    """Vectors used [b, t, H, D], and the output [b, t, features] of a projection at the same tokens. `all_tokens`: it has as
    many tokens as q or k."""

    record: Recorded
    used: Tensor
    output: Tensor
    all_tokens: bool


@dataclass(frozen=True, eq=False)
class Beside:
    """What stands beside q or k in one frame, latest first. `view_of` is the projection that q or k is a view of, with the
    factor it then has."""

    pairs: tuple[Candidate, ...]
    whole: tuple["Whole", ...]
    projections: tuple[Recorded, ...]
    tolerance: float
    view_of: tuple[Factor, Recorded] | None = None

    @property
    def of_projections(self) -> list[Candidate]:
        """The pairs with projections."""
        return [pair for pair in self.pairs if pair.record.kind == "projection"]


@dataclass(frozen=True, eq=False)
class Sample:
    """Some vectors of q or k, as `own`, and the frames to search for where they came from, innermost first. `made` is the
    memory that it was written to; `shape` is [B, H, T, D]."""

    own: Vectors
    frames: tuple[Beside, ...]
    made: int
    shape: tuple[int, ...]


class Sampler:
    """Gathers the samples of one forward."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int, torch.device], Tensor] = {}

    def take(self, used: Tensor | None, frames: Sequence[Frame]) -> Sample | None:
        """The sample of `used` [B, H, T, D] beside what the frames have recorded. None if it holds nothing, or if there is
        nothing beside it."""
        if used is None or not used.numel():
            return None
        used = used.detach()
        vectors: dict[tuple[int, int], Vectors] = {}
        beside = []
        for frame in reversed(frames):
            if frame.records:
                beside.append(self._beside(used, frame.records, vectors))
            if (beside and beside[-1].view_of) or (
                frame.role.attends and any(r.kind == "projection" for r in frame.records)
            ):
                break
        if not beside:
            return None
        length = used.shape[2]
        own = vectors.get((length, 0)) if length > 1 else Vectors(used[:TOKENS].transpose(1, 2).clone())
        own = self._vectors(used, length, 0) if own is None else own
        return Sample(own, tuple(beside), storage_of(used), tuple(used.shape))

    def _beside(self, used: Tensor, records: Sequence[Record], vectors: dict[tuple[int, int], Vectors]) -> Beside:
        here = storage_of(used)
        for record in records:  # if the model had written to the memory of a view, the record would be a copy
            if record.kind == "projection" and storage_of(record.output) == here:
                made = record.about
                factor = Factor(1.0, "constant", record.name, layout=viewed(used, record.output), parts=record.parts)
                return Beside((), (), (made,), 0.0, (factor, made))
        precise = {used.dtype, *(record.output.dtype for record in records)} <= {torch.float32, torch.float64}
        pairs: list[Candidate] = []
        whole: list[Whole] = []
        for record in reversed(records):
            own = self._pairs(used, record, vectors)
            pairs += own
            if record.kind == "projection":
                whole += self._whole(used, record, own, vectors)
        projections = tuple(record.about for record in records if record.kind == "projection")
        return Beside(tuple(pairs), tuple(whole), projections, 1e-3 if precise else 1e-2)

    def _pairs(self, used: Tensor, record: Record, vectors: dict[tuple[int, int], Vectors]) -> list[Candidate]:
        """A cache may hold the keys of earlier calls before the new ones, or room for later ones after them, so both ends of
        `used` are compared."""
        batch, _, length, dim = used.shape
        made, found = record.about, []
        for number, output in enumerate(tokens(record.output, batch, length, dim)):
            new = output.shape[1]
            key = (batch, dim, number, new)
            if key not in record.samples:
                record.samples[key] = Vectors(output[:SEQUENCES].index_select(1, self._at(new, 0, output.device)))
            for start in dict.fromkeys((length - new, 0)):
                if (new, start) not in vectors:
                    vectors[new, start] = self._vectors(used, new, start)
                found.append(Candidate(made, vectors[new, start], record.samples[key]))
        return found

    def _whole(
        self, used: Tensor, record: Record, pairs: list[Candidate], vectors: dict[tuple[int, int], Vectors]
    ) -> list[Whole]:
        output = without_head_axis(record.output)
        batch, _, length, dim = used.shape
        if output.dim() != 3 or output.shape[0] != batch or not 0 < output.shape[1] <= length:
            return []
        new, start = output.shape[1], length - output.shape[1]
        if pairs and output.shape[2] % dim == 0:
            return [Whole(pairs[0].record, pairs[0].used.at, pairs[0].output.at.flatten(2), new == length)]
        if (new, start) not in vectors:
            vectors[new, start] = self._vectors(used, new, start)
        some = output[:SEQUENCES].index_select(1, self._at(new, 0, output.device))
        return [Whole(record.about, vectors[new, start].at, some, new == length)]

    def _vectors(self, used: Tensor, new: int, start: int) -> Vectors:
        return Vectors(used[:SEQUENCES].index_select(2, self._at(new, start, used.device)).transpose(1, 2))

    def _at(self, new: int, start: int, device: torch.device) -> Tensor:
        """The indices of up to `TOKENS` of `new` tokens, of which the first is at `start`."""
        key = new, start, device
        if key not in self._places:
            spread = torch.linspace(start, start + new - 1, min(new, TOKENS), device=device, dtype=torch.float64)
            self._places[key] = spread.round().long()
        return self._places[key]


def read(samples: Iterable[Sample]) -> None:
    """Bring the lengths of all vectors to the host, in one transfer for each device."""
    unread: dict[tuple[object, ...], dict[int, Vectors]] = {}
    for sample in samples:
        pairs = (pair for beside in sample.frames for pair in beside.pairs)
        for vectors in (sample.own, *(one for pair in pairs for one in (pair.used, pair.output))):
            if not vectors.lengths:
                key = vectors.at.device, vectors.at.dtype, vectors.at.shape
                unread.setdefault(key, {})[id(vectors)] = vectors
    for device in {key[0] for key in unread}:
        groups = [list(group.values()) for key, group in unread.items() if key[0] == device]
        found = [lengths(torch.stack([vectors.at for vectors in group])) for group in groups]
        host = torch.cat([group.flatten() for group in found]).cpu()
        for group, part, there in zip(groups, host.split([one.numel() for one in found]), found, strict=True):
            for vectors, own in zip(group, part.view(there.shape), strict=True):
                vectors.lengths.append(own)


def lengths(vectors: Tensor) -> Tensor:
    """Lengths of the vectors in the last dimension, in float64."""
    return torch.linalg.vector_norm(vectors.double(), dim=-1)
