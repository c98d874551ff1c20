"""Who is told of a run: the store, the trackers, the alarms, and whoever waits for an alert.

Whatever goes wrong in here is recorded once, and training goes on.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial

from isotherm.language import Text
from isotherm.monitor.alerts import Alarms
from isotherm.monitor.sinks import Sink, Summariser
from isotherm.monitor.store import Writer
from isotherm.record.watch import Event, Reading, WatchedLayer

TROUBLE = Text(
    "the monitor itself failed, and training went on: {error}",
    "监视器自身出错，训练照常继续：{error}",
)
MakeSink = Callable[[Sequence[WatchedLayer]], Sink]
"""Makes a tracker's sink once the layers are known, such as `functools.partial(TensorBoard, where="logs")`."""


class Telling:
    """Passes readings and events on. `events` is what happened so far."""

    def __init__(
        self,
        writer: Writer | None,
        make_sinks: Sequence[MakeSink],
        *,
        alarms: bool,
        on_alert: Callable[[Event], object] | None,
    ) -> None:
        self.writer = writer
        self.events: list[Event] = []
        self.summary: Summariser | None = None
        self._make_sinks, self._wants_alarms, self._on_alert = make_sinks, alarms, on_alert
        self._sinks: list[Sink] = []
        self._alarms: Alarms | None = None
        self._failed = False

    def layers(self, layers: Sequence[WatchedLayer], earlier: Sequence[Reading]) -> None:
        """Say what readings are of from now on; the alarms look at earlier ones first."""
        if self.writer is not None:
            self.writer.layers(layers)
        for sink in self._sinks:
            sink.close()
        self.summary = Summariser(layers)
        self._sinks = [make(layers) for make in self._make_sinks]
        if self._wants_alarms:
            self._alarms = Alarms(layers)
            for reading in earlier:
                self._alarms.look(reading)

    def reading(self, reading: Reading) -> None:
        """A reading, and the alerts that are new with it."""
        if self.writer is not None:
            self.writer.reading(reading)
        for sink in self._sinks:
            self.safely(partial(sink.reading, reading))
        for event in () if self._alarms is None else self._alarms.look(reading):
            self.event(event)
            if self._on_alert is not None:
                self.safely(partial(self._on_alert, event))

    def event(self, event: Event) -> None:
        """An event."""
        self.events.append(event)
        for keeper in (self.writer, self.summary, *self._sinks):
            if keeper is not None:
                self.safely(partial(keeper.event, event))

    def close(self) -> None:
        """Nothing more will come."""
        for keeper in (self.writer, *self._sinks):
            if keeper is not None:
                self.safely(keeper.close)

    def safely(self, work: Callable[[], object], step: int = 0) -> None:
        """Do work of the monitor's own. An error in it is recorded once; training goes on."""
        try:
            work()
        except Exception as error:
            if not self._failed:
                self._failed = True
                self.warn(TROUBLE.format(error=f"{type(error).__name__}: {error}"), step)

    def warn(self, message: Text, step: int) -> None:
        """Record something wrong with the watching itself, and say it."""
        event = Event(step, time.time(), "trouble", "monitor", None, None, message, {})
        if event.message not in [other.message for other in self.events]:
            self.event(event)
            warnings.warn(str(message), RuntimeWarning, stacklevel=2)
