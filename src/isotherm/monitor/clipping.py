"""What the valve does after a step of the optimizer, and what is told of it. In several processes each does the same."""

import time

import numpy as np
from torch import nn

from isotherm.language import Text
from isotherm.monitor.roster import Roster
from isotherm.monitor.telling import Telling
from isotherm.monitor.valve import CLIPPED, Clip, Valve
from isotherm.record.watch import Event, Floats, Reading

NOT_EVERYWHERE = Text(
    "{layer}: it did not run in every process in the first step that was read, so it is not clipped",
    "{layer}：在首次读取的那一步中，并非每个进程都运行了它，因此不作裁剪",
)


class Clipping:
    """Lets a valve act on the layers of a run."""

    def __init__(self, valve: Valve, model: nn.Module, roster: Roster, telling: Telling) -> None:
        self._valve, self._model, self._roster, self._telling = valve, model, roster, telling

    def act(self, reading: Reading, step: int) -> None:
        """Clip what passed the valve's limit in the last reading."""
        origins, logits = self._roster.origins(), self._of_traced(reading.values["max_logit"], step)
        clips, refused = self._valve.act(self._model, self._roster.layers, origins, logits)
        for clip in clips:
            self._tell(clip, step)
        for why in refused:
            self._telling.warn(why, step)

    def _of_traced(self, logits: Floats, step: int) -> Floats:
        """The largest logits, NaN in layers whose projections are not known. In one process alone they will be, after the next
        look."""
        layers, traced = self._roster.layers, self._roster.traced()
        sizes = [layer.heads for layer in layers]
        parts = np.split(logits, np.cumsum(sizes)[:-1])
        for layer, known, part in zip(layers, traced, parts, strict=True):
            if self._roster.together and not known and (part > self._valve.tau).any():
                self._telling.warn(NOT_EVERYWHERE.format(layer=layer.name), step)
        return np.where(np.repeat(traced, sizes), logits, np.nan)

    def _tell(self, clip: Clip, step: int) -> None:
        numbers = {"heads": float(clip.heads), "max_logit": clip.largest, "factor": clip.smallest_factor}
        words = CLIPPED.format(layer=clip.layer.name, n=clip.heads, tau=self._valve.tau, largest=clip.largest)
        event = Event(step, time.time(), "valve", "qk-clip", clip.layer.number, None, words, numbers)
        self._telling.event(event)
