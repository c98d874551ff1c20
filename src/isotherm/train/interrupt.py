"""Ctrl-C and a cluster's SIGTERM: finish the step, save, then stop. A second signal stops at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """The first signal that came while `listening`, if any did."""

    asked: int | None = None

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.asked is not None:
            raise KeyboardInterrupt
        self.asked = number

    @contextmanager
    def listening(self) -> Iterator["Interrupt"]:
        """Note signals instead of ending, while the block runs. Only the main thread can hear signals."""
        here = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, self._note) for number in SIGNALS} if here else {}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
