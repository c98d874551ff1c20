"""Work of a probe itself in the middle of a forward: no probe looks at it, and nothing of it is differentiated."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from isotherm.probe.session import Session


class OwnWork:
    """See `Session.own_work`. It is a class because a generator would be slower, and it is entered very often."""

    __slots__ = ("_functions", "_gradients", "_module", "_outer", "_session")

    def __init__(self, session: "Session", module: nn.Module | None) -> None:
        self._session, self._module, self._outer = session, module, session.working
        self._gradients = torch.is_grad_enabled()
        self._functions = None if torch._C._is_torch_function_all_disabled() else torch._C.DisableTorchFunction()

    def __enter__(self) -> None:
        self._session.working = self
        if self._functions is not None:
            self._functions.__enter__()
        if self._gradients:  # a mode would see this call, so it comes after modes are off, and only if needed
            torch._C._set_grad_enabled(False)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        try:
            if isinstance(error, Exception):
                self._session.failed(error, self._module)
                return True
            return False
        finally:
            self.restore()

    def restore(self) -> None:
        """Undo `__enter__`, even if an interrupt came in the middle of it."""
        if self._gradients:
            torch._C._set_grad_enabled(True)
        if self._functions is not None:
            self._functions.__exit__(None, None, None)
        self._session.working = self._outer
