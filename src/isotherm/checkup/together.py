"""Measure many captured calls. On a GPU calls that differ in q and k alone are measured as one, because launching takes longer
than computing; when memory runs out, each by itself, on ever fewer rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

import torch

from isotherm.checkup.memory import Remarks
from isotherm.checkup.rows import measure_at
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.stats import RowStats

AT_ONCE = 1 << 28
"""Most bytes of q and k that are put together."""
DEVICES = frozenset({"cuda"})
"""Where launching takes longer than computing."""
Tell = Callable[[Text, int], object]
"""Told what is being done, and the number of the call."""


@dataclass(frozen=True, eq=False)
class Wanted:
    """Statistics of so many rows of a captured call (None: of all) at each of some scales."""

    capture: Capture
    rows: int | None
    scales: Sequence[float]

    def measured(self, rows: int | None) -> list[RowStats]:
        """The statistics of so many rows."""
        return measure_at(self.capture, rows, self.scales) if self.scales else []


class Together(NamedTuple):
    """Calls that were measured as one: their numbers, and their statistics at each of their scales, in which the sequences of
    every call follow those of the call before it."""

    calls: Sequence[int]
    stats: Sequence[RowStats]

    def apart(self) -> Iterator[tuple[int, Sequence[RowStats]]]:
        """Yield the number of each call with its own statistics."""
        if len(self.calls) == 1:
            yield self.calls[0], self.stats
            return
        for place, call in enumerate(self.calls):
            yield call, [stats.map(itemgetter(self._sequences(stats, place))) for stats in self.stats]

    def _sequences(self, stats: RowStats, place: int) -> slice:
        each = stats.rest.shape[0] // len(self.calls)
        return slice(each * place, each * (place + 1))


def measure_together(wanted: Sequence[Wanted], doing: Text, remarks: Remarks, tell: Tell) -> Iterator[Together]:
    """Yield the statistics of all calls at their scales, in any order. `doing` says with `{name}` what is being done."""
    groups: dict[object, list[int]] = {}
    for index, one in enumerate(wanted):
        groups.setdefault(_kind(one, index), []).append(index)
    for group in groups.values():
        problem = wanted[group[0]].capture.problem
        size = max(1, AT_ONCE // max(1, problem.k.nbytes + problem.q.nbytes))
        for some in (group[start : start + size] for start in range(0, len(group), size)):
            tell(doing.format(name=wanted[some[0]].capture.name), some[0])
            try:
                found = [Together(some, _as_one([wanted[index] for index in some]))]
            except torch.OutOfMemoryError:
                found = [Together([index], _alone(wanted[index], doing, remarks)) for index in some]
            yield from found


def _alone(wanted: Wanted, doing: Text, remarks: Remarks) -> list[RowStats]:
    what, total = doing.format(name=wanted.capture.name), wanted.capture.problem.q.shape[2]
    return remarks.within_memory(what, wanted.measured, wanted.rows, total)


def _kind(wanted: Wanted, index: int) -> object:
    """What calls that are measured as one have in common. Of a call that is measured by itself, its number."""
    capture, problem, seen = wanted.capture, wanted.capture.problem, wanted.capture.problem.visibility
    plain = problem.bias is None and capture.sink is None and capture.padded is None
    placed = capture.queries == seen.keys or (
        not seen.causal and seen.window is None
    )  # the first query is the first key's
    shared = seen.mask is None or seen.mask.shape[0] == 1
    if not (problem.q.device.type in DEVICES and plain and placed and shared):
        return index
    of_tensors = problem.q.shape, problem.k.shape, problem.q.dtype, problem.k.dtype, problem.q.device
    of_rows = wanted.rows, capture.queries, seen.keys, seen.causal, seen.window, id(seen.mask)
    return (*of_tensors, *of_rows, problem.softcap, tuple(wanted.scales))


def _as_one(wanted: Sequence[Wanted]) -> list[RowStats]:
    """Calls of one kind, put together as the sequences of one batch."""
    first = wanted[0].capture
    if len(wanted) == 1:
        return wanted[0].measured(wanted[0].rows)
    device = first.problem.q.device
    q, k = (torch.cat([getattr(one.capture.problem, name).to(device) for one in wanted]) for name in "qk")
    whole = replace(first, problem=replace(first.problem, q=q, k=k, v=k))
    return replace(wanted[0], capture=whole).measured(wanted[0].rows)
