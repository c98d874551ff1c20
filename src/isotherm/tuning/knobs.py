"""The factors of a model while it is tuned: one tensor for each layer, put on once and changed in place."""

from collections.abc import Sequence
from math import exp
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from isotherm.checkup.measure import Batch
from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.setting import apply

NOTHING = Text("a model in which attention can be seen", "能看到注意力的模型")


class Knobs:
    """The factors [heads] of every layer that is tuned, all 1 at first. A context manager: the model is left as it was.

    A layer that runs several times, or whose weights several layers share, is one knob.
    """

    def __init__(self, model: nn.Module, captures: Sequence[Capture], batch: Batch, layers: Sequence[str]) -> None:
        self.heads = {one.name: one.problem.q.shape[1] for one in captures}
        if not self.heads:
            raise ArgumentError("model", NOTHING, got=type(model).__name__)
        self.names = [name for name in self.heads if name in layers] if layers else list(self.heads)
        q = captures[0].problem.q
        dtype = torch.promote_types(q.dtype, torch.float32)
        with torch.enable_grad():  # what `apply` makes of the factors belongs to their graph
            self.factors = {
                name: torch.ones(self.heads[name], device=q.device, dtype=dtype, requires_grad=True)
                for name in self.names
            }
            self._applied = apply(model, self.factors, batch=batch)

    def turn(self, x: float, name: str | None = None, head: int | None = None) -> None:
        """Set ln factor: of everything, of one layer, or of one head."""
        with torch.no_grad():
            for each in self.names if name is None else [name]:
                factors = self.factors[each]
                (factors if head is None else factors[head : head + 1]).fill_(exp(x))

    def leaves(self) -> list[Tensor]:
        """The factors, in the order of `names`."""
        return list(self.factors.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._applied.remove()
