# mypy: disable-error-code="import-untyped, import-not-found"
"""Hand readings on to TensorBoard, Weights & Biases, MLflow and SwanLab.

Every sink gets the same few numbers and one layer × head picture of the gates at each reading. A number for each head would be
thousands of tags, with which trackers crawl; the store has them all. Nothing that is NaN or Inf is handed on.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from isotherm.language import Text
from isotherm.monitor import saying
from isotherm.record.watch import Event, Reading, WatchedLayer
from isotherm.report.draw.palette import ramp_colour

PREFIX = "attn"
PICTURE = f"{PREFIX}/gates"
WORST = 3
"""Heads that get a number of their own: the first ones that ever had the largest logit of all."""
CELL = 12
"""Pixels of a head in the picture."""
BLANK = (128, 128, 128)
"""The colour of a head that did not run, or has no number."""

NO_PICTURE = Text(
    "Pillow is not installed, so the trackers get the numbers and no picture",
    "没有安装 Pillow，因此跟踪工具只得到数值，没有图像",
)
Pixels = npt.NDArray[np.uint8]


class Sink(Protocol):
    """Takes readings and events while a model trains, and layers that were met later than the first ones."""

    def layers(self, layers: Sequence[WatchedLayer]) -> None: ...
    def reading(self, reading: Reading) -> None: ...
    def event(self, event: Event) -> None: ...
    def close(self) -> None: ...


class Summariser:
    """The numbers of a reading by their names in a tracker. Counts alerts, and remembers which heads were the worst."""

    def __init__(self, layers: Sequence[WatchedLayer]) -> None:
        self.alerts = 0
        self._worst: list[int] = []
        self.grow(layers)

    def grow(self, layers: Sequence[WatchedLayer]) -> None:
        """Have more layers, which come after those there are."""
        self.layers = tuple(layers)
        self._places = [(layer.number, head) for layer in layers for head in range(layer.heads)]

    def numbers(self, reading: Reading) -> dict[str, float]:
        """Means over all heads, the largest logit, the gradients that reached q and k, and the worst heads' logits."""
        values, logits = reading.values, reading.values["max_logit"]
        gradients = np.concatenate([reading.gradients[name] for name in ("q", "k")]).astype(float)
        found = {
            "entropy_mean": _mean(values["entropy"]),
            "entropy_min": _known(values["entropy"]).min(initial=np.inf),
            "max_logit": _known(logits).max(initial=-np.inf),
            "gate_mean": _mean(values["gate"]),
            "saturated_frac": _mean(values["saturated"]),
            "invalid_frac": _mean(values["invalid"]),
            "grad_qk_norm": np.sqrt(np.sum(_known(gradients) ** 2)) if _known(gradients).size else np.nan,
            "alerts": self.alerts,
        }
        for place in self._tracked(logits):
            layer, head = self._places[place]
            found[f"worst_L{layer:02}_H{head:02}"] = logits[place]
        return {f"{PREFIX}/{name}": float(value) for name, value in found.items() if np.isfinite(value)}

    def picture(self, reading: Reading) -> Pixels:
        """One square for each head, a row for each layer, coloured by its gate: [height, width, 3]."""
        widest = max((layer.heads for layer in self.layers), default=0)
        cells = np.full((max(len(self.layers), 1), max(widest, 1), 3), BLANK, np.uint8)
        start = 0
        for row, layer in enumerate(self.layers):
            for head, gate in enumerate(reading.values["gate"][start : start + layer.heads]):
                if np.isfinite(gate):
                    colour = ramp_colour(float(gate))
                    cells[row, head] = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
            start += layer.heads
        return cells.repeat(CELL, 0).repeat(CELL, 1)

    def event(self, event: Event) -> None:
        """Count an alert."""
        self.alerts += event.kind == "alert"

    def _tracked(self, logits: npt.NDArray[np.float32]) -> list[int]:
        known = np.isfinite(logits)
        if known.any():
            hottest = int(np.argmax(np.where(known, logits, -np.inf)))
            if hottest not in self._worst and len(self._worst) < WORST:
                self._worst.append(hottest)
        return self._worst


class _Tracker:
    """What the sinks have in common: a summary of the readings, and whether pictures can be made, which all libraries leave to
    Pillow."""

    def __init__(self, layers: Sequence[WatchedLayer]) -> None:
        self._summary, self._draws = Summariser(layers), find_spec("PIL") is not None
        if not self._draws:
            saying.warn(NO_PICTURE)

    def layers(self, layers: Sequence[WatchedLayer]) -> None:
        """Have more layers."""
        self._summary.grow(layers)

    def event(self, event: Event) -> None:
        """Count an alert."""
        self._summary.event(event)

    def close(self) -> None:
        """Leave the run open: whoever trains ends it."""


class TensorBoard(_Tracker):
    """Writes event files to a folder, or through a SummaryWriter of the caller's."""

    def __init__(self, layers: Sequence[WatchedLayer], where: Any) -> None:
        super().__init__(layers)
        self._own = isinstance(where, str) or hasattr(where, "__fspath__")
        if self._own:
            from torch.utils.tensorboard import SummaryWriter

            where = SummaryWriter(str(where))
        self._writer = where

    def reading(self, reading: Reading) -> None:
        """Add this reading's numbers and picture at its step."""
        for name, value in self._summary.numbers(reading).items():
            self._writer.add_scalar(name, value, reading.step, walltime=reading.at)
        if self._draws:
            picture = self._summary.picture(reading)
            self._writer.add_image(PICTURE, picture, reading.step, walltime=reading.at, dataformats="HWC")

    def event(self, event: Event) -> None:
        """Count an alert, and add its sentence as text."""
        self._summary.event(event)
        if event.kind == "alert":
            self._writer.add_text(f"{PREFIX}/alert", event.message.en, event.step, walltime=event.at)

    def close(self) -> None:
        """Close the files, unless the writer is the caller's."""
        self._writer.flush()
        if self._own:
            self._writer.close()


class WandB(_Tracker):
    """Logs to a run of Weights & Biases: one of the caller's, else the current one.

    The numbers have a step axis of their own, `attn/step`: W&B drops what is logged at a step that is past.
    """

    def __init__(self, layers: Sequence[WatchedLayer], run: Any = None) -> None:
        import wandb

        super().__init__(layers)
        self._image = wandb.Image
        self._run = run if run is not None else wandb.run or wandb.init()
        self._run.define_metric(f"{PREFIX}/step", hidden=True)
        self._run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")

    def reading(self, reading: Reading) -> None:
        """Log this reading's numbers and picture."""
        picture = {PICTURE: self._image(self._summary.picture(reading))} if self._draws else {}
        self._run.log({**self._summary.numbers(reading), **picture, f"{PREFIX}/step": reading.step})


class MLflow(_Tracker):
    """Logs to a run of MLflow: the one of this id, else the active one, which MLflow starts if there is none."""

    def __init__(self, layers: Sequence[WatchedLayer], run_id: str | None = None) -> None:
        import mlflow

        super().__init__(layers)
        self._client = mlflow.MlflowClient()
        self._run = run_id or (mlflow.active_run() or mlflow.start_run()).info.run_id

    def reading(self, reading: Reading) -> None:
        """Log this reading's numbers and picture at its step."""
        from mlflow.entities import Metric

        at = round(reading.at * 1000)
        metrics = [Metric(name, value, at, reading.step) for name, value in self._summary.numbers(reading).items()]
        self._client.log_batch(self._run, metrics=metrics)
        if self._draws:
            picture = self._summary.picture(reading)
            self._client.log_image(self._run, picture, key=PICTURE, step=reading.step, timestamp=at)


class SwanLab(_Tracker):
    """Logs to the current run of SwanLab."""

    def __init__(self, layers: Sequence[WatchedLayer]) -> None:
        import swanlab

        super().__init__(layers)
        self._swanlab = swanlab
        if swanlab.get_run() is None:
            swanlab.init()

    def reading(self, reading: Reading) -> None:
        """Log this reading's numbers and picture at its step."""
        picture = {PICTURE: self._swanlab.Image(self._summary.picture(reading))} if self._draws else {}
        self._swanlab.log({**self._summary.numbers(reading), **picture}, step=reading.step)


def _known(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values[np.isfinite(values)]


def _mean(values: npt.NDArray[np.float32]) -> float:
    known = _known(values)
    return float(known.mean()) if known.size else np.nan
