"""`isotherm.watch`: attention's temperature while a model trains.

Nothing is attached to the model. Every so many optimizer steps a probe follows the forwards of one step; between these
steps training runs as if nobody watched. Whatever goes wrong in here is recorded, once, and training goes on.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from isotherm.checkup.wrappers import called
from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.monitor.arriving import Arriving
from isotherm.monitor.clipping import Clipping
from isotherm.monitor.clock import Clock
from isotherm.monitor.gathering import Gathering
from isotherm.monitor.looks import Looks
from isotherm.monitor.loss import LossScale, StepLoss, one_number
from isotherm.monitor.options import WatchOptions
from isotherm.monitor.ranks import Ranks
from isotherm.monitor.roster import Roster
from isotherm.monitor.store import Writer, read
from isotherm.monitor.telling import MakeSink, Telling
from isotherm.monitor.valve import Valve
from isotherm.record.watch import Event, Reading, WatchedLayer

NO_FORWARD = Text(
    "the optimizer has stepped {n} times, and this model has run no forward that needs gradients: is another copy of it"
    " trained, or is it run by torch.func?",
    "优化器已走 {n} 步，而本模型没有做过需要梯度的前向：训练的是否是它的另一份副本，或由 torch.func 运行？",
)
NO_STEP = Text(
    "the model has run, but no optimizer stepped that holds its parameters, so there is no reading; call monitor.stepped()"
    " after each update of the weights",
    "模型已运行，但没有持有其参数的优化器走过一步，因此没有读数；请在每次更新权重后调用 monitor.stepped()",
)
NOT_TRAINED = Text(
    "optimizers have stepped {n} times, none of them held a parameter of this model, and it has run no forward that needs"
    " gradients, so there is no reading: is a copy of it trained, or a wrapper with parameters of its own?",
    "优化器已走 {n} 步，都不持有本模型的参数，本模型也没有做过需要梯度的前向，因此没有读数："
    "训练的是否是它的副本，或自带参数的包装？",
)
PATIENCE = 20
"""Optimizer steps without a forward, or forwards without a step, before that is said: the latter at the end, or when loss after
loss was logged for `LONG` forwards."""
LONG = 1000


class Monitor:
    """Watches one model. `watch` makes it; use it in a `with` block, or call `start` and `stop`.

    `latest` is the last reading, `layers` are what it is of, `events` what happened. Whoever is told of an alert may set
    `should_stop`, which the callbacks for training libraries obey.
    """

    def __init__(self, model: nn.Module, options: WatchOptions) -> None:
        self.model, self.options = model, options
        self.step = 0
        self._latest: Reading | None = None
        self._wants_stop = self._stops = False
        self.believes = True
        """Whether the loss that the model returns is the step's. In parts of a batch it may be a part of that."""
        self._ranks = Ranks(model, options.together)
        first, writer = self._ranks.is_first, None
        if options.store is not None and first:
            writer = Writer(options.store, model=called(model), every=options.every, rows=options.rows)
        self._telling = Telling(
            writer, options.sinks if first else (), alarms=options.alarms and first, on_alert=options.on_alert
        )
        self._clock = Clock(model, self._before, self._after, options.valve.masters.values() if options.valve else ())
        self._hot = False
        """Whether the step under way was read, so that the valve has to look at it."""
        self._looks = Looks(model, options.rows, traces=options.valve is not None, alone=self._ranks.count == 1)
        self._roster = Roster(model, self._looks, self._ranks, self._telling)
        valve = options.valve
        self._clipping = None if valve is None else Clipping(valve, model, self._roster, self._telling)
        self._coming: Gathering | None = None
        self._snapshots: dict[str, Path] = {}
        self._loss, self._loss_scale = StepLoss(), LossScale(options.scaler)
        self._by_hand = False
        self._ticks = self._blank = 0

    @property
    def layers(self) -> list[WatchedLayer]:
        """What readings are of."""
        return self._roster.layers

    @property
    def events(self) -> list[Event]:
        """What happened so far."""
        return self._telling.events

    @property
    def should_stop(self) -> bool:
        """Whether training should stop, since one who was told of an alert set this. Several processes agree on it at their
        next reading."""
        return self._wants_stop if self._ranks.count == 1 else self._stops

    @should_stop.setter
    def should_stop(self, wanted: bool) -> None:
        self._wants_stop = wanted

    @property
    def latest(self) -> Reading | None:
        """The last reading. The device is waited for if its numbers are still there."""
        self._safely(self._finish)
        return self._latest

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
        if step and (writer := self._telling.writer) is not None:
            writer.resume(step)
            self._roster.earlier = read(writer.path).readings
        self._clock.start()
        self._open()

    def stop(self) -> None:
        """End: the model, PyTorch and the optimizers are as they were."""
        self._clock.stop()
        self._miss_steps(PATIENCE)
        if self._looks.waits and not self._ticks and (n := self._clock.strangers) >= PATIENCE:
            self._telling.warn(NOT_TRAINED.format(n=n), self.step)
        for end in (self._looks.close, self._looks.stop, self._finish):
            self._safely(end)
        self._telling.close()

    def log(self, loss: Any) -> None:
        """The loss of this step, a number or a tensor, before the optimizer steps or right after, as the first time.
        Models that return one (`outputs.loss`) need not be helped, unless they are compiled."""
        self._miss_steps(LONG)
        loss = one_number(loss)
        late = self._ticks == 1 or (self._ticks > 1 and self._looks.waits)
        if self._loss.log(loss, late=late):
            self._add_late(loss)

    def _add_late(self, loss: Tensor | float | None) -> None:
        """Add the loss of the step before to its reading, wherever that is."""
        coming, done = self._coming, self._latest
        if coming is not None and coming.step == self.step - 1:
            coming.late_loss = Arriving(loss) if isinstance(loss, Tensor) else loss
        elif loss is not None and done is not None and done.loss is None and done.step == self.step - 1:
            self._latest = replace(done, loss=float(loss))
            if self._telling.writer is not None:
                self._telling.writer.reading(self._latest)

    def _miss_steps(self, forwards: int) -> None:
        if not self._ticks and self._looks.forwards >= forwards:
            self._telling.warn(NO_STEP, self.step)

    def stepped(self) -> None:
        """Say that the weights were updated, in a loop whose optimizer is none of PyTorch's, or holds copies of the model's
        parameters. From then on nothing else counts the steps."""
        counted, self._by_hand = bool(self._ticks) and not self._by_hand, True
        self._clock.stop()
        if not counted:
            self._after()

    def _before(self) -> None:
        self._safely(self._read)

    def _after(self) -> None:
        self._before()  # a closure runs the forward inside the optimizer's step
        self._blank = self._blank + 1 if self._looks.is_open else 0
        if self._blank == PATIENCE:
            self._telling.warn(NO_FORWARD.format(n=PATIENCE), self.step)
        self._looks.stepped()
        self._ticks += 1
        self._loss.forget()
        self.step += 1
        clipping, latest = self._clipping, self._latest
        if self._hot and clipping is not None and latest is not None:
            self._safely(partial(clipping.act, latest, self.step))
        self._hot = False
        self._open()

    def _open(self) -> None:
        due = self._looks.is_due and self._ranks.count == 1  # several processes look at the same steps
        if due or self.step % self.options.every == 0:
            self._safely(self._look)

    def _look(self) -> None:
        self._loss_scale.begin()
        self._looks.begin(self._roster.table)

    def _read(self) -> None:
        """Turn what the step's forwards added up to into a reading, once its numbers have come from the device."""
        if self._coming is not None and self._coming.numbers.is_here:
            self._finish()
        looked = self._looks.end(self._roster.table)
        self._say_what_failed()
        if looked is None:
            return
        self._finish()
        for module, snapshot in looked.snapshots.items():
            path, model = self._snapshots.pop(module), called(self.model)
            self._safely(partial(snapshot.save, path, model=model, module=module, step=self.step))
        self._roster.settle(looked, self.step)
        if table := self._roster.table:
            scale = self._loss_scale.of_step()
            about = {"step": self.step, "at": time.time(), "rows": self.options.rows, "loss_scale": scale}
            loss = self._loss.take(looked.result if self.believes else None)
            said = loss, self._wants_stop, self._roster.lacks(looked)
            self._coming = Gathering.of(looked, said, table, self._ranks, **about)
            if self._clipping is not None or not self._coming.numbers.waits:
                self._hot = self._finish()

    def _say_what_failed(self) -> None:
        """Tell of errors in the probe, and of modules that it could not look into."""
        errors, self._looks.errors = self._looks.errors, []
        for error in errors:
            self._telling.failed(error, self.step)
        self._telling.unseen(self._looks.unseen, self.step)

    def _finish(self) -> bool:
        """Tell of the reading whose numbers are on their way. Whether there is one."""
        coming, self._coming = self._coming, None
        if coming is None:
            return False
        reading, self._stops = coming.reading(), self._stops or coming.stops()
        self._roster.misses = coming.misses()
        if not coming.rows_seen():
            self._looks.silent()
            return False
        self._latest = reading
        if self._ranks.is_first:
            self._telling.reading(reading)
        return True

    def snapshot(self, layer: int, folder: str | PathLike[str]) -> Path:
        """Save q and k of a layer at the next step, for the sequence of the batch with the largest logit. Returns the file,
        which `isotherm check` opens. To be called from `on_alert`. Where several processes train, it is the next step that is
        looked at anyway, and this process's share of the batch."""
        module = list(self._roster.table)[layer][0]
        every = 1 if self._ranks.count == 1 else self.options.every
        path = Path(folder) / f"layer-{layer:02}-step-{(self.step // every + 1) * every}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._snapshots[module] = path
        self._looks.wanted.add(module)
        return path

    def scalars(self) -> dict[str, float]:
        """The latest reading as a tracker sees it, for whoever logs by himself. Nothing before there is one."""
        latest, summary = self.latest, self._telling.summary
        return {} if latest is None or summary is None else summary.numbers(latest)

    def _safely(self, work: Callable[[], object]) -> None:
        self._telling.safely(work, self.step)


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
