"""How far apart two implementations are: the same layers' statistics, the multiplier of q·k, and what rounding explains."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isotherm.checkup.fetch import fetched
from isotherm.checkup.heads import COLUMNS, HeadTable
from isotherm.probe import Capture
from isotherm.record import Comparison, HeadStats, Layer

Numbers = NDArray[np.float64]
"""The compared statistics of a layer, [heads, statistics], NaN where one is not known."""

_READ: dict[str, Callable[[HeadStats], float | None]] = {
    "logit_std": lambda head: head.logit_std,
    "max_logit": lambda head: head.max_logit,
    "entropy": lambda head: head.entropy.mean,
    "jacobian_trace": lambda head: head.jacobian_trace.mean,
}
_PLACES = [COLUMNS.index(name if name in COLUMNS else f"{name} mean") for name in _READ]
_LEAST = np.array([0.05, 1.0, 0.5, 0.5])
"""A difference is divided by the statistic's size, but by no less than this: near 0 a relative difference is rounding."""
TOKENS = 256
"""How many positions of q and k are compared."""


class Apart(NamedTuple):
    """How far a layer's q and k under one implementation are from a multiple of those under the other, as a part of their
    size; and the relative difference of the effective multiplier of q·k. Both are 0 where they cannot be compared."""

    direction: float = 0.0
    scale: float = 0.0


def of_layers(layers: Iterable[Layer]) -> list[Numbers]:
    """The statistics of layers that were read."""
    return [
        np.array([[read(head) for read in _READ.values()] for head in layer.head_stats], np.float64) for layer in layers
    ]


def of_tables(tables: Sequence[HeadTable]) -> list[Numbers]:
    """The statistics of layers that were not read yet."""
    return [table.numpy() for table in fetched([table.numbers[:, _PLACES] for table in tables])]


def apart(one: Sequence[Capture], other: Sequence[Capture]) -> list[Apart]:
    """How far the calls of one forward are from those of another. A factor may be in q, in k or in the kernel's scale: what is
    compared is the product of all three."""
    pairs = list(zip(one, other, strict=False))
    gaps, times = zip(*(_of_one("q", pairs), _of_one("k", pairs)), strict=True)
    directions, factors = (np.stack(found) for found in (gaps, times))
    found = []
    for (a, b), gap, factor in zip(pairs, directions.sum(0), factors.prod(0), strict=True):
        ratio = b.problem.scale * factor / a.problem.scale if a.problem.scale else np.nan
        found.append(Apart(float(gap), 1 - float(min(ratio, 1 / ratio)) if np.isfinite(ratio) and ratio > 0 else 0.0))
    return found


def _of_one(name: str, pairs: Sequence[tuple[Capture, Capture]]) -> tuple[Numbers, Numbers]:
    """For each pair, how far q (or k) of the second is from a multiple of the first's, and that multiple; NaN where the two
    cannot be compared."""
    gaps, factors = np.zeros(len(pairs)), np.full(len(pairs), np.nan)
    groups: dict[object, list[int]] = {}
    for place, pair in enumerate(pairs):
        a, b = (getattr(capture.problem, name) for capture in pair)
        if a.shape == b.shape and a.device == b.device and a.numel():
            groups.setdefault((a.shape, a.device, a.dtype, b.dtype), []).append(place)
    tables = [
        _projected(*(torch.stack([_some(getattr(pairs[at][side].problem, name)) for at in group]) for side in (0, 1)))
        for group in groups.values()
    ]
    for group, table in zip(groups.values(), fetched(tables), strict=True):
        gaps[group], factors[group] = np.nan_to_num(table[0].numpy(), nan=0.0, posinf=0.0), table[1].numpy()
    return gaps, factors


def _some(vectors: Tensor) -> Tensor:
    """Some positions of q or k [B, H, T, D]."""
    return vectors[:, :, :: -(-vectors.shape[2] // TOKENS)]


def _projected(one: Tensor, other: Tensor) -> Tensor:
    """[2, L]: of each of L tensors, the part of its size that is no multiple of its partner, and the multiple."""
    a, b = one.detach().double().flatten(1), other.detach().double().flatten(1)
    times = (a * b).sum(1) / a.square().sum(1)
    return torch.stack([(b - a * times[:, None]).norm(dim=1) / b.norm(dim=1), times])


def inherited(found: Sequence[Apart], statistics: Sequence[Numbers]) -> list[float]:
    """How much each layer's statistics may differ because its q and k do: rounding in earlier layers is multiplied by the
    size of the logits, and a model whose logits are far too large multiplies it again in each layer."""
    logits = [np.abs(np.nan_to_num(numbers[:, 1], posinf=0.0, neginf=0.0)).max(initial=0.0) for numbers in statistics]
    return [one.direction * float(size) for one, size in zip(found, logits, strict=False)]


def difference(
    a: Sequence[Numbers],
    b: Sequence[Numbers],
    names: tuple[str, str],
    tolerance: float,
    inherited: Sequence[float] = (),
    found: Sequence[Apart] = (),
) -> Comparison:
    """The first layer that differs by more than the tolerance and what it inherited from earlier layers; else the worst one."""
    worst = Comparison(names, None, "layers", float(len(a) != len(b)), tolerance, agree=len(a) == len(b))
    if len(a) != len(b):
        return worst
    rest = chain(inherited, repeat(0.0)), chain(found, repeat(Apart()))
    for layer, (one, other, excused, beside) in enumerate(zip(a, b, *rest, strict=False)):
        statistic, gap = _gap(one, other, excused)
        far = max(0.0, beside.scale - beside.direction)
        statistic, gap = ("scale", far) if far >= gap and far > 0 else (statistic, gap)
        if worst.layer is None or gap > worst.difference:
            worst = Comparison(names, layer, statistic, gap, tolerance, agree=gap <= tolerance)
        if gap > tolerance:
            return worst
    return worst


def _gap(one: Numbers, other: Numbers, inherited: float) -> tuple[str, float]:
    """The statistic that differs most, and its relative difference beyond what was inherited."""
    known = np.isfinite(one), np.isfinite(other)
    a, b = (np.where(is_known, numbers, 0.0) for is_known, numbers in zip(known, (one, other), strict=True))
    gaps = np.abs(a - b) / np.maximum(np.maximum(np.abs(a), np.abs(b)), _LEAST)
    gaps = np.where(known[0] & known[1], gaps, known[0] != known[1])
    if not gaps.size:
        return "none", 0.0
    place = int(gaps.argmax())
    gap = max(0.0, float(gaps.flat[place]) - inherited)
    return (list(_READ)[place % len(_READ)] if gap else "none"), gap
