"""Which tensors are weights of the model, or made of weights only; and the projections that functions make with them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from isotherm.probe.functions import NORMS, PRODUCTS, REMADE, factors_of
from isotherm.probe.parts import parts_of, weight_of
from isotherm.probe.session import Session
from isotherm.probe.trail import VIEWS


class ModelWeights:
    """The weights of a session's model, and what its forward has made of them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._remade = WeakTensorKeyDictionary()

    def __contains__(self, tensor: object) -> bool:
        if not isinstance(tensor, Tensor):
            return False
        if self._session.is_weight(tensor):
            return True
        return bool(self._remade.data) and (tensor in self._remade or tensor._base in self._remade)

    @property
    def remade(self) -> bool:
        """Whether the forward has made a weight of weights that is still there."""
        return bool(self._remade.data)

    def is_projecting(self, name: str, tensor: Tensor) -> bool:
        """Whether the second factor of a function is a weight, or the function is that of a module that projects."""
        top = self._session.frames.top
        return tensor in self or (name == "linear" and top is not None and isinstance(top.module, nn.Linear))

    def note(self, name: str, given: Sequence[Tensor], result: Tensor) -> None:
        """Note a result that was made of weights only. A view of one may outlive it."""
        again = name in REMADE or (name in VIEWS and self.remade)
        remade = again and given and all(tensor in self for tensor in given)
        if remade or (name in PRODUCTS and all(isinstance(tensor, nn.Parameter) for tensor in given)):
            self._remade[result] = True

    def record(self, name: str, args: Any, result: Any) -> None:
        """Record a projection or a norm that is a function call and not a module."""
        frames = self._session.frames
        frame = frames.top
        if frame is None or (name not in PRODUCTS and name not in NORMS):
            return
        if name in NORMS:
            if not frame.role.normalises:
                frames.note(frame, f"{frame.name}.{name}", "norm", args, result)
            return
        if frame.role.projects:
            return
        weight = weight_of(name, args)
        weight = self._known_weight(name, args) if weight is None else weight
        if weight is not None:
            own, parts = parts_of(frame, name, args, weight)
            given = [x for x in args if isinstance(x, Tensor) and x is not weight and not self._session.is_weight(x)]
            frames.note(frame, own, "projection", given, result, parts)

    def _known_weight(self, name: str, args: Any) -> Tensor | None:
        """A weight that was made of weights, or is known by its memory only: scripted code passes views without saying of
        what."""
        factors = factors_of(name, args)
        weight = None if factors is None else factors[1][0]
        return weight if weight in self else None
