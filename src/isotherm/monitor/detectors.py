"""Detectors: rules that say, for every head or every layer, whether something is wrong now.

`DEFAULT` states each threshold with its reason. A layer that did not run is NaN, and no rule holds for it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from isotherm.checkup.thresholds import DIVERGING, FINITE, LARGE, SATURATED
from isotherm.language import Text
from isotherm.record.watch import Floats, Reading, WatchedLayer

EARLY = 5
"""Readings of a layer whose mean is the early value of a statistic."""
SETTLING = ("entropy", "saturated")
"""The statistics that have early values."""
WINDOW = 16
"""Readings over which growth is measured."""

Marks = npt.NDArray[np.bool_]
Place = Literal["head", "layer", "model"]


@dataclass
class History:
    """What rules look at: the latest reading, the last few, and early values, by head and by layer."""

    layers: tuple[WatchedLayer, ...] = ()
    readings: deque[Reading] = field(default_factory=lambda: deque(maxlen=WINDOW))
    largest: deque[npt.NDArray[np.float64]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """The largest logit of each layer in each of these readings."""
    early: dict[str, npt.NDArray[np.float64]] = field(default_factory=lambda: dict.fromkeys(SETTLING, np.zeros((2, 0))))
    """The sum of each layer's first values of a statistic, and how many these are: [2, layers]."""

    def grow(self, layers: Sequence[WatchedLayer]) -> None:
        """Have more layers, which come after those there are. In what was seen so far they did not run."""
        self.layers = tuple(layers)
        sizes = np.array([layer.heads for layer in layers], np.intp)
        self._some = sizes > 0  # numpy cannot reduce over no heads
        self._starts = (np.cumsum(sizes) - sizes)[self._some]
        self._heads = int(sizes.sum())
        for place, reading in enumerate(self.readings):
            self.readings[place] = self._whole(reading)
        for place, largest in enumerate(self.largest):
            self.largest[place] = _padded(largest, len(layers))
        for name, early in self.early.items():
            self.early[name] = np.pad(early, ((0, 0), (0, len(layers) - early.shape[1])))

    def _whole(self, reading: Reading) -> Reading:
        """A reading with a value for every head, also of layers that were added later."""
        return replace(reading, values={name: _padded(values, self._heads) for name, values in reading.values.items()})

    def add(self, reading: Reading) -> None:
        """Take a reading. One of the last one's step replaces it; an earlier step means that the run went back, and growth is
        measured anew."""
        if self.readings and reading.step == self.readings[-1].step:
            self.readings.pop()
            self.largest.pop()
        if self.readings and reading.step < self.readings[-1].step:
            self.readings.clear()
            self.largest.clear()
        self.readings.append(self._whole(reading))
        self.largest.append(self._reduced(np.maximum, self.heads("max_logit").astype(float), -np.inf))
        for name, (total, count) in self.early.items():
            now = self.by_layer(name)
            first = np.isfinite(now) & (count < EARLY)
            total[first] += now[first]
            count[first] += 1

    def heads(self, name: str) -> Floats:
        """A statistic of every head now."""
        return self.readings[-1].values[name]

    def by_layer(self, name: str) -> Floats:
        """A statistic now, as the mean over the heads of each layer."""
        values = self.heads(name)
        known = np.isfinite(values)
        with np.errstate(invalid="ignore"):
            total = self._reduced(np.add, np.where(known, values, 0).astype(float), 0)
            return (total / self._reduced(np.add, known.astype(float), 0)).astype(np.float32)

    def hottest(self) -> npt.NDArray[np.intp]:
        """The head of each layer that has its largest logit now."""
        parts = np.split(self.heads("max_logit"), np.cumsum([layer.heads for layer in self.layers])[:-1])
        return np.array([np.argmax(part) if len(part) else 0 for part in parts], np.intp)

    def _reduced(self, how: np.ufunc, values: npt.NDArray[np.float64], nothing: float) -> npt.NDArray[np.float64]:
        """Over the heads of each layer."""
        found = np.full(len(self.layers), float(nothing))
        if len(self._starts):
            found[self._some] = how.reduceat(values, self._starts)
        return found

    def early_value(self, name: str) -> Floats | None:
        """The mean of each layer's first readings, NaN where there are not enough; None if that is so everywhere."""
        total, count = self.early[name]
        enough = count == EARLY
        return np.where(enough, total / EARLY, np.nan).astype(np.float32) if enough.any() else None


@dataclass(frozen=True)
class Sign:
    """Where a rule holds now, how bad it is there (larger is worse), and the numbers to tell. A rule about layers may name the
    head of each layer that it is about."""

    marks: Marks
    badness: Floats
    numbers: dict[str, npt.NDArray[np.float64]]
    heads: npt.NDArray[np.intp] | None = None


@dataclass(frozen=True)
class Detector:
    """A detector: a name, the reason for its threshold, a sentence with places for its numbers, and where it holds now."""

    id: str
    reason: Text
    place: ClassVar[Place]
    sentence: ClassVar[Text]

    def look(self, history: History) -> Sign | None:
        """Where the rule holds now; None before it can be known."""
        raise NotImplementedError


@dataclass(frozen=True)
class Passes(Detector):
    """The largest logit of a head is past a limit."""

    limit: float
    place: ClassVar[Place] = "head"
    sentence: ClassVar[Text] = Text(
        "the largest logit is {max_logit:.3g}, past {limit:g}", "最大 logit 为 {max_logit:.3g}，超过 {limit:g}"
    )

    def look(self, history: History) -> Sign | None:
        now = history.heads("max_logit")
        return Sign(now > self.limit, now, {"max_logit": _wide(now), "limit": np.full(len(now), self.limit)})


@dataclass(frozen=True)
class Grows(Detector):
    """The largest logit of a layer grows steadily, and at this rate passes a limit soon.

    A line is fitted to the last readings. The rule holds if its end is past `part` of the limit, its slope is `sure` times the
    slope's standard error, and it meets the limit within `ahead` times the steps that it was fitted over. Growth by equal
    amounts is what decides, because a logit that settles looks exponential for a while; growth by equal factors gives the
    earlier of the two steps told.
    """

    limit: float
    part: float = 0.3
    sure: float = 6.0
    ahead: float = 2.0
    place: ClassVar[Place] = "layer"
    sentence: ClassVar[Text] = Text(
        "the largest logit is {max_logit:.3g} and grows by {growth:.2g} in 1000 steps; at this rate it passes {limit:g} between"
        " step {soon:.0f} and step {late:.0f}",
        "最大 logit 为 {max_logit:.3g}，每 1000 步增长 {growth:.2g}；照此速度将在第 {soon:.0f} 到 {late:.0f} 步之间"
        "超过 {limit:g}",
    )

    def look(self, history: History) -> Sign | None:
        if len(history.readings) < WINDOW:
            return None
        steps = np.array([reading.step for reading in history.readings], float)
        logits = np.stack(history.largest)
        now = logits[-1]
        with np.errstate(all="ignore"):
            slope, error, end = _line(steps, logits)
            late = (self.limit - end) / slope
            marks = (end > self.part * self.limit) & (now < self.limit) & (slope > self.sure * error)
            marks &= late < self.ahead * (steps[-1] - steps[0])
            factor, _, end = _line(steps, np.log(logits))
            soon = np.clip((np.log(self.limit) - end) / factor, 0, late)
        numbers = {"max_logit": now, "growth": 1000 * slope, "soon": steps[-1] + soon, "late": steps[-1] + late}
        numbers["limit"] = np.full(len(now), self.limit)
        heads = history.hottest() if marks.any() else np.zeros(len(now), np.intp)
        return Sign(marks, slope.astype(np.float32), numbers, heads)


@dataclass(frozen=True)
class Falls(Detector):
    """The mean entropy of a layer is below a part of its early value."""

    part: float
    place: ClassVar[Place] = "layer"
    sentence: ClassVar[Text] = Text(
        "the mean entropy is {entropy:.3g} of ln n; it began at {early:.3g}",
        "平均熵为 ln n 的 {entropy:.3g}；起初为 {early:.3g}",
    )

    def look(self, history: History) -> Sign | None:
        now, early = history.by_layer("entropy"), history.early_value("entropy")
        if early is None:
            return None
        return Sign(now < self.part * early, -now, {"entropy": _wide(now), "early": _wide(early)})


@dataclass(frozen=True)
class Rises(Detector):
    """The share of a layer's rows that are saturated is past a limit, and has risen there."""

    limit: float
    by: float
    place: ClassVar[Place] = "layer"
    sentence: ClassVar[Text] = Text(
        "{saturated:.0%} of the rows are saturated (their gate is below {gate:g}); it began at {early:.0%}",
        "{saturated:.0%} 的行已饱和（闸门低于 {gate:g}）；起初为 {early:.0%}",
    )

    def look(self, history: History) -> Sign | None:
        now, early = history.by_layer("saturated"), history.early_value("saturated")
        if early is None:
            return None
        numbers = {"saturated": _wide(now), "early": _wide(early), "gate": np.full(len(now), SATURATED)}
        return Sign((now > self.limit) & (now > early + self.by), now, numbers)


@dataclass(frozen=True)
class Breaks(Detector):
    """Rows hold NaN or Inf. Told for the first layer that has some: those after it got them from there."""

    place: ClassVar[Place] = "model"
    sentence: ClassVar[Text] = Text(
        "NaN or Inf in {invalid:.2%} of the rows; this is the first layer that has some",
        "{invalid:.2%} 的行含 NaN 或 Inf；这是最先出现的一层",
    )

    def look(self, history: History) -> Sign | None:
        share = history.heads("invalid")
        marks = (share > 0) | np.isposinf(history.heads("max_logit"))
        return Sign(marks, share, {"invalid": _wide(share)})


DEFAULT: tuple[Detector, ...] = (
    Breaks("invalid", FINITE),
    Passes("max-logit-1e4", DIVERGING.reason, DIVERGING.value),
    Passes("max-logit-100", LARGE.reason, LARGE.value),
    Grows("logit-growth-1e4", DIVERGING.reason, DIVERGING.value, part=0.01),
    Grows("logit-growth-100", LARGE.reason, LARGE.value),
    Falls(
        "entropy-collapse",
        Text(
            "A mean entropy that falls towards zero goes before divergence (Zhai et al. 2023, arXiv:2303.06296).",
            "平均熵趋近于零会先于发散出现（Zhai 等 2023，arXiv:2303.06296）。",
        ),
        part=0.1,
    ),
    Rises(
        "saturation",
        Text(
            "Three quarters of the layer's rows pass less than a twentieth of the gradient, and it was not built so. Layers of"
            " small models that learn well reach half (benchmarks/results/healthy_cpu.csv).",
            "该层四分之三的行只能通过不到二十分之一的梯度，而起初并非如此。学得好的小模型里，有的层会达到一半"
            "（benchmarks/results/healthy_cpu.csv）。",
        ),
        limit=0.75,
        by=0.3,
    ),
)


def _padded(values: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """The values, and NaN up to a length."""
    return np.concatenate([values, np.full(length - len(values), np.nan, values.dtype)])


def _wide(values: Floats) -> npt.NDArray[np.float64]:
    return values.astype(np.float64)


def _line(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """For each column of y: the slope of its least-squares line, the slope's standard error, the line's end."""
    away = x - x.mean()
    slope = away @ (y - y.mean(0)) / (away @ away)
    rest = y - y.mean(0) - np.outer(away, slope)
    error = np.sqrt((rest**2).sum(0) / (len(x) - 2) / (away @ away))
    return slope, error, y.mean(0) + slope * away[-1]
