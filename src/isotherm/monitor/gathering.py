"""A reading, from what the layers of all processes have added up to on their devices."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isotherm.monitor.arriving import Arriving
from isotherm.monitor.looking import SUMS, Key, LayerTotals
from isotherm.monitor.ranks import Ranks, Table, packed
from isotherm.record.watch import GRADIENTS, Reading


@dataclass
class Gathering:
    """A reading whose numbers are on their way."""

    step: int
    at: float
    rows: int | None
    seconds: float
    loss_scale: float
    heads: int
    layers: int
    numbers: Arriving
    late_loss: Any = None

    @classmethod
    def of(cls, totals: Mapping[Key, LayerTotals], loss: Any, table: Table, ranks: Ranks, **about: Any) -> "Gathering":
        """Pack the totals of the layers of a table, over all processes, and send them off."""
        started = time.perf_counter()
        device = next(iter(totals.values())).sums.device if totals else torch.device("cpu")
        seen = {key: part for key, part in totals.items() if table.get(key) == len(part.largest)}
        parts = [seen.get(key) or _nothing(heads, device) for key, heads in table.items()]
        shares = [
            (part.parts / ranks.count) ** 2 for part in parts
        ]  # a process's loss is a mean over its share of the batch
        squares = [
            torch.stack([share * _sum(part.squares[name], device) for part, share in zip(parts, shares, strict=True)])
            for name in GRADIENTS
        ]
        said = [torch.zeros(2)] if loss is None else [torch.as_tensor(loss).detach().double(), torch.ones(())]
        sums = packed([torch.cat([part.sums.to(device) for part in parts], 1), *squares, *said], device)
        largest = packed([part.largest for part in parts], device)
        numbers = Arriving(torch.cat(ranks.reduce(sums, largest)))
        seconds = about.pop("seconds") + time.perf_counter() - started
        return cls(heads=len(largest), layers=len(parts), numbers=numbers, seconds=seconds, **about)

    def rows_seen(self) -> bool:
        """Whether anything was measured."""
        return bool(self.numbers.numbers()[: self.heads].any())

    def reading(self) -> Reading:
        """The reading. The device is waited for if it has not come so far."""
        numbers = self.numbers.numbers()
        sums, rest = np.split(numbers, [len(SUMS) * self.heads])
        squares, loss, largest = np.split(rest, [2 * self.layers, 2 * self.layers + 2])
        with np.errstate(invalid="ignore"):
            lengths = np.sqrt(squares.reshape(2, self.layers) / self.loss_scale**2).astype(np.float32)
        return Reading(
            step=self.step,
            at=self.at,
            loss=float(loss[0] / loss[1]) if loss[1] else _number(self.late_loss),
            rows=self.rows,
            seconds=self.seconds,
            values=_values(sums.reshape(len(SUMS), self.heads), largest),
            gradients=dict(zip(GRADIENTS, lengths, strict=True)),
        )


def _number(loss: Any) -> float | None:
    return None if loss is None else float(loss.numbers() if isinstance(loss, Arriving) else loss)


def _values(sums: Any, largest: Any) -> dict[str, Any]:
    """The statistics of each head, NaN where it has no row."""
    by_name = dict(zip(SUMS, sums, strict=True))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = {
            "max_logit": np.where(by_name["valid"] > 0, largest, np.nan),
            "logit_std": by_name["logit_std"] / by_name["valid"],
            "entropy": by_name["entropy"] / by_name["fractions"],
            "gate": by_name["gate"] / by_name["valid"],
            "saturated": by_name["saturated"] / by_name["fractions"],
            "invalid": by_name["invalid"] / by_name["rows"],
        }
    return {name: values.astype(np.float32) for name, values in found.items()}


def _nothing(heads: int, device: torch.device) -> LayerTotals:
    """The totals of a layer that did not run."""
    sums = torch.zeros(len(SUMS), heads, dtype=torch.float64, device=device)
    return LayerTotals(sums, torch.full((heads,), -torch.inf, dtype=torch.float64, device=device))


def _sum(squares: list[Tensor], device: torch.device) -> Tensor:
    """Squared gradients added up; NaN where none was seen."""
    if not squares:
        return torch.tensor(torch.nan, device=device)
    return torch.stack([square.to(device) for square in squares]).sum()
