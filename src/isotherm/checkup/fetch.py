"""Bring small tables to the host together: every reading waits until a GPU has finished all it was given before."""

from collections.abc import Sequence

import torch
from torch import Tensor


def fetched(tables: Sequence[Tensor]) -> list[Tensor]:
    """The tables in float64 on the host, from one transfer for each device."""
    found = list(tables)
    for device in {table.device for table in tables}:
        places = [place for place, table in enumerate(tables) if table.device == device]
        flat = torch.cat([tables[place].detach().flatten().double() for place in places]).cpu()
        parts = flat.split([tables[place].numel() for place in places])
        for place, part in zip(places, parts, strict=True):
            found[place] = part.view(tables[place].shape)
    return found
