"""The probe of a training step. It measures each attention call while the forward runs, and keeps sums instead of q and k.

Sums and maxima stay on the model's device until the step is read, so a step of training waits for nothing.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.checkup.rows import statistics
from isotherm.monitor import noting
from isotherm.monitor.parts import WHOLE, HeadShare, part_of
from isotherm.monitor.snapshots import Snapshot
from isotherm.monitor.totals import SUMS, Key, LayerTotals, squared_length
from isotherm.ops import Problem, Visibility
from isotherm.probe.call import Call
from isotherm.probe.capture import Capture, Factor, Kept
from isotherm.probe.factors import UNTRACED
from isotherm.probe.frames import Frame
from isotherm.probe.later import Unknown
from isotherm.probe.session import Session
from isotherm.stats import RowStats


@dataclass(frozen=True)
class Origin:
    """Where a layer's q and k come from, for whoever wants to change that."""

    q: Factor
    k: Factor
    heads: int
    key_heads: int
    parts: int = 1
    """Over how many processes the layer's heads are spread; the other fields are this one's."""


class TrainingSession(Session):
    """Follows the forwards of one training step: those that need gradients. Validation passes are left alone.

    `trusted` outlives the session: calls that were once replayed and gave what the model computed are not replayed again.
    """

    at_once = True

    def __init__(
        self, model: nn.Module, rows: int | None, trusted: set[tuple[str, str]], *, traces: bool, together: bool = False
    ) -> None:
        super().__init__(model)
        self._together, self._parts = together, dict[str, HeadShare]()
        self.wanted: Collection[str] = ()
        """Modules whose q and k are to be kept, in `snapshots`."""
        self.snapshots: dict[str, Snapshot] = {}
        self.traces = traces
        self.totals: dict[Key, LayerTotals] = {}
        self.origins: dict[Key, Origin] = {}
        self.errors: list[str] = []
        """What went wrong in the probe itself: no tracebacks, which would keep tensors."""
        self.forwards = 0
        self.seconds = 0.0
        self.result: Any = None
        self._rows, self._trusted = rows, trusted
        self._measured: list[LayerTotals] = []
        self._heads: list[tuple[int, int]] = []

    def enter(self, module: nn.Module) -> bool:
        if not self.frames.stack and not torch.is_grad_enabled():
            return False
        try:
            if not self.frames.stack and id(module) in self.frames.names:
                self.frames.know(self.model)  # layers may have been replaced since the look began
            return super().enter(module)
        except Exception as error:
            self.failed(error, module)
            return False

    def passes_by(self, module: nn.Module) -> bool:
        return not torch.is_grad_enabled() or super().passes_by(module)

    def leave(self, module: nn.Module, given: Any, result: Any) -> None:
        try:
            super().leave(module, given, result)
            self._release()
            if not self.frames.stack and result is not None:
                self._end_forward(result)
        except Exception as error:
            self.failed(error, module)
        if not self.frames.stack:
            self._forget()

    def failed(self, error: Exception, module: nn.Module | None) -> None:  # noqa: ARG002  the error says where
        """Keep what went wrong in here. The model must never hear of it."""
        self.errors.append(_said(error))

    def capture(
        self, call: Call, module: nn.Module | None = None, agrees: Callable[[Problem], bool] | None = None
    ) -> bool:
        started = time.perf_counter()
        captured = self._capture(call, module, agrees)
        self.seconds += time.perf_counter() - started
        return captured

    def _capture(self, call: Call, module: nn.Module | None, agrees: Callable[[Problem], bool] | None) -> bool:
        subject = self._subject(module)[0], call.implementation
        if not call.q.numel():  # a batch of nothing has no row to compare
            agrees = None
        if self._is_plain(call) and (agrees is None or subject in self._trusted):
            self._note(call, *self._subject(module))
        elif not super().capture(call, module, None if subject in self._trusted else agrees):
            return False
        if agrees is not None:
            self._trusted.add(subject)
        if self._together and subject[0] not in self._parts:
            self._parts[subject[0]] = part_of(self.frames.modules.get(subject[0]))
        for name, tensor in zip("qk", call.made or (call.q, call.k), strict=True):
            if tensor.grad_fn is not None:  # otherwise it is no part of the graph, whatever it requires
                self._measured[-1].squares[name].append(_squares(tensor, self.errors))
        return True

    def _is_plain(self, call: Call) -> bool:
        """Whether one kernel can measure the call: q and k on a GPU, all keys or the earlier ones, and nothing to trace."""
        plain = call.terms.mask is None and call.terms.bias is None and call.sink is None and call.padded is None
        plain = plain and call.window is None and call.softcap is None and call.rows is None and call.first == 0
        return plain and not self.traces and not self.wanted and call.q.is_cuda and noting.can_note(call.q, None)

    def _inspect(self, frame: Frame, result: Any) -> None:
        """Look for no NaN in what modules return: that would wait for the device, and the readings say it."""

    def _note(self, call: Call, name: str, kind: str) -> None:
        """Measure a plain call on a GPU by one kernel."""
        heads = call.q.shape[1]
        state = torch.zeros(len(SUMS) + 1, heads, dtype=torch.float64, device=call.q.device)
        state[-1].fill_(-inf)
        armed = torch.ones(1, dtype=torch.int32, device=call.q.device)
        q, k = call.q.detach(), call.k.detach()
        rows = self._rows or 0
        noting.note_now(q, k, armed, state, scale=call.scale, causal=call.causal, rows=rows)
        positions = torch.arange(0)
        nothing = q.new_empty(0)
        problem = Problem(nothing, nothing, nothing, Visibility(positions, 0, call.causal), call.scale)
        super().add(Capture(name, kind, "self", call.implementation, problem, None, call.passed, UNTRACED, UNTRACED))
        self._measured.append(LayerTotals(state[:-1], state[-1]))
        self._heads.append((heads, call.k.shape[1]))

    def add(self, capture: Capture, unknown: Unknown | None = None) -> None:
        """Measure the call now."""
        super().add(capture, unknown)
        capture = self.seen.captures[-1]
        try:
            if capture.name in self.wanted:
                self.snapshots[capture.name] = Snapshot.of(capture.problem)
            with torch.autocast(capture.problem.q.device.type, enabled=False):
                self._measured.append(LayerTotals.of(_measure(capture, self._rows)))
        except BaseException:  # such as too little memory: the call is none of those that were measured
            super().withdraw(len(self.seen.captures) - 1)
            raise
        self._heads.append((capture.problem.q.shape[1], capture.problem.k.shape[1]))

    def withdraw(self, *indices: int) -> list[Capture]:
        for index in sorted(indices, reverse=True):
            del self._measured[index], self._heads[index]
        return super().withdraw(*indices)

    def _release(self) -> None:
        """Let go of the q and k of calls whose module has returned."""
        captures = self.seen.captures
        for place, capture in enumerate(captures):
            if capture.problem.k.numel():
                problem = _without_tensors(capture.problem)
                captures[place] = replace(capture, problem=problem, sink=None, padded=None)
                self._kept[place] = Kept(captures, captures[place])

    def _end_forward(self, result: Any) -> None:
        calls: Counter[str] = Counter()
        for capture, own, heads in zip(self.seen.captures, self._measured, self._heads, strict=True):
            key = capture.name, calls[capture.name]
            calls[capture.name] += 1
            part = self._parts.get(capture.name, WHOLE)
            self.origins[key] = Origin(capture.q_factor, capture.k_factor, *heads, part.parts)
            totals = own.spread(part) if part.parts > 1 else own
            if key in self.totals and self.totals[key].largest.shape == totals.largest.shape:
                self.totals[key].add(totals)
            else:
                self.totals[key] = totals
        self.forwards += 1
        self.result = result

    def _forget(self) -> None:
        """Let go of the calls of a forward that has ended. One that raised an error is no forward, and is often run again."""
        self.seen.captures.clear()
        self._kept.clear()
        self._measured.clear()
        self._heads.clear()


def _measure(capture: Capture, rows: int | None) -> RowStats:
    """Statistics of every row, or of about `rows` rows a head, spread over the batch."""
    problem = capture.problem
    each = None if rows is None else max(1, -(-rows // max(1, problem.q.shape[0])))
    return statistics(problem, capture.sink, each, [problem.scale], padded=capture.padded)[0]


def _squares(tensor: Tensor, errors: list[str]) -> list[Tensor]:
    """The squared lengths of the tensor's gradients: none now, and filled in by the backward pass. The graph holds the hook, so
    the hook must not hold the session: that has what the model returned, and with it the graph."""
    squares: list[Tensor] = []

    def note(gradient: Tensor) -> None:
        try:
            squares.append(squared_length(gradient))
        except Exception as error:
            squares.append(torch.tensor(torch.nan))
            errors.append(_said(error))

    tensor.register_hook(note)
    return squares


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _without_tensors(problem: Problem) -> Problem:
    nothing = problem.k.new_empty(0)
    return replace(
        problem, q=nothing, k=nothing, v=nothing, bias=None, visibility=replace(problem.visibility, mask=None)
    )
