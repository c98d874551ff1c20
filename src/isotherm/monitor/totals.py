"""What the calls of one layer add up to within a step, on the device."""

from dataclasses import dataclass, field
from math import inf

import torch
import torch.nn.functional as F
from torch import Tensor

from isotherm.checkup.thresholds import SATURATED
from isotherm.monitor.parts import HeadShare
from isotherm.stats import RowStats

SUMS = ("rows", "valid", "fractions", "logit_std", "entropy", "gate", "saturated", "invalid")
"""What is added up for each head: rows, valid rows, rows with an entropy fraction, and sums over these."""
Key = tuple[str, int]
"""A module's name, and which of its calls in one forward this is."""


def layer_name(key: Key) -> str:
    """The name of a layer: its module's, with the number of the call from the second one on."""
    name, call = key
    return f"{name}#{call + 1}" if call else name


def key_of(name: str) -> Key:
    """Invert `layer_name`."""
    module, mark, number = name.rpartition("#")
    return (module, int(number) - 1) if mark and number.isdecimal() else (name, 0)


def squared_length(gradient: Tensor) -> Tensor:
    """The squared length of a gradient of any precision, added up in float32 at least."""
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return torch.linalg.vector_norm(gradient.detach(), dtype=wide).square()


@dataclass
class LayerTotals:
    """What the calls of one layer have added up to: `sums` [len(SUMS), heads] and `largest` logit [heads], on the device, and
    the squared gradients of its q and k: a list for each call, filled in by the backward pass."""

    sums: Tensor
    largest: Tensor
    squares: dict[str, list[list[Tensor]]] = field(default_factory=lambda: {"q": [], "k": []})
    parts: int = 1

    @classmethod
    def of(cls, stats: RowStats) -> "LayerTotals":
        """The totals of one call."""
        valid = ~(stats.empty | stats.broken)
        fraction, gate = stats.entropy_fraction, stats.jacobian_trace
        known = fraction.isfinite()
        terms = (
            ~stats.empty,
            valid,
            known,
            torch.where(valid, stats.logit_std, 0.0),
            torch.where(known, fraction, 0.0),
            torch.where(valid, gate, 0.0),
            valid & known & (gate < SATURATED),
            stats.invalid,
        )
        sums = torch.stack([term.double().sum((0, 2)) for term in terms])
        largest = torch.where(valid, stats.max_logit, -torch.inf).transpose(0, 1).flatten(1)
        nothing = largest.new_full((largest.shape[0], 1), -torch.inf)
        return cls(sums, torch.cat([largest, nothing], 1).amax(1))

    def spread(self, part: HeadShare) -> "LayerTotals":
        """The totals of all heads of a layer that is spread over processes: nothing where this one has none. Only data
        parallel processes share a loss, so gradients are made as large as these expect."""
        heads = len(self.largest)
        before, after = heads * part.number, heads * (part.parts - 1 - part.number)
        sums, largest = (
            F.pad(one, (before, after), value=fill) for one, fill in ((self.sums, 0), (self.largest, -inf))
        )
        return LayerTotals(sums, largest, self.squares, part.parts)

    def add(self, other: "LayerTotals") -> None:
        """Count another call of the same layer in."""
        self.sums = self.sums + other.sums
        self.largest = torch.maximum(self.largest, other.largest)
        for name, squares in other.squares.items():
            self.squares[name] += squares
