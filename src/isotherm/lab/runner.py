"""Runs claims side by side, each in a process of its own kind: one thread, its own random numbers, its own failures.

The parent hands out one claim at a time and keeps each record the moment it is finished, so that a run that is interrupted
goes on where it stopped. A worker that dies takes only its claim with it. Nothing here needs torch but the workers, so a
run whose records are all kept already is over in a moment.
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
from isotherm.lab.cache import Entry, code_version, versions
from isotherm.language import Text
from isotherm.record import Timed, from_plain, to_plain

Size = Literal["quick", "full"]
DIED = Text("its process ended with code {code} before it had answered", "其进程未作答就以代码 {code} 结束")
RAISED = Text("{kind}: {why}", "{kind}：{why}")


@dataclass(frozen=True)
class Order:
    """One claim to run: where it lives, how large, on what, and which records to show beside."""

    claim: str
    module: str
    size: Size = "quick"
    device: str = "cpu"
    records: tuple[Path, ...] = ()


@dataclass(frozen=True)
class ClaimOutcome:
    """What came of an order: a record (`kept` from an earlier run or new), packages it lacks, or why it failed."""

    claim: str
    timed: Timed | None = None
    kept: bool = False
    needs: tuple[str, ...] = ()
    failure: Text | None = None
    trace: str = ""


class Listener:
    """Who is told how the run goes; this one does not listen."""

    def started(self, claim: str) -> None:
        """A worker has begun."""

    def moved(self, claim: str, part: float) -> None:
        """It is this far, from 0 to 1."""

    def finished(self, outcome: ClaimOutcome) -> None:
        """It is over, one way or another."""


def run(
    orders: Sequence[Order], *, jobs: int | None = None, fresh: bool = False, listener: Listener | None = None
) -> tuple[ClaimOutcome, ...]:
    """Every order's outcome, in order. `fresh` looks at no record of an earlier run, but keeps the new ones."""
    listener = listener or Listener()
    done: dict[str, ClaimOutcome] = {}
    waiting: list[tuple[Order, Entry]] = []
    for order in orders:
        try:
            entry = Entry(order.claim, order.size, order.device, code_version(order.module, order.records))
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
    entry: Entry

    @classmethod
    def hired(cls, order: Order, entry: Entry) -> "_Worker":
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

    def take(self, order: Order, entry: Entry) -> None:
        self.entry = entry
        self.line.send((order, entry.code))

    def dismiss(self) -> None:
        self.process.terminate()
        self.process.join()
        self.line.close()


def _pool(orders: list[tuple[Order, Entry]], jobs: int, listener: Listener) -> Iterator[ClaimOutcome]:
    waiting = orders[::-1]
    workers: list[_Worker] = []
    try:
        while waiting and len(workers) < jobs:
            workers.append(_hire(waiting, listener))
        while workers:
            ready = set(wait([worker.line for worker in workers]))
            for worker in [worker for worker in workers if worker.line in ready]:
                outcome = _hear(worker, listener)
                if outcome is None:
                    continue
                if worker.process.is_alive() and waiting:
                    order, entry = waiting.pop()
                    listener.started(order.claim)
                    worker.take(order, entry)
                else:
                    workers.remove(worker)
                    worker.dismiss()
                    if waiting:
                        workers.append(_hire(waiting, listener))
                yield outcome
    finally:
        for worker in workers:
            worker.dismiss()


def _hire(waiting: list[tuple[Order, Entry]], listener: Listener) -> _Worker:
    order, entry = waiting.pop()
    listener.started(order.claim)
    return _Worker.hired(order, entry)


def _hear(worker: _Worker, listener: Listener) -> ClaimOutcome | None:
    """One message of a worker: None while it is on its way, an outcome when it is done or dead."""
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
    """A worker's whole life: one claim after another until it is dismissed. What a claim prints is no part of a result."""
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


def _answer(order: Order, code: str, line: "Connection[Any, Any]") -> tuple[str, Any]:
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
            versions=versions(),
            timings=result.timings,
            timing_figures=result.timing_figures,
        )
        return "done", json.dumps(to_plain(timed), allow_nan=False)
    except (Exception, SystemExit) as error:
        return "raised", _told(error)


def _told(error: BaseException) -> tuple[Text, str]:
    """An exception in a line, and where it came from."""
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
    """The same start for every claim, whichever ran before it in this process."""
    import numpy
    import torch

    torch.manual_seed(seed)
    numpy.random.seed(seed % 2**32)
    random.seed(seed)
    torch.set_default_dtype(torch.float32)
