"""A run's readings as series: by layer, by head, over stretches of time, with the words for each statistic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from isotherm.language import Text
from isotherm.record.watch import Event, EventKind, WatchRecord
from isotherm.report.digits import thousands

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Statistic:
    """How a statistic is shown: its words, whether large is sharp, and what stands for several heads or readings."""

    key: str
    name: Text
    short: Text
    caption: Text
    of_several: Literal["mean", "largest"]
    sharp_high: bool
    unit_interval: bool


SHOWN: Final = (
    Statistic(
        "max_logit",
        Text("Largest logit", "最大 logit"),
        Text("max logit", "最大 logit"),
        Text(
            "The largest logit of any row. Kimi K2 clips at 100; every run past 1e4 diverged (Wortsman et al. 2023).",
            "所有行中最大的 logit。Kimi K2 在 100 处裁剪；超过 1e4 的训练全部发散（Wortsman 等 2023）。",
        ),
        "largest",
        sharp_high=True,
        unit_interval=False,
    ),
    Statistic(
        "entropy",
        Text("Entropy, as a share of ln n", "熵，占 ln n 的比例"),
        Text("entropy", "熵"),
        Text("Mean over rows: 1 is attention spread evenly, 0 an arg-max.", "各行均值：1 为均匀分布，0 为 arg-max。"),
        "mean",
        sharp_high=False,
        unit_interval=True,
    ),
    Statistic(
        "gate",
        Text("Gradient gate, mean", "梯度闸门，均值"),
        Text("gate", "闸门"),
        Text(
            "Mean of 1 − Σp²: 1 lets the gradient through, 0 passes none.",
            "1 − Σp² 的均值：1 表示梯度畅通，0 为无法通过。",
        ),
        "mean",
        sharp_high=False,
        unit_interval=True,
    ),
    Statistic(
        "saturated",
        Text("Share of saturated rows", "饱和行的比例"),
        Text("saturated", "饱和"),
        Text(
            "Rows whose gate is below 0.05: they pass less than a twentieth of the gradient.",
            "闸门低于 0.05 的行：只能通过不到二十分之一的梯度。",
        ),
        "mean",
        sharp_high=True,
        unit_interval=True,
    ),
    Statistic(
        "logit_std",
        Text("Spread of the logits", "logits 的标准差"),
        Text("logit std", "logit 标准差"),
        Text("Mean over rows of the standard deviation of a row's logits.", "每行 logits 标准差的均值。"),
        "mean",
        sharp_high=True,
        unit_interval=False,
    ),
    Statistic(
        "invalid",
        Text("Share of rows with NaN or Inf", "含 NaN 或 Inf 的行的比例"),
        Text("NaN, Inf", "NaN、Inf"),
        Text("Any is one too many.", "出现任何一行都不应该。"),
        "largest",
        sharp_high=True,
        unit_interval=True,
    ),
)
KINDS: Final[dict[EventKind, Text]] = {
    "alert": Text("alert", "警报"),
    "valve": Text("valve", "调节"),
    "trouble": Text("trouble", "故障"),
    "gap": Text("gap", "缺口"),
    "resumed": Text("resumed", "续训"),
}
GLYPHS: Final[dict[EventKind, str]] = {"alert": "▲", "valve": "◆", "trouble": "✖", "gap": "…", "resumed": "↻"}
QUIET: Final = Text("No alert so far", "目前没有警报")
ONE_ALERT: Final = Text("1 alert, at step {step}", "1 条警报，在第 {step} 步")
ALERTS: Final = Text("{n} alerts, the first at step {step}", "{n} 条警报，最早在第 {step} 步")


def statistic(key: str) -> Statistic:
    """How a statistic is shown."""
    return next(one for one in SHOWN if one.key == key)


def verdict(record: WatchRecord) -> Text:
    """How many alerts there are, and when the first was."""
    alerts = [event.step for event in record.events if event.kind == "alert"]
    if not alerts:
        return QUIET
    return (ONE_ALERT if len(alerts) == 1 else ALERTS).format(n=len(alerts), step=thousands(min(alerts)))


def heads(record: WatchRecord, key: str) -> Values:
    """A statistic of every head at every reading: [readings, heads]."""
    count = sum(layer.heads for layer in record.layers)
    rows = [reading.values[key] for reading in record.readings]
    return np.array(rows, float).reshape(len(rows), count)


def by_layer(record: WatchRecord, key: str) -> Values:
    """A statistic of every layer at every reading, over its heads: [readings, layers]."""
    values, ends = heads(record, key), np.cumsum([layer.heads for layer in record.layers])[:-1]
    how = statistic(key).of_several
    parts = [together(part, how, axis=1) for part in np.split(values, ends, axis=1)]
    return np.stack(parts, 1) if parts else values[:, :0]


def together(values: Values, how: Literal["mean", "largest"], axis: int) -> Values:
    """The mean or the largest of what is known; NaN where nothing is. Inf counts among the largest only."""
    known = np.isfinite(values) if how == "mean" else ~np.isnan(values)
    if how == "largest":
        found = np.where(known, values, -np.inf).max(axis, initial=-np.inf)
    else:
        with np.errstate(invalid="ignore"):
            found = np.where(known, values, 0).sum(axis) / known.sum(axis)
    return np.where(known.any(axis), found, np.nan)


@dataclass(frozen=True)
class Stretch:
    """Readings in a row that are shown as one: from index `start` to before `end`, from step `first` to step `last`."""

    start: int
    end: int
    first: int
    last: int


def stretches(record: WatchRecord, most: int) -> list[Stretch]:
    """At most this many stretches of equally many readings, but for the last one."""
    steps = [reading.step for reading in record.readings]
    size = max(-(-len(steps) // max(most, 1)), 1)
    starts = range(0, len(steps), size)
    return [Stretch(at, min(at + size, len(steps)), steps[at], steps[min(at + size, len(steps)) - 1]) for at in starts]


def over(values: Values, parts: Sequence[Stretch], how: Literal["mean", "largest"]) -> Values:
    """Values [readings, …] as one for each stretch: [stretches, …]."""
    if not parts:
        return values[:0]
    return np.stack([together(values[part.start : part.end], how, axis=0) for part in parts])


def worst_heads(record: WatchRecord, most: int) -> list[int]:
    """The heads with the largest logits now, those with NaN or Inf first; heads that did not run are left out."""
    if not record.readings:
        return []
    now = record.readings[-1].values
    invalid = np.nan_to_num(now["invalid"]) > 0
    known = invalid | ~np.isnan(now["max_logit"])
    order = np.lexsort((-np.nan_to_num(now["max_logit"], nan=-np.inf), ~invalid))
    return [int(place) for place in order if known[place]][:most]


def place_of(record: WatchRecord, flat: int) -> tuple[int, int]:
    """Which layer, by its place in the record, and which of its heads stands at a place among all heads."""
    for row, layer in enumerate(record.layers):
        if flat < layer.heads:
            return row, flat
        flat -= layer.heads
    raise IndexError(flat)


def latest(record: WatchRecord, most: int) -> list[Event]:
    """The latest events, the newest first."""
    return sorted(record.events, key=lambda event: (event.step, event.at), reverse=True)[:most]
