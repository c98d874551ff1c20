"""The clock of a training loop: it ticks when an optimizer of the model steps.

PyTorch calls these hooks for every optimizer of the process. They know of no model, so a tick counts only if the optimizer
holds a parameter of ours; where several do, the first that steps is the clock. A step that a GradScaler skips is no step.
"""

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Clock:
    """Calls `before` and `after` around every optimizer step of the model, until it is stopped."""

    def __init__(self, model: nn.Module, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._model = weakref.ref(model)
        self._before, self._after = before, after
        self._clock: weakref.ref[Optimizer] | None = None
        self._handles: list[Any] = []

    def start(self) -> None:
        """Begin to listen."""
        self._handles = [
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._tick(optimizer, self._before)),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._tick(optimizer, self._after)),
        ]

    def stop(self) -> None:
        """Listen no longer."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _tick(self, optimizer: Optimizer, tell: Callable[[], None]) -> None:
        clock = None if self._clock is None else self._clock()
        if clock is None and self._is_ours(optimizer):
            self._clock, clock = weakref.ref(optimizer), optimizer
        if optimizer is clock:
            tell()

    def _is_ours(self, optimizer: Optimizer) -> bool:
        model = self._model()
        ours = set() if model is None else {id(parameter) for parameter in model.parameters()}
        return any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"])
