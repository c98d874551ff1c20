"""Bring small tables to the host together: every reading waits until a GPU has finished all it was given before."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Values = NDArray[np.float64]
"""A table on the host. numpy needs no threads for it, which take longer to wake than to count."""


def by_shape(tensors: Sequence[Tensor]) -> list[tuple[list[int], Tensor]]:
    """Tensors of one shape as one, with their places: a GPU is given one thing to do for all of them."""
    groups: dict[object, list[int]] = {}
    for place, tensor in enumerate(tensors):
        groups.setdefault((tensor.shape, tensor.dtype, tensor.device), []).append(place)
    return [(places, torch.stack([tensors[place].detach() for place in places])) for places in groups.values()]


def fetched(tables: Sequence[Tensor]) -> list[Tensor]:
    """The tables in float64 on the host, from one transfer for each device."""
    found = list(tables)
    for device in {table.device for table in tables}:
        places = [place for place, table in enumerate(tables) if table.device == device]
        parts = [tables[place].detach().flatten() for place in places]
        one_dtype = len({part.dtype for part in parts}) == 1  # else float32 would hold large whole numbers
        flat = torch.cat(parts if one_dtype else [part.double() for part in parts]).double().cpu()
        for place, part in zip(places, flat.split([part.numel() for part in parts]), strict=True):
            found[place] = part.view(tables[place].shape)
    return found


def finite_rows(numbers: Tensor) -> list[list[float | None]]:
    """A table on the host as plain numbers, None where one is not finite."""
    return _plain(numbers.numpy())


def rounded_rows(numbers: Tensor, digits: int) -> list[list[float | None]]:
    """`finite_rows` of so many significant digits."""
    values = numbers.numpy()
    size = np.where(np.isfinite(values) & (values != 0), np.abs(values), 1.0)
    places = digits - 1 - np.floor(np.log10(size))
    # The power is exact, so that one rounding makes the float nearest to the decimal form.
    power = 10.0 ** np.minimum(np.abs(places), EXACT)
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = np.where(places >= 0, np.round(values * power) / power, np.round(values / power) * power)
    rows = _plain(rounded)
    for row, column in np.argwhere(np.abs(places) > EXACT).tolist():
        rows[row][column] = float(f"{values[row, column]:.{digits}g}")
    return rows


def _plain(values: Values) -> list[list[float | None]]:
    rows: list[list[float | None]] = values.tolist()
    for row, column in np.argwhere(~np.isfinite(values)).tolist():
        rows[row][column] = None
    return rows


EXACT = 22
"""Powers of ten up to this one are floats."""
