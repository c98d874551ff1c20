"""Softmax rows over up to 65,536 random keys, for many dimensions and rules at once, holding one tile of keys at a time.

Given a query q, the dot products of q with independent standard normal keys are independent N(0, |q|²) numbers. So
`rows_over` draws real queries, and of each key only its component along q: exact in distribution, and free of d. The
same components serve every dimension and rule. `dot_rows` multiplies whole vectors, to check the one against the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from isotherm import scale
from isotherm.lab.claim import Setting
from isotherm.lab.dots import logits, multiplier, normal
from isotherm.stats import RowStats

TILE = 1 << 17
"""Logits held together: 1 MiB of float64, which a processor's cache can hold with a few more of its size."""


@dataclass(frozen=True)
class Rows:
    """Statistics of each row [rows], and the spread σ = scale·|q| of its logits."""

    stats: RowStats
    sigma: Tensor

    @property
    def gate(self) -> Tensor:
        """1 − Σp²."""
        return self.stats.jacobian_trace

    @property
    def entropy(self) -> Tensor:
        """Entropy over ln n."""
        return self.stats.entropy_fraction

    @property
    def reach(self) -> Tensor:
        """⟨s⟩/σ: how many standard deviations above the mean the attended keys lie, ⟨s⟩ = Σps = lse − entropy.

        For normal logits its mean is σ·E[gate] (Gaussian integration by parts), with a far smaller variance.
        """
        return (self.stats.lse - self.stats.entropy) / self.sigma


def rules() -> dict[str, scale.Rule]:
    """The four scales compared."""
    return {
        "none": scale.NoScale(),
        "1/√d": scale.InverseSqrt(),
        "1/d": scale.MuP(),
        "log n": scale.LogN() * scale.InverseSqrt(),
    }


Point = tuple[str, int]
"""A rule's name and a dimension."""


def rows_over(setting: Setting, n: int, points: Sequence[Point], rules: Mapping[str, scale.Rule]) -> dict[Point, Rows]:
    """Rows over n keys at every point, `setting["rows"][n]` of them."""
    count = setting["rows"][n]
    radius = {d: normal((count, d), setting.generator(n, d)).norm(dim=-1) for d in {d for _, d in points}}
    sigma = {(name, d): (multiplier(rules[name], d, n) * radius[d]).to(setting.device) for name, d in points}
    found = {point: RowStats.none((count,), sigma[point].device) for point in points}
    generator = setting.generator(n)
    width = max(1, TILE // count)
    for start in range(0, n, width):
        along = normal((count, min(width, n - start)), generator).to(setting.device)
        for point in points:
            part = RowStats.from_logits(sigma[point].unsqueeze(-1) * along, first_column=start)
            found[point] = found[point].merge(part)
    return {point: Rows(found[point], sigma[point]) for point in points}


def dot_rows(setting: Setting, n: int, d: int, rule: scale.Rule, seed: int) -> Rows:
    """Rows of real dot products of `setting["queries"]` queries with the same n keys."""
    generator = setting.generator(n, d, seed)
    q, k = normal((setting["queries"], d), generator), normal((n, d), generator)
    return Rows(RowStats.from_logits(logits(q, k, rule)), multiplier(rule, d, n) * q.norm(dim=-1))
