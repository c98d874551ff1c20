"""Join the processes that `torchrun` started, or run alone: the training loop is the same either way."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from isotherm.errors import ArgumentError, IsothermError
from isotherm.language import Text


@dataclass(frozen=True)
class Processes:
    """This process among `world` of them, and where it computes."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.rank == 0

    def total(self, numbers: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world > 1:
            numbers = numbers.to(self.device)
            dist.all_reduce(numbers)
        return numbers

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every process's tensor, all of one shape, in the order of their ranks."""
        if self.world == 1:
            return [tensor]
        mine = tensor.to(self.device)
        found = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(found, mine)
        return [one.to(tensor.device) for one in found]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make all processes leave the block together. If it fails in one process, it fails in all, with the same error."""
        failure: IsothermError | None = None
        try:
            yield
        except IsothermError as error:
            failure = error
        if self.world > 1:
            told: list[Text | None] = [None] * self.world
            dist.all_gather_object(told, failure and failure.text)
            failure = failure or next((IsothermError(text) for text in told if text), None)
        if failure is not None:
            raise failure


def join(device: str) -> Processes:
    """The processes `torchrun` started, or this one alone. They stay joined for later runs."""
    world, rank, local = (
        int(os.environ.get(name, usual)) for name, usual in (("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0"))
    )
    pick(device, int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1)  # all fail alike if one lacks a device
    place = pick(device, local)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if world > 1 and not dist.is_initialized():
        if place.type == "cuda":
            dist.init_process_group("nccl", device_id=place)
        else:
            dist.init_process_group("gloo")
        atexit.register(dist.destroy_process_group)
    return Processes(rank, world, place)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Compute with so many threads in this process, and with as many as before afterwards.

    Runs and sweeps use one thread unless told otherwise. Small models gain little from more, a second thread waits for the
    first on a busy machine, and the number of threads decides the last bits of a sum.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def within_memory(why: Text) -> Iterator[None]:
    """Say `why` if the block needs more memory than there is. PyTorch raises a `RuntimeError` of many wordings."""
    try:
        yield
    except IsothermError:
        raise
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
            raise
        raise IsothermError(why) from error


def pick(device: str, local_rank: int = 0, *, argument: str = "run.device", here: bool = True) -> torch.device:
    """The device a person named: `auto` is the best there is, and each process on a machine takes its own CUDA device.

    A device that is not `here` need only be one that could be.
    """
    if device == "auto" and here:
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError:
        place = torch.device("meta")
    if place.type not in ("cpu", "cuda", "mps"):
        names = Text("auto, cpu, cuda or mps", "auto、cpu、cuda 或 mps") if here else Text("cpu or cuda", "cpu 或 cuda")
        raise ArgumentError(argument, names, got=device)
    index = local_rank if place.index is None else place.index
    count = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}.get(place.type, 1)
    if here and place.type != "cpu" and index >= count:
        expected = Text("a device of this machine ({n} {kind} devices)", "本机的设备（有 {n} 个 {kind} 设备）")
        raise ArgumentError(argument, expected.format(n=count, kind=place.type.upper()), got=device)
    return torch.device("cuda", index) if here and place.type == "cuda" else place
