"""Wall-clock times, for what a record must not hold: each is a median of repeats, shown beside counts and never judged by."""

from collections.abc import Callable
from time import perf_counter

import torch

from isotherm.language import Text
from isotherm.record import Measured


def seconds(work: Callable[[], object], repeats: int, device: str = "cpu") -> list[float]:
    """Times of `repeats` runs, shortest first, after one that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        _settle(device)
        start = perf_counter()
        work()
        _settle(device)
        times.append(perf_counter() - start)
    return sorted(times)


def _settle(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def timed(name: Text, times: list[float]) -> Measured:
    """The median in milliseconds, with the shortest and the longest of the repeats."""
    return Measured(name, 1e3 * times[len(times) // 2], 1e3 * times[0], 1e3 * times[-1])
