"""What the kernels store for each row, and the `RowStats` made of it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from isotherm.stats import Moments, RowStats

NAMES = ("count", "mean", "m2", "peak", "rest", "rest2", "cross", "first_logit")


@dataclass(frozen=True)
class Fields:
    """The sums of `RowStats` for each row, as the kernels store them.

    values float64 [..., 8, B, Hq, R] in the order of `NAMES`; first_key int64 and broken bool [..., B, Hq, R].
    """

    values: Tensor
    first_key: Tensor
    broken: Tensor

    @classmethod
    def empty(cls, shape: tuple[int, ...], device: torch.device, *, parts: int | None = None) -> "Fields":
        """Allocate fields for the rows of `shape`, `parts` times if the keys are split or there are several scales."""
        lead = () if parts is None else (parts,)
        return cls(
            torch.empty(*lead, len(NAMES), *shape, dtype=torch.float64, device=device),
            torch.empty(*lead, *shape, dtype=torch.int64, device=device),
            torch.empty(*lead, *shape, dtype=torch.bool, device=device),
        )

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three tensors, in the order in which kernels take them."""
        return self.values, self.first_key, self.broken

    def some_parts(self, which: slice) -> "Fields":
        """The fields of consecutive parts. Nothing is copied."""
        return Fields(*(x[which] for x in self.tensors))

    def parts(self) -> list["Fields"]:
        """The fields of each part. Nothing is copied."""
        return [Fields(*each) for each in zip(*(x.unbind(0) for x in self.tensors), strict=True)]

    def stats(self) -> RowStats:
        """The fields of one part as `RowStats`. Nothing is copied."""
        count, mean, m2, peak, rest, rest2, cross, first_logit = self.values.unbind(0)
        return RowStats(
            moments=Moments(count, mean, m2),
            max_key_logit=peak,
            peak=peak,
            rest=rest,
            rest2=rest2,
            cross=cross,
            first_key=self.first_key,
            first_logit=first_logit,
            broken=self.broken,
        )
