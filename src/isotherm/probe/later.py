"""What a probe finds out when the forward has ended, because asking sooner would wait for a GPU: where q and k of each call
came from, and whether outputs were finite."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isotherm.probe.capture import Capture, Kept
from isotherm.probe.factors import Tracer
from isotherm.probe.kinds import Ancestry
from isotherm.probe.masks import Masks
from isotherm.probe.sampled import Sample, Sampler, read


@dataclass(frozen=True, eq=False)
class Unknown:
    """What is not yet known of a captured call: where `q` and `k` came from. This decides the `kind` if that is True, and the
    `padding` if that is True, where `one_input` says that q and k come from one sequence in any case."""

    q: Sample | None
    k: Sample | None
    ancestry: Ancestry
    kind: bool
    padding: bool
    one_input: bool

    def samples(self) -> list[Sample]:
        """The samples to read first."""
        return [sample for sample in (self.q, self.k) if sample is not None]


class Later:
    """What is still to be found out of the calls of a session, by their places among its captures."""

    def __init__(self, masks: Masks) -> None:
        self.sampler = Sampler()
        self._tracer, self._masks = Tracer(), masks
        self._unknown: dict[int, Unknown] = {}
        self._largest: list[tuple[str, int, Tensor]] = []

    def add(self, place: int, unknown: Unknown) -> None:
        """Find this out of a call."""
        self._unknown[place] = unknown

    def note(self, module: str, place: int, largest: Tensor) -> None:
        """Find out whether the output of a module is finite, from its largest magnitude. `place` is that of the last call
        before it ended."""
        self._largest.append((module, place, largest))

    def withdraw(self, indices: Sequence[int], count: int) -> None:
        """Forget the calls of these places among `count`."""
        stay = [place for place in range(count) if place not in indices]
        self._unknown = {new: self._unknown[old] for new, old in enumerate(stay) if old in self._unknown}
        self._largest = [(name, sum(old <= place for old in stay) - 1, one) for name, place, one in self._largest]

    def trace(self, captures: list[Capture], kept: Sequence[Kept]) -> None:
        """Trace the calls back to their projections."""
        waiting, self._unknown = self._unknown, {}
        samples = [sample for one in waiting.values() for sample in one.samples()]
        read(samples)
        self._tracer.expect(samples)
        for place, one in waiting.items():
            kept[place].capture = captures[place] = self._traced(kept[place].capture, one)
        self._tracer.expect(())

    def trace_now(self, capture: Capture, unknown: Unknown) -> Capture:
        """The capture with what was unknown of it."""
        read(unknown.samples())
        return self._traced(capture, unknown)

    def first_broken(self) -> tuple[str, int | None] | None:
        """The first module whose output is not finite, with the place of the last call before it ended, if there is one."""
        found, self._largest = self._largest, []
        if not found:
            return None
        finite = torch.stack([one.to(found[0][2].device) for _, _, one in found]).isfinite().tolist()
        pairs = zip(found, finite, strict=True)
        return next(((name, place if place >= 0 else None) for (name, place, _), fine in pairs if not fine), None)

    def _traced(self, capture: Capture, one: Unknown) -> Capture:
        (q, q_source), (k, k_source) = self._tracer.trace(one.q), self._tracer.trace(one.k)
        sources = q_source, k_source
        kind = one.ancestry.kind(sources, capture.problem.q.shape[2]) if one.kind else capture.kind
        padded = capture.padded
        if one.padding and kind == "self" and (one.one_input or one.ancestry.are_one(sources)):
            padded = self._masks.padded(capture.problem.visibility)
        return replace(capture, kind=kind, q_factor=q, k_factor=k, padded=padded)
