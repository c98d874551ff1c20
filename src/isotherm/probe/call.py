"""What adapters hand to a session: an attention call in one form, wherever it was met."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from isotherm.ops import Problem, Visibility
from isotherm.probe.masks import Terms

NO_TERMS = Terms()


@dataclass(frozen=True)
class Call:
    """An attention call as an adapter understood it: q [B, Hq, T, D], k [B, Hkv, S, D]. If the multiplier of q·k is not one
    number, q contains it, and `traced_q` is q without it. `made` are q and k as the model made them, if the call's own are
    views of these. The fields from `padded` on are those of a `Capture`."""

    implementation: str
    q: Tensor
    k: Tensor
    scale: float
    passed: float | None
    terms: Terms = NO_TERMS
    causal: bool = False
    first: int = 0
    window: int | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    traced_q: Tensor | None = None
    made: tuple[Tensor, Tensor] | None = None
    padded: Tensor | None = None
    rows: Tensor | None = None
    total: int | None = None
    affine: bool | None = True
    multiplied: Literal["by-head", "by-query"] | None = None

    def with_sink(self, sink: Tensor) -> "Call":
        """The same call with the logit [Hq] of a sink."""
        return replace(self, sink=sink)

    def problem(self) -> Problem:
        """The call as a problem that can be replayed. The first query is at the position of key `first`."""
        q, k = self.q.detach(), self.k.detach()
        positions = torch.arange(q.shape[2], device=q.device) if self.rows is None else self.rows
        positions = positions + self.first
        visibility = Visibility(positions, k.shape[2], self.causal, self.window, self.terms.mask)
        return Problem(q, k, k, visibility, self.scale, self.terms.bias, self.softcap)
