"""Runs claims in worker processes, each with one thread.

The parent hands out one claim at a time and keeps each record as soon as it is finished, so an interrupted run can go on
where it stopped. A worker that dies fails only its own claim. Only workers import torch, so a run whose records are all
kept returns at once.
"""

import json
import os
import random
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from isotherm.errors import IsothermError
from isotherm.lab.cache import PACKAGES, CacheEntry, code_version
from isotherm.language import Text
from isotherm.record import Timed, from_plain, to_plain
from isotherm.record.versions import versions

Size = Literal["quick", "full"]
PATIENCE = 10
"""Seconds that an idle worker may take to end."""
DIED = Text("its process ended with code {code} before it had answered", "其进程未作答就以代码 {code} 结束")
RAISED = Text("{kind}: {why}", "{kind}：{why}")


@dataclass(frozen=True)
class ClaimOrder:
    """One claim to run: its module, size and device, and the sweep records to show with it."""

    claim: str
    module: str
    size: Size = "quick"
    device: str = "cpu"
    records: tuple[Path, ...] = ()


@dataclass(frozen=True)
class ClaimOutcome:
    """The result of an order: a record (`kept` if from an earlier run), the packages it needs, or why it failed."""

    claim: str
    timed: Timed | None = None
    kept: bool = False
    needs: tuple[str, ...] = ()
    failure: Text | None = None
    trace: str = ""


class Listener:
    """Receives the progress of a run. This one ignores it."""

    def started(self, claim: str) -> None:
        """A worker has begun the claim."""

    def moved(self, claim: str, part: float) -> None:
        """The claim is this far, from 0 to 1."""

    def finished(self, outcome: ClaimOutcome) -> None:
        """The claim has finished or failed."""


def run(
    orders: Sequence[ClaimOrder], *, jobs: int | None = None, fresh: bool = False, listener: Listener | None = None
) -> tuple[ClaimOutcome, ...]:
    """Run every order and return the outcomes in order. `fresh` ignores kept records, but keeps the new ones."""
    listener = listener or Listener()
    done: dict[str, ClaimOutcome] = {}
    waiting: list[tuple[ClaimOrder, CacheEntry]] = []
    for order in orders:
        try:
            entry = CacheEntry(order.claim, order.size, order.device, code_version(order.module, order.records))
        except (ImportError, OSError, SyntaxError) as error:
            why, trace = _told(error)
            done[order.claim] = ClaimOutcome(order.claim, failure=why, trace=trace)
            listener.finished(done[order.claim])
            continue
        timed = None if fresh else entry.read()
        if timed is None:
            waiting.append((order, entry))
        else:
            done[order.claim] = ClaimOutcome(order.claim, timed, kept=True)
            listener.finished(done[order.claim])
    for outcome in _pool(waiting, min(jobs or os.cpu_count() or 1, len(waiting)), listener):
        done[outcome.claim] = outcome
        listener.finished(outcome)
    return tuple(done[order.claim] for order in orders)


@dataclass
class _Worker:
    """A process, the line to it, and what it is busy with."""

    process: BaseProcess
    line: "Connection[Any, Any]"
    entry: CacheEntry

    @classmethod
    def hired(cls, order: ClaimOrder, entry: CacheEntry) -> "_Worker":
        context = get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there,), daemon=True)
        # Ctrl-C is the parent's to answer: a process started while it is ignored goes on ignoring it.
        in_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main else None
        try:
            process.start()
        finally:
            if in_main:
                signal.signal(signal.SIGINT, before)
        there.close()
        worker = cls(process, here, entry)
        worker.take(order, entry)
        return worker

    def take(self, order: ClaimOrder, entry: CacheEntry) -> None:
        self.entry = entry
        self.line.send((order, entry.code))

    def dismiss(self, *, busy: bool = False) -> None:
        """Let the process end; one that is busy, or does not end by itself, is made to."""
        self.line.close()
        if (
            not busy
        ):  # what it shares with other processes (semaphores of libraries) is given back only by an orderly end
            self.process.join(PATIENCE)
        self.process.terminate()
        self.process.join()


def _pool(orders: list[tuple[ClaimOrder, CacheEntry]], jobs: int, listener: Listener) -> Iterator[ClaimOutcome]:
    waiting = list(orders)  # the last claims take longest; started first, they leave no core idle at the end
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_Worker.hired(*_next(waiting, listener)))
            ready = set(wait([worker.line for worker in workers]))
            for worker in [worker for worker in workers if worker.line in ready]:
                outcome = _hear(worker, listener)
                if outcome is None:
                    continue
                if worker.process.is_alive() and waiting:
                    worker.take(*_next(waiting, listener))
                else:
                    workers.remove(worker)
                    worker.dismiss()
                yield outcome
    finally:
        for worker in workers:
            worker.dismiss(busy=True)


def _next(waiting: list[tuple[ClaimOrder, CacheEntry]], listener: Listener) -> tuple[ClaimOrder, CacheEntry]:
    order, entry = waiting.pop()
    listener.started(order.claim)
    return order, entry


def _hear(worker: _Worker, listener: Listener) -> ClaimOutcome | None:
    """Read one message of a worker. Returns None if it is a progress report, and the outcome if the claim is over."""
    claim = worker.entry.claim
    try:
        kind, content = worker.line.recv()
    except (EOFError, OSError):
        worker.process.join()
        return ClaimOutcome(claim, failure=DIED.format(code=worker.process.exitcode))
    if kind == "moved":
        listener.moved(claim, content)
        return None
    if kind == "needs":
        return ClaimOutcome(claim, needs=content)
    if kind == "raised":
        return ClaimOutcome(claim, failure=content[0], trace=content[1])
    try:
        timed = from_plain(Timed, json.loads(content), where=claim)
    except IsothermError as error:
        return ClaimOutcome(claim, failure=error.text)
    worker.entry.write(timed)
    return ClaimOutcome(claim, timed)


def _work(line: "Connection[Any, Any]") -> None:
    """The main function of a worker process: run claims as they are sent. What a claim prints goes to standard error."""
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    while True:
        try:
            order, code = line.recv()
        except EOFError:
            return
        line.send(_answer(order, code, line))


def _answer(order: ClaimOrder, code: str, line: "Connection[Any, Any]") -> tuple[str, Any]:
    try:
        claim = import_module(order.module).CLAIM
        absent = tuple(name for name in claim.needs if find_spec(name) is None)
        if absent:
            return "needs", absent
        setting = claim.setting(order.size, order.device, progress=_Teller(line), records=order.records)
        _seed(claim.seed)
        start = perf_counter()
        result = claim.experiment(setting)
        timed = Timed(
            record=claim.record(setting, result),
            expected=claim.expected,
            scale=order.size,
            code=code,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=perf_counter() - start,
            versions=versions(*PACKAGES),
            timings=result.timings,
            timing_figures=result.timing_figures,
        )
        return "done", json.dumps(to_plain(timed), allow_nan=False)
    except (Exception, SystemExit) as error:
        return "raised", _told(error)


def _told(error: BaseException) -> tuple[Text, str]:
    """An exception as one line, and its traceback."""
    said = error.text if isinstance(error, IsothermError) else None
    line = " ".join(str(error).split())[:300]
    return said or RAISED.format(kind=type(error).__name__, why=line), "".join(traceback.format_exception(error))


class _Teller:
    """Tells the parent how far a claim is, when it has moved by at least a hundredth."""

    def __init__(self, line: "Connection[Any, Any]") -> None:
        self.line = line
        self.told = 0.0

    def __call__(self, part: float) -> None:
        if part - self.told >= 0.01:
            self.told = part
            self.line.send(("moved", part))


def _seed(seed: int) -> None:
    """Seed every generator, so that a claim does not depend on which ran before it in this process."""
    import numpy
    import torch

    torch.manual_seed(seed)
    numpy.random.seed(seed % 2**32)
    random.seed(seed)
    torch.set_default_dtype(torch.float32)
