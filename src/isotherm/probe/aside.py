"""Calls that are no business of a probe's: they run as they would without it, compiled where they are compiled."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from torch import nn

from isotherm.probe.frames import Frames
from isotherm.probe.members import uncompiled


class Aside:
    """Whether a probe stands aside while something else than its model runs."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._stands = False

    def __bool__(self) -> bool:
        return self._stands and not self._frames.stack

    @contextmanager
    def during(self, module: nn.Module, passes_by: Callable[[nn.Module], bool]) -> Iterator[None]:
        """Run a module that is not followed, aside if it passes by. A compiled module that it calls may still be the model."""
        before = self._stands
        if not before or uncompiled(module) is not module:
            with suppress(Exception):  # of a module that cannot be asked for its parts: it may have some of the model's
                self._stands = False
                self._stands = passes_by(module)
        try:
            yield
        finally:
            self._stands = before
