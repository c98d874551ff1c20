"""Groups trained on this machine: in this process, or in several."""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from isotherm.train.sweep.group_job import ATTEMPTS, Done, Group, Job, by_cost, gave_up, unwrap, work
from isotherm.train.sweep.group_training import Tick

LOOK_EVERY = 0.3
"""Seconds between looks at what the workers have done."""
_taken: Any = None
"""In a worker: the number of model steps all workers have taken."""


def run_here(groups: Sequence[Group], job: Job, *, workers: int, done: Done, tick: Tick) -> None:
    """Train every group and call `done` with the outcomes of each. Groups lost with a dying process are started again."""
    if workers == 1:
        for group in groups:
            done(unwrap(work(group, job, tick)))
        return
    left, attempts = by_cost(groups), Counter[Group]()
    while left:
        lost, why = _run_pool(left, job, workers, done, tick)
        attempts.update(lost)
        for group in lost:
            if attempts[group] > ATTEMPTS:
                raise gave_up(group, why)
        left = lost


def _run_pool(groups: Sequence[Group], job: Job, workers: int, done: Done, tick: Tick) -> tuple[list[Group], object]:
    """One pool of processes; returns the groups that were lost when it broke, and why."""
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    taken = context.Value("q", 0)
    pool = ProcessPoolExecutor(workers, context, _begin, (os.getpid(), taken))
    lost: list[Group] = []
    why: object = ""
    try:
        with _deaf():
            futures: dict[Future[Any], Group] = {pool.submit(_work, group, job): group for group in groups}
        told = 0
        while futures:
            finished, _ = wait(futures, LOOK_EVERY, FIRST_COMPLETED)
            now = taken.value
            tick(now - told)
            told = now
            for future in finished:
                group = futures.pop(future)
                try:
                    done(unwrap(future.result()))
                except BrokenProcessPool as error:
                    lost.append(group)
                    why = error
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return lost, why


@contextmanager
def _deaf() -> Iterator[None]:
    """Start processes that do not hear Ctrl-C, which a terminal sends to all of them: the parent process ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(parent: int, taken: Any) -> None:
    """In a new worker: count steps, and end when the parent process has ended."""
    global _taken  # noqa: PLW0603  a pool's workers can be handed a shared counter in no other way
    _taken = taken
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _work(group: Group, job: Job) -> Any:
    def tick(steps: int) -> None:
        with _taken.get_lock():
            _taken.value += steps

    return work(group, job, tick)
