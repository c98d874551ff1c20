"""The probe of a check-up. On a GPU, calls of many rows are measured as they run, so that q and k of all layers are never held
together: a sample of the queries is kept, and the keys, in the host's memory once they would take more of the device's than it
held when the forward began."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isotherm.checkup.heads import HeadTable, head_tables
from isotherm.checkup.loading.loaded import Progress, nobody
from isotherm.checkup.memory import Remarks
from isotherm.checkup.rows import measure, spread_rows
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.probe.capture import Kept
from isotherm.probe.keep import storage_of
from isotherm.probe.later import Unknown
from isotherm.probe.session import Session
from isotherm.stats import RowStats

MANY = 1 << 16
"""A call of more rows, over all heads and sequences, is measured at once on a GPU."""
QUERIES = 1 << 14
"""How many of its queries are kept, over all heads and sequences."""
ROWS = 1 << 18
"""How many of its rows' statistics are kept, over all heads and sequences."""
SUMMARISED = 1 << 20
"""Layers are summarised together until they have so many rows: launching takes longer than summing up fewer."""
MEASURING = Text("measuring {name}", "测量 {name}")


@dataclass(frozen=True)
class HowMeasured:
    """How calls are measured: `rows` of each head, with `detail` for the record, telling `progress` and making `remarks`."""

    rows: int | None = None
    detail: bool = False
    remarks: Remarks = field(default_factory=Remarks)
    progress: Progress = nobody


@dataclass(frozen=True, eq=False)
class Taken:
    """What was measured of a call while the model ran: statistics of all its rows, or of some, and the numbers of its heads
    from all of them. `padded` is the padding that was known."""

    kept: Kept
    stats: RowStats
    heads: HeadTable
    padded: Tensor | None


class MeasuredCall(NamedTuple):
    """Statistics of all rows of a call, which are not summarised yet, and the padding that was known."""

    kept: Kept
    stats: RowStats
    padded: Tensor | None


class CheckSession(Session):
    """Follows the forward of a check-up. `taken` are the calls that were measured, by the place of their capture."""

    def __init__(self, model: nn.Module, closely: Iterable[str], how: "HowMeasured", *, glance: bool = False) -> None:
        super().__init__(model, frozenset(closely), glance=glance)
        self._how = how
        self._waiting: list[Kept] = []
        self._measured: list[MeasuredCall] = []
        self._taken: list[Taken] = []
        self._room: int | None = None

    @property
    def taken(self) -> Mapping[int, Taken]:
        """What was measured, by the place of the capture."""
        self._summarise()
        places = {id(kept): place for place, kept in enumerate(self._kept)}
        return {places[id(taken.kept)]: taken for taken in self._taken if id(taken.kept) in places}

    def add(self, capture: Capture, unknown: Unknown | None = None) -> None:
        """Keep a capture."""
        super().add(capture, unknown)
        if is_measured_at_once(capture):
            self._waiting.append(self._kept[-1])
            if self.glances:
                self._measure_calls_of(capture.name)

    def leave(self, module: nn.Module, given: Any, result: Any) -> None:
        """Measure the calls of a module that has returned."""
        super().leave(module, given, result)
        if self._waiting:
            with self.own_work(module):
                self._measure_calls_of(self.frames.name_of(module))

    def _measure_calls_of(self, name: str) -> None:
        over = [kept for kept in self._waiting if kept.capture.name == name or not self.frames.stack]
        self._waiting = [kept for kept in self._waiting if kept not in over]
        over = [kept for kept in over if kept in self._kept]
        memories = [storage_of(kept.capture.problem.q) for kept in over]
        for kept, memory in zip(over, memories, strict=True):
            if memories.count(memory) == 1:  # several are slices of one call, which is put together later
                self._measure(kept)

    def _measure(self, kept: Kept) -> None:
        if kept.capture.problem.visibility.mask is not None:
            self.resolve()  # a mask may say which queries are padding
        capture = kept.capture
        total = capture.problem.q.shape[2]
        doing, how = MEASURING.format(name=capture.name), self._how
        how.progress(doing, 0.1)
        stats = how.remarks.within_memory(doing, lambda rows: measure(capture, rows), how.rows, total)
        self._measured.append(MeasuredCall(kept, stats, capture.padded))
        if sum(one.stats.rest.numel() for one in self._measured) >= SUMMARISED:
            self._summarise()
        place = next(place for place, one in enumerate(self._kept) if one is kept)
        kept.capture = self.seen.captures[place] = self._sampled(capture)

    def _summarise(self) -> None:
        """Reduce the statistics of all calls that wait for it to the numbers of their heads."""
        waiting, self._measured = self._measured, []
        tables = head_tables([one.stats for one in waiting], detail=self._how.detail)
        for (kept, stats, padded), table in zip(waiting, tables, strict=True):
            self._taken.append(Taken(kept, _thinned(stats), table, padded))

    def _sampled(self, capture: Capture) -> Capture:
        """The capture with some of its queries."""
        q, k = capture.problem.q, capture.problem.k
        rows = spread_rows(q.shape[2], max(1, QUERIES // (q.shape[0] * q.shape[1])), q.device)
        if self._room is None:
            self._room = _held(q.device)
        self._room -= k.nbytes
        if self._room < 0 and k.is_cuda:
            k = k.cpu()
        elif k.untyped_storage().nbytes() > 2 * k.nbytes:  # a view would keep all of the memory
            k = k.clone()
        problem = replace(capture.problem.take(rows), k=k, v=k)
        return replace(capture, problem=problem, rows=rows, total=q.shape[2])


def is_measured_at_once(capture: Capture) -> bool:
    """Whether a call has so many rows on a GPU that its q is not kept."""
    q = capture.problem.q
    return q.is_cuda and capture.rows is None and q.shape[:3].numel() > MANY


def _held(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 1 << 30


def _thinned(stats: RowStats) -> RowStats:
    """Some of the rows, if they are too many to keep them all."""
    batch, heads, rows = stats.rest.shape
    if batch * heads * rows <= ROWS:
        return stats
    some = spread_rows(rows, max(1, ROWS // (batch * heads)), stats.rest.device)
    kept = some if stats.rows is None else stats.rows[some]
    thin = stats.map(lambda values: values.index_select(-1, some))
    return replace(thin, rows=kept, total_rows=rows if stats.rows is None else stats.total_rows)
