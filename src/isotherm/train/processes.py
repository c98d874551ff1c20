"""One process or several: `torchrun` starts them, this joins them, and the training reads the same either way."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from isotherm.errors import ArgumentError
from isotherm.language import Text


@dataclass(frozen=True)
class Processes:
    """This process among `world` of them, and where it computes."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
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

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def join(device: str) -> Iterator[Processes]:
    """The processes `torchrun` started, or this one alone."""
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    place = pick(device, int(os.environ.get("LOCAL_RANK", "0")))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if world == 1:
        yield Processes(0, 1, place)
        return
    if place.type == "cuda":
        dist.init_process_group("nccl", device_id=place)
    else:
        dist.init_process_group("gloo")
    try:
        yield Processes(rank, world, place)
    finally:
        dist.destroy_process_group()


def pick(device: str, local_rank: int = 0) -> torch.device:
    """The device a person named; `auto` is the best there is, and each process on a machine takes its own CUDA device."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ArgumentError(
            "run.device", Text("auto, cpu, cuda or mps", "auto、cpu、cuda 或 mps"), got=device
        ) from error
    if place.type == "cuda":
        count = torch.cuda.device_count()
        index = local_rank if place.index is None else place.index
        if index >= count:
            expected = Text("a device of this machine ({n} CUDA devices)", "本机的设备（有 {n} 个 CUDA 设备）").format(
                n=count
            )
            raise ArgumentError("run.device", expected, got=device)
        return torch.device("cuda", index)
    if place.type == "mps" and not torch.backends.mps.is_available():
        raise ArgumentError("run.device", Text("a device of this machine", "本机的设备"), got=device)
    return place
