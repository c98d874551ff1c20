"""The clock of a training loop: it ticks when an optimizer of the model steps.

PyTorch calls these hooks for every optimizer of the process. They know of no model, so a tick counts only if the optimizer
holds a parameter of ours, or the float32 master of one. Where several do, the first that steps is the clock, until another one
steps twice while it rests: then that one has taken its place. A step that a GradScaler skips is no step,
unless the optimizer is fused: that steps, and skips inside.
"""

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Clock:
    """Calls `before` and `after` around every optimizer step of the model, until it is stopped. `masters` are held by the
    optimizer instead of the model's own parameters."""

    def __init__(
        self,
        model: nn.Module,
        before: Callable[[], None],
        after: Callable[[], None],
        masters: Iterable[Tensor] = (),
    ) -> None:
        self._model, self._masters = weakref.ref(model), {id(master) for master in masters}
        self._before, self._after = before, after
        self._clock: weakref.ref[Optimizer] | None = None
        self._others: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Optimizers of the process that stepped since the clock did."""
        self.strangers = 0
        """How many steps optimizers without a parameter of ours have made before one with such stepped."""

    def start(self) -> None:
        """Begin to listen."""
        _listen(self)

    def stop(self) -> None:
        """Listen no longer."""
        _leave(self)

    def tick(self, optimizer: Optimizer, *, stepped: bool) -> None:
        """An optimizer is about to step, or has stepped."""
        clock = None if self._clock is None else self._clock()
        rests = clock is None or (not stepped and optimizer in self._others)
        if optimizer is not clock and rests and self._is_ours(optimizer):
            self._clock, clock = weakref.ref(optimizer), optimizer
        if optimizer is clock:
            self._others.clear()
            (self._after if stepped else self._before)()
        elif not stepped:
            self._others.add(optimizer)
            self.strangers += clock is None

    def _is_ours(self, optimizer: Optimizer) -> bool:
        model = self._model()
        ours = set() if model is None else {id(parameter) for parameter in model.parameters()} | self._masters
        return any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"])


_lock = threading.Lock()
_clocks: tuple["Clock", ...] = ()
_handles: list[Any] = []
"""One pair of hooks for all clocks: PyTorch runs through its hooks while they run, so another thread must not add any."""


def _listen(clock: Clock) -> None:
    global _clocks  # noqa: PLW0603  the hooks belong to the process
    with _lock:
        _clocks = (*(other for other in _clocks if other is not clock), clock)  # a run may be started again
        if not _handles:
            _handles.append(register_optimizer_step_pre_hook(lambda optimizer, *_: _tell(optimizer, stepped=False)))
            _handles.append(register_optimizer_step_post_hook(lambda optimizer, *_: _tell(optimizer, stepped=True)))


def _leave(clock: Clock) -> None:
    global _clocks  # noqa: PLW0603
    with _lock:
        _clocks = tuple(other for other in _clocks if other is not clock)
        while not _clocks and _handles:
            _handles.pop().remove()


def _tell(optimizer: Optimizer, *, stepped: bool) -> None:
    for clock in _clocks:
        clock.tick(optimizer, stepped=stepped)
