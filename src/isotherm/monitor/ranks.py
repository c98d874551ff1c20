"""Several processes that train one model: a reading is made of what all of them saw, by one MAX and one SUM."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from isotherm.monitor.totals import Key

Table = dict[Key, int]
"""The layers of a reading, in order, with their numbers of heads."""
PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
"""Classes whose models are trained by several processes, by name."""


class Ranks:
    """The processes that train the model, or this one alone."""

    def __init__(self, model: nn.Module, together: bool | None = None) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        together = several and (_is_parallel(model) if together is None else together)
        self.count = dist.get_world_size() if together else 1
        self.is_first = not together or dist.get_rank() == 0

    def agree(self, table: Table) -> Table:
        """The layers that any process saw, in the order of the first that saw each."""
        if self.count == 1:
            return table
        tables: list[Table] = [{} for _ in range(self.count)]
        dist.all_gather_object(tables, table)
        return {key: heads for one in tables for key, heads in one.items()}

    def common(self, keys: Collection[Key]) -> set[Key]:
        """What every process has of these."""
        found: list[Any] = [set(keys)] * self.count
        if self.count > 1:
            dist.all_gather_object(found, set(keys))
        return set.intersection(*found)

    def reduce(self, sums: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
        """Sums and maxima over all processes."""
        if self.count > 1:
            dist.all_reduce(sums, dist.ReduceOp.SUM)
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return sums, largest


def _is_parallel(model: nn.Module) -> bool:
    wrapped = any(cls.__name__ in PARALLEL for module in model.modules() for cls in type(module).__mro__)
    return wrapped or any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


def packed(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """Tensors of any shapes as one of float64."""
    return torch.cat([part.reshape(-1).to(device, torch.float64) for part in parts])
