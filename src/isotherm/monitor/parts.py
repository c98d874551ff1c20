"""Which part of a layer's heads this process has, if tensor parallelism spreads them over several."""

from typing import NamedTuple

from torch import nn


class HeadShare(NamedTuple):
    """Which part, and of how many."""

    number: int
    parts: int


WHOLE = HeadShare(0, 1)


def part_of(module: nn.Module | None) -> HeadShare:
    """The part of an attention module whose forward runs now. Fully sharded weights are whole then; those that are still
    spread over a mesh are the work of tensor parallelism."""
    for parameter in () if module is None else module.parameters():
        mesh = getattr(parameter, "device_mesh", None)
        for dimension, placement in enumerate(getattr(parameter, "placements", ())):
            if mesh is not None and placement.is_shard() and mesh.size(dimension) > 1:
                return HeadShare(mesh.get_local_rank(dimension), mesh.size(dimension))
    return WHOLE
