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


def finite_rows(numbers: Tensor) -> list[list[float | None]]:
    """A table on the host as plain numbers, None where one is not finite."""
    rows: list[list[float | None]] = numbers.tolist()
    for row, column in (~numbers.isfinite()).nonzero().tolist():
        rows[row][column] = None
    return rows


def rounded_rows(numbers: Tensor, digits: int) -> list[list[float | None]]:
    """`finite_rows` of so many significant digits."""
    size = torch.where(numbers.isfinite() & (numbers != 0), numbers.abs(), 1.0)
    places = digits - 1 - size.log10().floor()
    power = 10.0 ** places.abs().clamp(
        max=EXACT
    )  # exact, so that one rounding makes the float nearest to the decimal form
    rows = finite_rows(torch.where(places >= 0, (numbers * power).round() / power, (numbers / power).round() * power))
    for row, column in (places.abs() > EXACT).nonzero().tolist():
        rows[row][column] = float(f"{numbers[row, column].item():.{digits}g}")
    return rows


EXACT = 22
"""Powers of ten up to this one are floats."""
