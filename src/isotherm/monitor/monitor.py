"""`isotherm.watch`: attention's temperature while a model trains.

Nothing is attached to the model. Every so many optimizer steps a probe follows the forwards of one step; between these
steps training runs as if nobody watched. Whatever goes wrong in here is recorded, once, and training goes on.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isotherm.checkup.wrappers import called
from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.monitor.alerts import Alarms
from isotherm.monitor.clock import Clock
from isotherm.monitor.looking import SUMS, Key, LayerTotals, Origin, TrainingSession
from isotherm.monitor.ranks import Ranks, Table, packed
from isotherm.monitor.sinks import Sink
from isotherm.monitor.store import Writer, read
from isotherm.monitor.valve import CLIPPED, Valve
from isotherm.probe.attach import open_session
from isotherm.probe.owner import Opened
from isotherm.record.watch import Event, Reading, WatchedLayer

NOTHING_SEEN = Text(
    "no attention was seen in the first step, so there is nothing to watch; isotherm check says what was met instead",
    "第一步中没有看到任何注意力，因此没有可监视的内容；isotherm check 会说明遇到了什么",
)
TROUBLE = Text(
    "the monitor itself failed, and training went on: {error}",
    "监视器自身出错，训练照常继续：{error}",
)
MakeSink = Callable[[Sequence[WatchedLayer]], Sink]
"""Makes a tracker's sink once the layers are known, such as `functools.partial(TensorBoard, where="logs")`."""
POSITIVE = Text("an integer of at least 1", "不小于 1 的整数")


@dataclass(frozen=True)
class WatchOptions:
    """What `watch` was asked for; its docstring says what each is."""

    every: int
    rows: int | None
    store: str | PathLike[str] | None
    alarms: bool
    on_alert: Callable[[Event], object] | None
    sinks: tuple[MakeSink, ...]
    scaler: Any
    together: bool | None
    valve: Valve | None

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("rows", 1 if self.rows is None else self.rows)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ArgumentError(name, POSITIVE, got=value)


class Monitor:
    """Watches one model. `watch` makes it; use it in a `with` block, or call `start` and `stop`.

    `latest` is the last reading, `layers` are what it is of, `events` what happened. Whoever is told of an alert may set
    `should_stop`, which the callbacks for training libraries obey.
    """

    def __init__(self, model: nn.Module, options: WatchOptions) -> None:
        self.model, self.options = model, options
        self.step = 0
        self.layers: list[WatchedLayer] = []
        self.latest: Reading | None = None
        self.events: list[Event] = []
        self.should_stop = False
        self._ranks = Ranks(model, options.together)
        self._writer: Writer | None = None
        if options.store is not None and self._ranks.is_first:
            self._writer = Writer(options.store, model=called(model), every=options.every, rows=options.rows)
        self._clock = Clock(model, self._before, self._after)
        self._sinks: list[Sink] = []
        self._alarms: Alarms | None = None
        self._earlier: tuple[Reading, ...] = ()
        self._hot = False
        self._origins: dict[Key, Origin] = {}
        self._table: Table = {}
        self._trusted: set[tuple[str, str]] = set()
        self._session: TrainingSession | None = None
        self._opened: Opened | None = None
        self._loss: Any = None
        self._failed = False

    def __enter__(self) -> "Monitor":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, step: int = 0) -> None:
        """Begin, after `step` optimizer steps that an earlier run has done."""
        self.step = step
        if step and self._writer is not None:
            self._writer.resume(step)
            self._earlier = read(self._writer.path).readings
        self._clock.start()
        self._open()

    def stop(self) -> None:
        """End: the model, PyTorch and the optimizers are as they were."""
        self._clock.stop()
        self._close()
        for end in (self._writer, *self._sinks):
            if end is not None:
                self._safely(end.close)

    def log(self, loss: Any) -> None:
        """The loss of this step, a number or a tensor, before the optimizer steps or right after. Models that return one
        (`outputs.loss`) need not be helped."""
        done = self.latest
        if done is not None and done.loss is None and done.step == self.step - 1:
            self.latest = replace(done, loss=float(loss))
            if self._writer is not None:
                self._writer.reading(self.latest)
        else:
            self._loss = loss.detach() if isinstance(loss, Tensor) else loss

    def _after(self) -> None:
        self._before()  # a closure runs the forward inside the optimizer's step
        self.step += 1
        if self._hot:
            self._hot = False
            self._safely(self._clip)
        self._open()

    def _open(self) -> None:
        if self.step % self.options.every == 0:
            self._safely(self._look)

    def _look(self) -> None:
        traces = self.options.valve is not None and not self._origins
        self._session = TrainingSession(self.model, self.options.rows, self._trusted, traces=traces)
        self._opened = open_session(self._session)

    def _before(self) -> None:
        session = self._session
        if session is None or not session.forwards:
            return
        self._close()
        self._safely(lambda: self._read(session))

    def _close(self) -> None:
        opened, self._opened, self._session = self._opened, None, None
        if opened is not None:
            self._safely(opened.close)

    def _read(self, session: TrainingSession) -> None:
        """Turn what the step's forwards added up to into a reading. The device is waited for here, and nowhere else."""
        started = time.time()
        self._agree(session)
        if not self._table:
            return
        sums, largest, squares, loss = self._gather(session)
        reading = Reading(
            step=self.step,
            at=started,
            loss=loss,
            rows=self.options.rows,
            seconds=time.time() - started,
            values=_values(sums, largest),
            gradients={name: np.sqrt(squares[place]).astype(np.float32) for place, name in enumerate(("q", "k"))},
        )
        self.latest, self._origins = reading, self._origins or session.origins
        self._hot = self.options.valve is not None
        if self._ranks.is_first:
            self._tell(reading)

    def _clip(self) -> None:
        """Let the valve act on the weights, now that the optimizer has stepped. Every process does the same."""
        valve, latest = self.options.valve, self.latest
        assert valve is not None
        assert latest is not None
        origins = [self._origins.get(key) for key in self._table]
        clips, refused = valve.act(self.model, self.layers, origins, latest.values["max_logit"])
        for clip in clips:
            numbers = {"heads": float(clip.heads), "max_logit": clip.largest, "factor": clip.smallest_factor}
            words = CLIPPED.format(layer=clip.layer.name, n=clip.heads, tau=valve.tau, largest=clip.largest)
            self.record(Event(self.step, time.time(), "valve", "qk-clip", clip.layer.number, None, words, numbers))
        for why in refused:
            self._warn(why)

    def _agree(self, session: TrainingSession) -> None:
        """Settle which layers there are. Several processes settle it once; one alone adds layers as it meets them."""
        seen = {key: len(totals.largest) for key, totals in session.totals.items()}
        if not self._table:
            self._table = self._ranks.agree(seen)
        elif self._ranks.count == 1:
            seen = {key: heads for key, heads in seen.items() if key not in self._table}
            self._table |= seen
        if not self._table:
            self._warn(NOTHING_SEEN)
        if len(self.layers) < len(self._table):
            self.layers = [
                WatchedLayer(number, name if not call else f"{name}#{call + 1}", heads)
                for number, ((name, call), heads) in enumerate(self._table.items())
            ]
            if self._writer is not None:
                self._writer.layers(self.layers)
            for sink in self._sinks:
                sink.close()
            self._sinks = [make(self.layers) for make in self.options.sinks if self._ranks.is_first]
            if self.options.alarms:
                self._alarms = Alarms(self.layers)
                for reading in self._earlier:
                    self._alarms.look(reading)

    def _gather(self, session: TrainingSession) -> tuple[Any, Any, Any, float | None]:
        """All layers' sums [len(SUMS), heads], maxima [heads] and squared gradients [2, layers], over all processes."""
        device = next(iter(session.totals.values())).sums.device if session.totals else torch.device("cpu")
        seen = {key: part for key, part in session.totals.items() if self._table.get(key) == len(part.largest)}
        parts = [seen.get(key) or _nothing(heads, device) for key, heads in self._table.items()]
        share = self._ranks.count**-2
        squares = [torch.stack([_sum(part.squares[name], device) * share for part in parts]) for name in ("q", "k")]
        loss = self._loss_of(session.result)
        said = [] if loss is None else [torch.as_tensor(loss).detach().double(), torch.ones(())]
        sums = packed([torch.cat([part.sums for part in parts], 1), *squares, *(said or [torch.zeros(2)])], device)
        sums, largest = self._ranks.reduce(sums, packed([part.largest for part in parts], device))
        numbers, top = sums.cpu().numpy(), largest.cpu().numpy()
        heads, layers = len(top), len(parts)
        table = numbers[: len(SUMS) * heads].reshape(len(SUMS), heads)
        gradients = numbers[len(SUMS) * heads : -2].reshape(2, layers) / self._loss_scale() ** 2
        return table, top, gradients, float(numbers[-2] / numbers[-1]) if numbers[-1] else None

    def _loss_of(self, result: Any) -> Any:
        loss, self._loss = self._loss, None
        if loss is None:
            loss = result.get("loss") if isinstance(result, dict) else getattr(result, "loss", None)
        return loss if isinstance(loss, (int, float)) or (isinstance(loss, Tensor) and loss.numel() == 1) else None

    def _loss_scale(self) -> float:
        return 1.0 if self.options.scaler is None else float(self.options.scaler.get_scale())

    def _tell(self, reading: Reading) -> None:
        if self._writer is not None:
            self._writer.reading(reading)
        for sink in self._sinks:
            self._safely(partial(sink.reading, reading))
        if self._alarms is not None:
            for event in self._alarms.look(reading):
                self.record(event)
                if (tell := self.options.on_alert) is not None:
                    self._safely(partial(tell, event))

    def record(self, event: Event) -> None:
        """Keep an event, here, in the store and in the trackers."""
        self.events.append(event)
        for keeper in (self._writer, *self._sinks):
            if keeper is not None:
                self._safely(partial(keeper.event, event))

    def _safely(self, work: Callable[[], object]) -> None:
        """Do work of the monitor's own. An error in it is recorded once; training goes on."""
        try:
            work()
        except Exception as error:
            if not self._failed:
                self._failed = True
                told = f"{type(error).__name__}: {error}"
                self._warn(TROUBLE.format(error=told))

    def _warn(self, message: Text) -> None:
        """Record something wrong with the watching itself, and say it."""
        event = Event(self.step, time.time(), "trouble", "monitor", None, None, message, {})
        if event.message not in [other.message for other in self.events]:
            self.record(event)
            warnings.warn(str(message), RuntimeWarning, stacklevel=2)


def watch(
    model: nn.Module,
    *,
    every: int = 50,
    rows: int | None = 128,
    store: str | PathLike[str] | None = None,
    alarms: bool = True,
    on_alert: Callable[[Event], object] | None = None,
    sinks: Iterable[MakeSink] = (),
    scaler: Any = None,
    together: bool | None = None,
    valve: Valve | None = None,
) -> Monitor:
    """Watch the temperature of the model's attention while it trains, every so many optimizer steps.

    `rows` of each head are measured, spread over the batch (None: every row). Readings go to `store`, an SQLite file that
    `isotherm watch` shows, and to the trackers that `sinks` make. `on_alert` is called with each alert. `scaler` is the
    GradScaler in use, so that gradients are told in the loss's own units. The steps are counted by the model's optimizer;
    validation is left alone.

    Where several processes train the model `together` (None: if it is wrapped in DDP or FSDP), each of them must watch it; a
    reading is then of all of them, and the first writes. A `valve` brings heads back whose largest logit passed its limit,
    after every reading: with `every=1` and `rows=None` this is QK-clip as published.

    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True, dropout=0), 1)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> with watch(model, every=1) as monitor:
    ...     model(torch.randn(2, 5, 16)).square().mean().backward()
    ...     optimizer.step()
    >>> monitor.latest.values["entropy"].shape
    (2,)
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", Text("a torch.nn.Module", "一个 torch.nn.Module"), got=type(model).__name__)
    return Monitor(model, WatchOptions(every, rows, store, alarms, on_alert, tuple(sinks), scaler, together, valve))


def _values(sums: Any, largest: Any) -> dict[str, Any]:
    """The statistics of each head, NaN where it has no row."""
    by_name = dict(zip(SUMS, sums, strict=True))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = {
            "max_logit": np.where(by_name["valid"] > 0, largest, np.nan),
            "logit_std": by_name["logit_std"] / by_name["valid"],
            "entropy": by_name["entropy"] / by_name["fractions"],
            "gate": by_name["gate"] / by_name["valid"],
            "saturated": by_name["saturated"] / by_name["fractions"],
            "invalid": by_name["invalid"] / by_name["rows"],
        }
    return {name: values.astype(np.float32) for name, values in found.items()}


def _nothing(heads: int, device: torch.device) -> LayerTotals:
    """The totals of a layer that did not run."""
    sums = torch.zeros(len(SUMS), heads, dtype=torch.float64, device=device)
    return LayerTotals(sums, torch.full((heads,), -torch.inf, dtype=torch.float64, device=device))


def _sum(squares: list[Tensor], device: torch.device) -> Tensor:
    """Squared gradients added up; NaN where none was seen."""
    if not squares:
        return torch.tensor(torch.nan, device=device)
    return torch.stack([square.to(device) for square in squares]).sum()
