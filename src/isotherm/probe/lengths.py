"""Find the projection whose vectors have the lengths that the kernel's vectors have, up to a factor of a given form.

A `Measure` says how far the ratios of the lengths are from that form (one number, or one number per position). It decides
which block of a projection is which head, and whether this is the projection: with the wrong blocks no form fits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isotherm.probe.capture import HeadLayout
from isotherm.probe.frames import Recorded
from isotherm.probe.layouts import assignments
from isotherm.probe.sampled import Candidate

TOKENS_FOR_LAYOUT = 8
"""How many tokens are compared to find out which block of a projection is which head."""
ENOUGH = 4
"""How many vectors of different lengths must have the same ratio before that ratio is evidence."""

Measure = Callable[[Tensor, Tensor], Tensor]
"""Maps ratios [B, T, W, H] (NaN where a vector is too short) and their denominators to the distance from the form, [W]."""


@dataclass(frozen=True)
class Match:
    """`ratio` is used length / projected length, [B, T, H]; `spread` is its distance from the form that was asked for. `way`
    [H] says which of the record's blocks is which head."""

    pair: Candidate
    ratio: Tensor
    spread: float
    way: Tensor

    @property
    def record(self) -> Recorded:
        """The projection or norm."""
        return self.pair.record

    @property
    def value(self) -> float:
        """The factor, if it is one number."""
        return float(self.ratio.nanmedian())

    @property
    def layout(self) -> HeadLayout | None:
        """Which features are which head. Blocks that are not parts of the last dimension (a projection of each head by itself)
        are told apart by nothing in the weights, so the layout is known only if every block is a head."""
        width, way, (blocks, dim) = self.record.width, self.way.tolist(), self.pair.output.at.shape[-2:]
        if blocks * dim == width:
            return HeadLayout(width, dim, tuple(block * dim for block in way))
        return HeadLayout(width, dim) if len(set(way)) == blocks else None


def matches(pairs: Sequence[Candidate], measure: Measure, enough: float = 0.0) -> list[Match]:
    """For each record, latest first, its best assignment of blocks to heads. A spread below `enough` ends the search."""
    found: list[Match] = []
    before = None
    for pair in pairs:
        if pair.record is not before and any(match.spread < enough for match in found):
            break
        match, before = _closest(pair, measure), pair.record
        found += [] if match is None else [match]
    return found


def _closest(pair: Candidate, measure: Measure) -> Match | None:
    """The assignment that is best on a few tokens, measured on all of them."""
    used, projected = pair.used.lengths[0], pair.output.lengths[0]
    ways = assignments(projected.shape[-1], used.shape[-1])
    if not len(ways):
        return None
    if len(ways) > 1:
        step, floor = -(-used.shape[1] // TOKENS_FOR_LAYOUT), _floor(projected.flatten())
        some = (_ratio(used[:, ::step], projected[:, ::step], part, floor) for part in ways.split(256))
        ways = ways[torch.cat([measure(ratio, base) for ratio, base in some]).argmin()].unsqueeze(0)
    return measured(pair, ways, measure)


def measured(pair: Candidate, way: Tensor, measure: Measure) -> Match:
    """One assignment [1, heads], measured on all tokens."""
    return measured_alike([pair], way, measure)[0]


def measured_alike(pairs: Sequence[Candidate], way: Tensor, measure: Measure) -> list[Match]:
    """One assignment [1, heads] of each of some pairs whose lengths have the same shapes. They are measured as if they were
    assignments of one pair, because a call of PyTorch takes longer than these few numbers."""
    used = torch.stack([pair.used.lengths[0] for pair in pairs])
    projected = torch.stack([pair.output.lengths[0] for pair in pairs])
    base = projected[..., way[0]]
    floor = _floor(projected.flatten(1)).view(-1, *[1] * (base.dim() - 1))
    ratio, base = (one.movedim(0, 2) for one in _known(used / base, base, floor))
    spreads = measure(ratio, base).tolist()
    return [
        Match(pair, ratio[:, :, i], spread, way[0]) for i, (pair, spread) in enumerate(zip(pairs, spreads, strict=True))
    ]


def _floor(projected: Tensor) -> Tensor:
    """The length below which a vector says nothing, for each row of lengths."""
    return 1e-6 * projected.median(-1).values


def _ratio(used: Tensor, projected: Tensor, ways: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Ratios [B, T, W, H], NaN where a vector is too short, and their denominators."""
    base = projected[..., ways]
    return _known(used.unsqueeze(2) / base, base, floor)


def _known(ratio: Tensor, base: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """The ratios, NaN where a vector is too short, and their denominators."""
    return torch.where((base > floor) & ratio.isfinite() & (ratio > 0), ratio, torch.nan), base


def same_length(ratio: Tensor, base: Tensor) -> Tensor:  # noqa: ARG001  a measure
    """Standard deviation of the ratios, divided by their mean."""
    flat = ratio.movedim(2, 0).flatten(1)
    mean = flat.nanmean(-1, keepdim=True)
    return ((flat - mean).square().nanmean(-1).sqrt() / mean.squeeze(-1)).nan_to_num(torch.inf)


def one_number(ratio: Tensor, base: Tensor) -> Tensor:
    """`same_length` with a penalty for little evidence: ×10 for each different length that is missing to `ENOUGH`, and
    infinity for a single length, which has a constant ratio to anything."""
    different = torch.where(ratio.isnan(), torch.nan, base).movedim(2, 0).flatten(1).sort(-1).values
    count = (different.diff(dim=-1) > 1e-3 * different[:, 1:]).sum(-1) + 1
    spread = same_length(ratio, base) * 10.0 ** (ENOUGH - count).clamp(min=0)
    return torch.where(count >= 2, spread, torch.inf)


def by_position(ratio: Tensor, base: Tensor) -> Tensor:  # noqa: ARG001  a measure
    """Largest distance of the log ratios from log a(head) + log f(token). With one head, f is shared by all sequences."""
    batch, length, _, heads = ratio.shape
    if length < ENOUGH or batch * heads < 2:
        return ratio.new_full((ratio.shape[2],), torch.inf)
    logs = ratio.log()
    logs = logs - logs.nanmean((0, 1), keepdim=True)
    left = (logs - logs.nanmean(-1 if heads > 1 else 0, keepdim=True)).abs()
    known = (~left.isnan()).double().mean((0, 1, 3))
    return torch.where(known > 0.5, left.nan_to_num(0.0).amax((0, 1, 3)), torch.inf)


def is_monotonic(ratio: Tensor, tolerance: float) -> bool:
    """Whether the ratios [B, T, H] change along the sequence, and in one direction only."""
    logs = ratio.log()
    logs = logs - logs.nanmean((0, 1), keepdim=True)
    steps = logs.nanmean(-1).diff(dim=1).nan_to_num(0.0)
    changes = bool((steps.abs().sum(1) > tolerance).all())
    return changes and bool((steps > -tolerance).all() or (steps < tolerance).all())
