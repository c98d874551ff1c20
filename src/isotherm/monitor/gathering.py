"""A reading, from what the layers of all processes have added up to on their devices."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isotherm.monitor.arriving import Arriving
from isotherm.monitor.looks import Looked
from isotherm.monitor.ranks import Ranks, Table, packed
from isotherm.monitor.totals import SUMS, Key, LayerTotals
from isotherm.record.watch import GRADIENTS, Reading

Numbers = npt.NDArray[np.float64]
Said = tuple[Any, bool, bool]
"""What a process has to say with its reading: the loss of the step, whether training should stop, and whether it saw a layer
that no reading has."""


@dataclass
class Gathering:
    """A reading whose numbers are on their way."""

    step: int
    at: float
    rows: int | None
    seconds: float
    loss_scale: float
    heads: tuple[int, ...]
    numbers: Arriving
    late_loss: Any = None

    @classmethod
    def of(cls, looked: Looked, said: Said, table: Table, ranks: Ranks, **about: Any) -> "Gathering":
        """Pack what a look brought back of the layers of a table, over all processes, and send it off, with what this process
        has said."""
        started = time.perf_counter()
        kind: type[Gathering] = cls
        if looked.notes is not None:
            parts = looked.notes.packed()
            kind, numbers = NotedGathering, packed([*parts, *_said(said, parts[0].device)], parts[0].device)
        else:
            numbers = _packed(looked.totals or {}, said, table, ranks)
        arriving = Arriving(numbers)
        seconds = looked.seconds + time.perf_counter() - started
        return kind(heads=tuple(table.values()), numbers=arriving, seconds=seconds, **about)

    def rows_seen(self) -> bool:
        """Whether anything was measured."""
        return bool(self._parts()[0][0].any())

    def stops(self) -> bool:
        """Whether any process wants training to stop."""
        return bool(self._parts()[3][2])

    def misses(self) -> bool:
        """Whether any process saw a layer that this reading lacks."""
        return bool(self._parts()[3][3])

    def reading(self) -> Reading:
        """The reading. The device is waited for if it has not come so far."""
        sums, largest, squares, loss = self._parts()
        ran = [bool(rows.any()) for rows in np.split(sums[0], np.cumsum(self.heads)[:-1])]
        with np.errstate(invalid="ignore"):
            lengths = np.sqrt(np.where(ran, squares, np.nan) / self.loss_scale**2).astype(np.float32)
        return Reading(
            step=self.step,
            at=self.at,
            loss=float(loss[0] / loss[1]) if loss[1] else _number(self.late_loss),
            rows=self.rows,
            seconds=self.seconds,
            values=_values(sums, largest),
            gradients=dict(zip(GRADIENTS, lengths, strict=True)),
        )

    def _parts(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """The sums [len(SUMS), heads], largest logits [heads], squared gradients [2, layers], and what was said [4]:
        the loss, its weight, how many want to stop, and how many saw another layer."""
        heads, layers = sum(self.heads), len(self.heads)
        sums, squares, loss, largest = np.split(
            self.numbers.numbers(), np.cumsum([len(SUMS) * heads, 2 * layers, 4]).tolist()
        )
        return sums.reshape(len(SUMS), heads), largest, squares.reshape(2, layers), loss


class NotedGathering(Gathering):
    """The same of notes, whose layers come one after another."""

    def _parts(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        rows, layers = len(SUMS) + 1, len(self.heads)
        *states, squares, loss = np.split(
            self.numbers.numbers(), np.cumsum([*(rows * heads for heads in self.heads), 2 * layers]).tolist()
        )
        whole = np.concatenate([state.reshape(rows, -1) for state in states], 1)
        squares = np.where(np.signbit(squares), np.nan, squares)  # no gradient came, as in a frozen tower
        return whole[:-1], whole[-1], squares.reshape(layers, 2).T, loss


def _packed(totals: Mapping[Key, LayerTotals], said: Said, table: Table, ranks: Ranks) -> Tensor:
    """Sums, squared gradients, what was said and the largest logits, over all processes."""
    device = next(iter(totals.values())).sums.device if totals else torch.device("cpu")
    seen = {key: part for key, part in totals.items() if table.get(key) == len(part.largest)}
    parts = [seen.get(key) or _nothing(heads, device) for key, heads in table.items()]
    shares = [
        (part.parts / ranks.count) ** 2 for part in parts
    ]  # a process's loss is a mean over its share of the batch
    squares = [
        share * _sum(part.squares[name], device)
        for name in GRADIENTS
        for part, share in zip(parts, shares, strict=True)
    ]
    sums = packed(
        [torch.cat([part.sums.to(device) for part in parts], 1), torch.stack(squares), *_said(said, device)], device
    )
    largest = packed([part.largest for part in parts], device)
    return torch.cat(ranks.reduce(sums, largest))


def _said(said: Said, device: torch.device) -> list[Tensor]:
    """The loss, how many said it, how many want to stop, how many saw another layer. Made on the device: what is copied there
    would be waited for."""
    loss, *wishes = said
    rest = [torch.full((), float(wish), device=device) for wish in wishes]
    if loss is None:
        return [torch.zeros(2, device=device), *rest]
    known = loss.detach() if isinstance(loss, Tensor) else torch.full((), float(loss), device=device)
    return [known, torch.ones((), device=device), *rest]


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
    """The totals of a layer that did not run. It adds nothing to the gradients of processes where it did."""
    sums = torch.zeros(len(SUMS), heads, dtype=torch.float64, device=device)
    largest = torch.full((heads,), -torch.inf, dtype=torch.float64, device=device)
    return LayerTotals(sums, largest, {name: [[torch.zeros((), device=device)]] for name in GRADIENTS})


def _sum(calls: list[list[Tensor]], device: torch.device) -> Tensor:
    """The squared gradients of all calls added up; NaN where none has come, as when weights are updated during the backward
    pass."""
    squares = [square.to(device) for call in calls for square in call]
    return torch.stack(squares).sum() if squares else torch.full((), torch.nan, device=device)
