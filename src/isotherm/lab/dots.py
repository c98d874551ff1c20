"""Random vectors with unit-variance components, and the dot products of many pairs of them.

A block of b queries and b keys gives b² dot products for the price of 2b vectors. They share vectors, so they are not
independent; blocks are, and every interval is taken over blocks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import pi, sqrt

import torch
from torch import Tensor

from isotherm import ops, scale
from isotherm.lab.claim import Setting
from isotherm.language import Text
from isotherm.stats import RowStats

FREEDOM = 5
"""Degrees of freedom of the heavy-tailed components: fourth moments are finite, sixth are not."""
AT_ONCE = 1 << 20
"""Largest number of components, or dot products, held in memory at a time: 8 MiB of float64."""


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normal."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def normals(generators: Sequence[torch.Generator], *shape: int) -> Tensor:
    """Standard normal, [seeds, *shape]: each seed from its own generator."""
    return torch.stack([normal(shape, generator) for generator in generators])


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform on [−√3, √3]."""
    return (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) * sqrt(3)


def rademacher(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """−1 or 1."""
    return 2.0 * torch.randint(2, shape, generator=generator, dtype=torch.int8).double() - 1


def student(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Student's t with 5 degrees of freedom, over its standard deviation √(5/3); by Bailey's polar method (1994)."""
    radius, angle = torch.rand((2, *shape), generator=generator, dtype=torch.float64)
    t = (FREEDOM * ((1 - radius).pow(-2 / FREEDOM) - 1)).sqrt() * (2 * pi * angle).cos()
    return t / sqrt(FREEDOM / (FREEDOM - 2))


Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]


@dataclass(frozen=True)
class Components:
    """A distribution with mean 0 and variance 1, and its fourth moment."""

    name: Text
    draw: Draw
    kurtosis: float


DISTRIBUTIONS = (
    Components(Text("normal", "正态"), normal, 3.0),
    Components(Text("uniform", "均匀"), uniform, 1.8),
    Components(Text("±1 (Rademacher)", "±1（拉德马赫）"), rademacher, 1.0),
    Components(Text("Student t, 5 degrees of freedom", "5 个自由度的学生 t"), student, 9.0),
)


def multiplier(rule: scale.Rule, d: int, n: int) -> float:
    """The number by which a rule multiplies q·k."""
    value = scale.value(rule, d, n)
    assert value is not None
    return value


def logits(q: Tensor, k: Tensor, rule: scale.Rule) -> Tensor:
    """scale·q·k for q [..., b, d] and k [..., n, d], as the rule scales it."""
    return multiplier(rule, q.shape[-1], k.shape[-2]) * (q @ k.mT)


def row_stats(q: Tensor, k: Tensor, rule: scale.Rule) -> RowStats:
    """Statistics of the rows of q [B, H, T, d] over k [B, H, n, d], in tiles: no T × n matrix is held."""
    stats = ops.attention(q, k, k[..., :1], scale=rule, stats=True).stats
    assert stats is not None
    return stats


@dataclass(frozen=True)
class BlockPlan:
    """How many blocks of b queries and b keys to draw at dimension d, given the number of components to draw in all."""

    d: int
    components: int
    largest: int = 128
    fewest: int = 16

    @property
    def block(self) -> int:
        """Number of queries, and of keys, in a block; smaller at small d, where b² dot products would outnumber components."""
        return min(16 * self.d, self.largest)

    @property
    def blocks(self) -> int:
        """Independent blocks."""
        return max(self.fewest, self.components // (self.block * self.d))

    def shapes(self) -> Iterator[tuple[int, int, int]]:
        """[blocks, b, d] of each portion that is drawn together."""
        step = max(1, AT_ONCE // (self.block * max(self.block, self.d)))
        for first in range(0, self.blocks, step):
            yield min(step, self.blocks - first), self.block, self.d


Pairs = Callable[[tuple[int, ...], torch.Generator], tuple[Tensor, Tensor]]


def independent(draw: Draw) -> Pairs:
    """q and k drawn independently from one distribution."""
    return lambda shape, generator: (draw(shape, generator), draw(shape, generator))


@dataclass(frozen=True)
class DotMoments:
    """Mean and mean square of q·k in each of `groups` independent groups of blocks: [groups]."""

    mean: Tensor
    square: Tensor

    @property
    def variance(self) -> list[float]:
        """Each group's variance about the mean of all groups."""
        return (self.square - self.mean.mean().square()).tolist()


def moments(setting: Setting, plan: BlockPlan, pairs: Pairs, rule: scale.Rule, *stream: int) -> DotMoments:
    """Moments of scale·q·k over the plan's blocks, in at most 32 groups."""
    generator = setting.generator(*stream)
    found = []
    for shape in plan.shapes():
        s = logits(*pairs(shape, generator), rule)
        found.append(torch.stack([s.mean((-2, -1)), s.square().mean((-2, -1))]))
    blocks = torch.cat(found, 1)
    groups = min(32, plan.blocks)
    size = plan.blocks // groups
    grouped = blocks[:, : groups * size].reshape(2, groups, size).mean(-1)
    return DotMoments(grouped[0], grouped[1])
