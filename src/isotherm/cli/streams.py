"""Standard streams that may be closed or full, and Ctrl-C at any moment, imports included.

Only `main` installs these. A process that imports Isotherm as a library keeps its own streams and signals.
"""

import io
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from isotherm.language import Text

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STANDARD_OUTPUT = Text("standard output", "标准输出")


class _Output(io.FileIO):
    """A stream that discards what nobody can read any more.

    If the reader of a pipe has gone, the verb finishes quietly with its own exit code. A full device is an `IsothermError`
    on standard output; nothing can be said about it on standard error.
    """

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # so that what is left in buffers can be flushed when Python ends
            os.close(null)
            if not isinstance(error, BrokenPipeError) and self.fileno() == 1:
                from isotherm.report.files import write_error

                raise write_error(STANDARD_OUTPUT, error) from error
            return memoryview(data).nbytes


def guard_streams() -> None:
    """Open the null device for each standard stream that is closed, and make the others safe to write to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, so that no file of ours gets it
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _writer(1, sys.stdout), _writer(2, sys.stderr)


def _writer(number: int, before: TextIO | None) -> TextIO:
    if before is not None:
        before.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(number, "w", closefd=False)),
        encoding=getattr(before, "encoding", "utf-8"),
        errors="backslashreplace",
        line_buffering=number == 2 or os.isatty(number),
    )


class Interrupts:
    """Handles Ctrl-C. `seen` says whether there was one."""

    def __init__(self) -> None:
        self.seen = False

    def install(self) -> None:
        """Take over from Python, or from `isotherm.__main__`."""
        _answer(self._handle)

    def finish(self) -> None:
        """The work is done: from now on Ctrl-C ends the process at once."""
        _answer(leave)

    def _handle(self, number: int, frame: FrameType | None) -> Any:
        """Raise KeyboardInterrupt. The second time, or in an import, where libraries swallow it, end at once."""
        if self.seen or _importing(frame):
            leave(number, frame)
        self.seen = True
        raise KeyboardInterrupt


def _answer(handler: Callable[[int, FrameType | None], object]) -> None:
    """Answer Ctrl-C with the handler. A process that ignores Ctrl-C goes on ignoring it."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """End the process, with the cursor shown that a progress bar may have hidden."""
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")
    os._exit(130)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


interrupts = Interrupts()
