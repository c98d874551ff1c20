"""What a softmax row is doing: its entropy, its gradient gate, its largest logit.

`RowStats` keeps, per row, sums that merge over disjoint sets of keys, so a kernel can look at keys a block at a time
and never hold the row. Two choices keep the digits:

- The row's largest logit is left out of the sums. With r = Σ e^(s−max) over the *other* keys, 1 − Σp² becomes
  (2r + r² − r₂)/(1 + r)²: no subtraction from 1, so a gate of 1e-12 has as many digits as a gate of 0.5.
- Everything per row is float64, whatever the logits are. Rows are few (n, not n²), and lse = 1e4 + ln r has no room
  for ln r in float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from isotherm.errors import ArgumentError
from isotherm.language import Text

Label = Literal["exact", "sampled"]
STATISTICS = (
    "n",
    "lse",
    "max_logit",
    "top1",
    "logit_mean",
    "logit_std",
    "entropy",
    "entropy_fraction",
    "collision",
    "n_eff",
    "jacobian_trace",
    "jacobian_max",
    "sink",
)
NOTHING = -1e300
"""The largest of no logits. Finite, so that differences stay finite."""
NO_KEY = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class Moments:
    """Count, mean and Σ(s − mean)² of some logits; merged as Chan, Golub and LeVeque (1979) do."""

    count: Tensor
    mean: Tensor
    m2: Tensor

    def merge(self, other: "Moments") -> "Moments":
        """The moments of both sets together."""
        count = self.count + other.count
        share = other.count / count.clamp(min=1)
        gap = other.mean - self.mean
        return Moments(count, self.mean + gap * share, self.m2 + other.m2 + gap * gap * share * self.count)

    def reshape(self, shape: tuple[int, ...]) -> "Moments":
        """These moments in another shape."""
        return Moments(self.count.reshape(shape), self.mean.reshape(shape), self.m2.reshape(shape))


@dataclass(frozen=True)
class RowStats:
    """Statistics of every softmax row, shape [B, Hq, R]. NaN where a row is empty or invalid.

    The fields are sums over the row's visible keys; read the properties instead. `rows` [R] are the sampled query
    indices out of `total_rows`, or None when every row was looked at.
    """

    moments: Moments
    max_key_logit: Tensor
    peak: Tensor
    rest: Tensor
    rest2: Tensor
    cross: Tensor
    first_key: Tensor
    first_logit: Tensor
    broken: Tensor
    outcomes_beyond_keys: int = 0
    rows: Tensor | None = None
    total_rows: int | None = None

    @classmethod
    def from_logits(cls, logits: Tensor, visible: Tensor | None = None, *, first_column: int = 0) -> "RowStats":
        """The definition. `logits` [..., S] as they enter the softmax, `visible` bool of the same shape.

        `first_column` is the index of the first key when the logits are a block of a longer row.
        """
        s = logits.double()
        seen = torch.ones_like(s, dtype=torch.bool) if visible is None else visible.expand_as(s)
        if s.shape[-1] == 0:
            return cls.none(s.shape[:-1], s.device)
        count = seen.sum(-1).double()
        broken = (seen & ~s.isfinite()).any(-1)
        s = torch.where(seen & s.isfinite(), s, NOTHING)
        peak, top = s.max(-1)
        others = seen.scatter(-1, top.unsqueeze(-1), 0)  # TorchScript takes no False
        gap = torch.where(others, s - peak.unsqueeze(-1), 0.0)
        weight = torch.where(others, gap.exp(), 0.0)
        mean = torch.where(seen, s, 0.0).sum(-1) / count.clamp(min=1)
        deviation = torch.where(seen, s - mean.unsqueeze(-1), 0.0)
        first = seen.to(torch.uint8).argmax(-1)
        return cls(
            moments=Moments(count, mean, deviation.square().sum(-1)),
            max_key_logit=peak,
            peak=peak,
            rest=weight.sum(-1),
            rest2=weight.square().sum(-1),
            cross=(weight * gap).sum(-1),
            first_key=torch.where(count > 0, first + first_column, NO_KEY),
            first_logit=s.gather(-1, first.unsqueeze(-1)).squeeze(-1),
            broken=broken,
        )

    @classmethod
    def none(cls, shape: tuple[int, ...], device: torch.device | None = None) -> "RowStats":
        """Rows that have seen no key: the neutral element of `merge`."""
        zero = torch.zeros(shape, dtype=torch.float64, device=device)
        nothing = torch.full_like(zero, NOTHING)
        no_key = torch.full(shape, NO_KEY, dtype=torch.int64, device=device)
        return cls(Moments(zero, zero, zero), nothing, nothing, zero, zero, zero, no_key, nothing, zero.bool())

    def merge(self, other: "RowStats") -> "RowStats":
        """The statistics over the keys of both; the two sets of keys must be disjoint. Order does not matter."""
        peak = torch.maximum(self.peak, other.peak)
        mine, theirs = _rebase(self, peak), _rebase(other, peak)
        # Each part's own peak is one more term of the sums. The larger of the two terms is 1 and is left out again.
        lower = torch.minimum(mine[0], theirs[0])
        other_first = other.first_key < self.first_key
        return replace(
            self,
            moments=self.moments.merge(other.moments),
            max_key_logit=torch.maximum(self.max_key_logit, other.max_key_logit),
            peak=peak,
            rest=mine[1] + theirs[1] + lower,
            rest2=mine[2] + theirs[2] + lower.square(),
            cross=mine[3] + theirs[3],
            first_key=torch.minimum(self.first_key, other.first_key),
            first_logit=torch.where(other_first, other.first_logit, self.first_logit),
            broken=self.broken | other.broken,
        )

    @classmethod
    def cat(cls, parts: Sequence["RowStats"], axis: int) -> "RowStats":
        """The statistics of different rows, concatenated along one axis."""
        return parts[0] if len(parts) == 1 else _transform(parts, lambda tensors: torch.cat(tensors, axis))

    def with_sink(self, logit: Tensor) -> "RowStats":
        """These rows with one more outcome in their softmax that is no key (a learned sink, softmax-1).

        `logit` broadcasts against the rows. Entropy, gate, lse and probabilities count it; n, max_logit, logit_mean and
        logit_std stay those of the keys.
        """
        alpha = logit.double().expand_as(self.rest)
        nothing = RowStats.none(tuple(self.rest.shape), self.rest.device)
        alone = replace(nothing, peak=alpha, broken=~alpha.isfinite())
        return replace(self.merge(alone), outcomes_beyond_keys=self.outcomes_beyond_keys + 1)

    @property
    def label(self) -> Label:
        """Whether every row was looked at."""
        return "exact" if self.rows is None else "sampled"

    @property
    def n(self) -> Tensor:
        """Visible keys of each row."""
        return self.moments.count.long()

    @property
    def empty(self) -> Tensor:
        """Rows with no visible key."""
        return self.moments.count == 0

    @property
    def invalid(self) -> Tensor:
        """Rows that met NaN or Inf."""
        return self.broken & ~self.empty

    @property
    def lse(self) -> Tensor:
        """ln Σ eˢ."""
        return self._defined(self.peak + self.rest.log1p())

    @property
    def max_logit(self) -> Tensor:
        """The largest logit of a key."""
        return self._defined(self.max_key_logit)

    @property
    def top1(self) -> Tensor:
        """The largest probability of a key, exp(max_logit − lse)."""
        return self._defined((self.max_key_logit - self.peak).exp() / (1 + self.rest))

    @property
    def logit_mean(self) -> Tensor:
        """Mean of the logits over the visible keys, unweighted."""
        return self._defined(self.moments.mean)

    @property
    def logit_std(self) -> Tensor:
        """Standard deviation of the logits over the visible keys, unweighted (population)."""
        return self._defined((self.moments.m2.clamp(min=0) / self.moments.count).sqrt())

    @property
    def entropy(self) -> Tensor:
        """−Σ p ln p, in nats."""
        return self._defined(self.rest.log1p() - self.cross / (1 + self.rest))

    @property
    def entropy_fraction(self) -> Tensor:
        """Entropy over its largest possible value, ln n; NaN for a row that has one outcome only."""
        outcomes = self.moments.count + self.outcomes_beyond_keys
        return self.entropy / torch.where(outcomes > 1, outcomes.log(), torch.nan)

    @property
    def collision(self) -> Tensor:
        """Σ p²."""
        return self._defined((1 + self.rest2) / (1 + self.rest).square())

    @property
    def n_eff(self) -> Tensor:
        """1/Σp²: how many keys share the row."""
        return 1 / self.collision

    @property
    def jacobian_trace(self) -> Tensor:
        """1 − Σp², the trace of diag(p) − ppᵀ: the gradient gate. Relative precision even at 1e-30."""
        gate = (2 * self.rest + self.rest.square() - self.rest2) / (1 + self.rest).square()
        return self._defined(gate)

    @property
    def jacobian_max(self) -> Tensor:
        """top1·(1 − top1), the largest entry of diag(p) − ppᵀ in magnitude."""
        top1 = self.top1
        others = torch.where(self.max_key_logit == self.peak, self.rest / (1 + self.rest), 1 - top1)
        return top1 * others

    @property
    def sink(self) -> Tensor:
        """The probability of the first visible key."""
        return self._defined((self.first_logit - self.peak).exp() / (1 + self.rest))

    def overflowing(self, dtype: torch.dtype) -> Tensor:
        """Rows whose largest logit does not fit `dtype`: a kernel that holds logits in it would meet Inf."""
        return self.max_logit > torch.finfo(dtype).max

    def summary(self, statistic: str) -> "Summary":
        """Mean, quantiles and extremes of one statistic per head, empty and invalid rows left out."""
        return self.summaries((statistic,))[statistic]

    def summaries(self, statistics: Sequence[str]) -> dict[str, "Summary"]:
        """Several summaries at once, which costs less than one at a time."""
        for name in statistics:
            if name not in STATISTICS:
                expected = Text(f"one of {', '.join(STATISTICS)}", f"{'、'.join(STATISTICS)} 之一")
                raise ArgumentError("statistic", expected, got=repr(name))
        values = torch.stack([getattr(self, name).double() for name in statistics])
        return dict(zip(statistics, Summary.of(self, values), strict=True))

    def map(self, change: Callable[[Tensor], Tensor]) -> "RowStats":
        """The same statistics with every per-row tensor passed through `change` (a reshape, a slice, a move)."""
        return _transform([self], lambda tensors: change(tensors[0]))

    def _defined(self, value: Tensor) -> Tensor:
        return torch.where(self.broken | self.empty, torch.nan, value)


def _transform(parts: Sequence[RowStats], change: Callable[[list[Tensor]], Tensor]) -> RowStats:
    """Combine each per-row tensor of the parts into one."""
    moments = [change([getattr(part.moments, name) for part in parts]) for name in _OF_MOMENTS]
    rows: dict[str, Any] = {name: change([getattr(part, name) for part in parts]) for name in _OF_ROWS}
    return replace(parts[0], moments=Moments(*moments), **rows)


_OF_MOMENTS = tuple(field.name for field in fields(Moments))
_OF_ROWS = tuple(field.name for field in fields(RowStats) if field.type is Tensor)


def _rebase(part: RowStats, peak: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """e^(part.peak − peak), rest, rest2 and cross of one part relative to a common peak. This cross includes part.peak."""
    shift = part.peak - peak
    top = torch.where(part.peak == NOTHING, 0.0, shift.exp())
    shift = torch.where(part.peak == NOTHING, 0.0, shift)
    return top, part.rest * top, part.rest2 * top.square(), top * (part.cross + shift * (1 + part.rest))


QUANTILES = (0.1, 0.5, 0.9, 0.0, 1.0)


@dataclass(frozen=True)
class Summary:
    """One statistic over many rows, per head: tensors [Hq], NaN where a head has no valid row.

    `interval` is the half-width of the 95 % confidence interval of the mean; 0 when every row was looked at, NaN when fewer
    than two rows of a sample are valid.
    """

    mean: Tensor
    p10: Tensor
    p50: Tensor
    p90: Tensor
    min: Tensor
    max: Tensor
    interval: Tensor
    rows: Tensor
    empty: Tensor
    invalid: Tensor
    label: Label

    @classmethod
    def of(cls, stats: RowStats, values: Tensor) -> list["Summary"]:
        """Summaries of several statistics, `values` [N, B, Hq, R]."""
        left_out = stats.empty | stats.broken
        flat = torch.where(left_out, torch.nan, values).transpose(1, 2).flatten(2)
        known = flat.isfinite()
        rows = known.sum(-1)
        mean = flat.nansum(-1) / rows
        variance = (flat - mean.unsqueeze(-1)).square().nansum(-1) / (rows - 1)
        unseen = 1 - values.shape[-1] / stats.total_rows if stats.total_rows else 0.0
        interval = 1.96 * (variance / rows * unseen).sqrt() if unseen > 0 else torch.zeros_like(mean)
        quantiles = _quantiles(flat, rows)
        empty, invalid = (bad.transpose(0, 1).flatten(1).sum(-1) for bad in (stats.empty, stats.invalid))
        return [
            cls(
                mean=mean[i],
                p10=quantiles[0, i],
                p50=quantiles[1, i],
                p90=quantiles[2, i],
                min=quantiles[3, i],
                max=quantiles[4, i],
                interval=interval[i],
                rows=rows[i],
                empty=empty,
                invalid=invalid,
                label=stats.label,
            )
            for i in range(len(values))
        ]


def sorted_values(values: Tensor) -> Tensor:
    """Sort along the last axis, NaN last. On the CPU numpy's vectorised sort is several times faster than PyTorch's."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=-1))
    return values.sort(-1).values


def _quantiles(flat: Tensor, rows: Tensor) -> Tensor:
    """p10, p50, p90, min and max of the finite values along the last axis, interpolated between neighbours."""
    fractions = torch.tensor(QUANTILES, dtype=flat.dtype, device=flat.device).view(-1, *(1,) * rows.dim())
    if flat.shape[-1] == 0:
        return torch.full((len(QUANTILES), *rows.shape), torch.nan, dtype=flat.dtype, device=flat.device)
    ordered = sorted_values(flat)
    at = fractions * (rows - 1).clamp(min=0)
    below, above = at.floor().long(), at.ceil().long()
    low, high = (
        ordered.expand(len(QUANTILES), *ordered.shape).gather(-1, i.unsqueeze(-1)).squeeze(-1) for i in (below, above)
    )
    return low + (high - low) * (at - below)
