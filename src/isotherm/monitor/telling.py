"""Who is told of a run: the store, the trackers, the alarms, and whoever waits for an alert.

Whatever goes wrong in here is recorded once, and training goes on.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.monitor import saying
from isotherm.monitor.alerts import Alarms
from isotherm.monitor.sinks import Sink, Summariser
from isotherm.monitor.store import Writer
from isotherm.record import Unseen
from isotherm.record.watch import Event, Reading, WatchedLayer

TROUBLE = Text(
    "the monitor itself failed, and training went on: {error}",
    "监视器自身出错，训练照常继续：{error}",
)
NOT_WRITTEN = Text(
    "{path} cannot be written now ({why}); the last readings wait, and it is tried again",
    "{path} 目前无法写入（{why}）；最近的读数先保留，稍后重试",
)
NOT_WATCHED = Text("{name} is not watched: {why}", "{name} 未被监视：{why}")
NONE_WATCHED = Text("{name} and {n} more are not watched: {why}", "{name} 及另外 {n} 个模块未被监视：{why}")
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
        self.has_failed = False
        """Whether something in the monitor itself went wrong."""
        self._waits = False
        self._reasons: set[str] = set()

    def layers(self, layers: Sequence[WatchedLayer], earlier: Sequence[Reading]) -> None:
        """Say what readings are of from now on; the alarms look at earlier ones first. Later, more layers may follow."""
        if self.writer is not None:
            self.safely(partial(self._name_layers, self.writer, layers))
        if self.summary is None:
            self.summary = Summariser(layers)
            for make in self._make_sinks:
                self.safely(partial(self._make, make, layers))
            if self._wants_alarms:
                self._alarms = Alarms(layers)
                for reading in earlier:
                    self._alarms.look(reading)
            return
        self.summary.grow(layers)
        for sink in self._sinks:
            self.safely(partial(sink.layers, layers))
        if self._alarms is not None:
            self._alarms.grow(layers)

    def _make(self, make: MakeSink, layers: Sequence[WatchedLayer]) -> None:
        self._sinks.append(make(layers))

    def _name_layers(self, writer: Writer, layers: Sequence[WatchedLayer]) -> None:
        """Name the layers to the store. If it holds another model's run, this run's events are none of it either."""
        try:
            writer.layers(layers)
        except InputError:
            self.writer = None
            writer.close()
            raise

    def reading(self, reading: Reading) -> None:
        """A reading, and the alerts that are new with it."""
        if self.writer is not None:
            self.writer.reading(reading)
            if self.writer.trouble is not None and not self._waits:
                self._waits = True
                self.warn(NOT_WRITTEN.format(path=self.writer.path, why=self.writer.trouble), reading.step)
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
            self.failed(f"{type(error).__name__}: {error}", step)

    def failed(self, error: str, step: int) -> None:
        """Record an error of the monitor's own, unless there was one before."""
        if not self.has_failed:
            self.has_failed = True
            self.warn(TROUBLE.format(error=error), step)

    def unseen(self, modules: Sequence[Unseen], step: int) -> None:
        """Record that modules which attend are not watched, once for each reason."""
        reasons: dict[str, list[Unseen]] = {}
        for one in modules:
            reasons.setdefault(one.why.en, []).append(one)
        for reason, same in reasons.items():
            if reason not in self._reasons:
                self._reasons.add(reason)
                words = NOT_WATCHED if len(same) == 1 else NONE_WATCHED
                self.warn(words.format(name=same[0].name, n=len(same) - 1, why=same[0].why), step)

    def warn(self, message: Text, step: int) -> None:
        """Record something wrong with the watching itself, and say it."""
        event = Event(step, time.time(), "trouble", "monitor", None, None, message, {})
        if event.message not in [other.message for other in self.events]:
            self.event(event)
            saying.warn(message)
