"""What the kernels write for each row, and the `RowStats` made of it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from isotherm.stats import Moments, RowStats

NAMES = ("count", "mean", "m2", "peak", "rest", "rest2", "cross", "first_logit")


@dataclass(frozen=True)
class Fields:
    """Per row, in float64 but for the key index and the mark of a row that met NaN or Inf.

    values [..., 8, B, Hq, R] in the order of `NAMES`; first_key, broken [..., B, Hq, R].
    """

    values: Tensor
    first_key: Tensor
    broken: Tensor

    @classmethod
    def empty(cls, shape: tuple[int, ...], device: torch.device, *, parts: int | None = None) -> "Fields":
        """Memory for the rows of `shape`; `parts` times of it when keys are split or several scales looked at."""
        lead = () if parts is None else (parts,)
        return cls(
            torch.empty(*lead, len(NAMES), *shape, dtype=torch.float64, device=device),
            torch.empty(*lead, *shape, dtype=torch.int64, device=device),
            torch.empty(*lead, *shape, dtype=torch.bool, device=device),
        )

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """All there are."""
        return self.values, self.first_key, self.broken

    def parts(self) -> list["Fields"]:
        """Each of several."""
        return [Fields(*each) for each in zip(*(x.unbind(0) for x in self.tensors), strict=True)]

    def stats(self) -> RowStats:
        """The same as the rest of the library knows it; nothing is copied."""
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
