"""Show progress while a model trains: a bar on a terminal, an occasional line elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from isotherm.language import Text

SECONDS = 10.0  # between plain lines, at least

_LINE = Text(
    "step {step}/{steps}  loss {loss:.3f}  {speed:,.0f} tokens/s  {left} left",
    "第 {step}/{steps} 步  损失 {loss:.3f}  {speed:,.0f} 词元/秒  还需 {left}",
)
_HELD_OUT = Text("step {step}  held-out loss {loss:.3f}{gate}", "第 {step} 步  留出损失 {loss:.3f}{gate}")
_GATE = Text("  median gate {p50:.2g}", "  闸门中位数 {p50:.2g}")


class Reporter:
    """Reports how far a run is, on standard error; `quiet` processes report nothing."""

    def __init__(self, steps: int, *, quiet: bool = False, title: str = "") -> None:
        self.steps, self._quiet = steps, quiet
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._begun = self._spoken = time.monotonic()
        self._first = 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(
            *columns, console=self._console, transient=True, disable=quiet or not self._console.is_terminal
        )
        self._title = title
        self._task = self._bar.add_task(title or str(Text("training", "训练中")), total=steps, news="")

    def __enter__(self) -> "Reporter":
        self._bar.start()
        if self._title and self._bar.disable:
            self._console.print(self._title, markup=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, step: int) -> None:
        """Start measuring the pace after this step."""
        self._first, self._begun = step, time.monotonic()
        self._bar.update(self._task, completed=step)

    def say(self, text: Text) -> None:
        """One sentence."""
        self._console.print(str(text), markup=False)

    def trained(self, step: int, loss: float, speed: float) -> None:
        """Report a step's loss and speed, in tokens per second."""
        news = Text("loss {loss:.3f}  {speed:,.0f} tokens/s", "损失 {loss:.3f}  {speed:,.0f} 词元/秒")
        self._bar.update(self._task, completed=step, news=str(news.format(loss=loss, speed=speed)))
        now = time.monotonic()
        if not self._bar.disable or now - self._spoken < SECONDS:
            return
        self._spoken = now
        pace = (now - self._begun) / max(1, step - self._first)
        left = time.strftime("%H:%M:%S", time.gmtime(pace * (self.steps - step)))
        self.say(_LINE.format(step=step, steps=self.steps, loss=loss, speed=speed, left=left))

    def measured(self, step: int, loss: float, gate: float | None) -> None:
        """A held-out measurement."""
        told = Text("", "") if gate is None else _GATE.format(p50=gate)
        self.say(_HELD_OUT.format(step=step, loss=loss, gate=told))
