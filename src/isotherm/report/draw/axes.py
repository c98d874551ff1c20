"""Ranges, ticks and places along an axis, the same for every back end."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log, log10

from isotherm.record import Figure, Heatmap, Line
from isotherm.report import digits

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
LEAST = 1e-150
"""The smallest number above 0 that an axis shows; the largest is 1/LEAST."""
FEW = 9
"""Up to this many different x each get a tick; more get round numbers."""
FEW_PLACES = 4
"""With fewer different x than this, the axis goes on beyond the first and the last."""


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic range and the values marked on it."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]

    def place(self, value: float | None) -> float | None:
        """Where a value lies, from 0 at `low` to 1 at `high`; None where the axis cannot show it."""
        if value is None or not _fits(value, self.log):
            return None
        if self.log:
            return (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return (value - self.low) / (self.high - self.low)

    def label(self, tick: float) -> str:
        """A tick in words. Among powers of ten a far one is 10ⁿ; others have as many places as tell the ticks apart."""
        if self.log and not 1e-2 <= tick < 1e4 and all(log10(it) == round(log10(it)) for it in self.ticks):
            return f"10{str(round(log10(tick))).translate(_SUPERSCRIPT)}"
        reach = max((abs(other) for other in self.ticks), default=0.0)
        if tick == int(tick) and abs(tick) < 1e6 and (self.log or reach == 0):
            return f"{int(tick)}".replace("-", "−")
        if self.log or len(self.ticks) < 2 or not 1e-2 <= reach < 1e6:
            if 1e-3 <= abs(tick) < 1e6:
                return f"{tick:.3g}".replace("-", "−")
            needed = (n for n in range(3, 12) if len({digits.number(it, n) for it in self.ticks}) == len(self.ticks))
            return digits.number(tick, next(needed, 3))
        step = min(after - before for before, after in pairwise(self.ticks))
        places = next((count for count in range(7) if abs(round(step, count) - step) < 1e-6 * step), 7)
        return f"{tick:.{places}f}".replace("-", "−")


def axes(figure: Figure) -> tuple[Axis, Axis]:
    """The x and the y axis of a figure, wide enough for every curve and band."""
    xs = sorted({x for line in figure.lines for x in line.x if _fits(x, figure.x_log)})
    ys = [y for line in figure.lines for y in _values(line) if y is not None and _fits(y, figure.y_log)]
    few = tuple(xs) if len(xs) <= FEW and (figure.bars or figure.x_log) else None
    across = make(xs, figure.x_log, few, room=len(xs) < FEW_PLACES)
    upward = make([*ys, 0.0] if figure.bars and not figure.y_log else ys, figure.y_log, room=True)
    return across, upward


def value_axis(heatmap: Heatmap) -> Axis:
    """The range of a heat map's values: 0 to 1 where all of them lie in it, as far below 0 as above it where both occur."""
    known = [value for row in heatmap.values for value in row if value is not None and _fits(value, log=False)]
    if known and min(known) >= 0 and max(known) <= 1:
        return make([0.0, 1.0], log=False)
    if known and min(known) < 0 < max(known):  # 0 in the middle of the ramp
        reach = max(map(abs, known))
        return make([-reach, reach], log=False)
    return make(known, log=False)


def label(value: float) -> str:
    """A value that stands by itself, such as the x of a bar or of a column of cells."""
    return Axis(0, 1, False, ()).label(value)


def boundary(heatmap: Heatmap) -> list[tuple[float, float]]:
    """The points of a heat map's boundary that lie on its cells, counted in columns and rows from 0."""
    line = heatmap.boundary
    points = []
    for x, y in zip(line.x, line.y, strict=True) if line is not None else ():
        column, row = rank(heatmap.xs, x), None if y is None else rank(heatmap.ys, y)
        if column is not None and row is not None:
            points.append((column, row))
    return points


def rank(marks: Sequence[float], value: float) -> float | None:
    """The place of a value among the marks, counted from 0, interpolated between them; None outside.

    >>> rank((16, 32, 64), 32), rank((1, 10), 1e3) is None
    (1.0, True)
    """
    powers = all(mark > 0 for mark in marks) and value > 0
    scale = [log(mark) if powers else mark for mark in marks]
    at = log(value) if powers else value
    if len(scale) < 2:
        return None
    low = min(max(bisect_right(scale, at) - 1, 0), len(scale) - 2)
    if scale[low] == scale[low + 1]:
        return None
    place = low + (at - scale[low]) / (scale[low + 1] - scale[low])
    return place if -0.5 <= place <= len(scale) - 0.5 else None


def make(values: Iterable[float], log: bool, ticks: tuple[float, ...] | None = None, room: bool = False) -> Axis:
    """An axis over these values. `room` leaves a margin beyond them, and starts a linear axis at 0 where that is near."""
    known = list(values)
    low, high = (min(known), max(known)) if known else (1.0, 10.0)
    if log:
        if high / low < 1.5:
            low, high = low / 2, high * 2
        elif room:
            spare = (high / low) ** 0.04
            low, high = low / spare, high * spare
        return Axis(low, high, True, ticks or _powers(low, high))
    if high == low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    elif room:
        spare = 0.04 * (high - low)
        low = min(low, 0.0) if 0 <= low < 0.35 * high else low - spare if low else 0.0
        high = max(high, 0.0) if -0.35 * low > -high >= 0 else high + spare if high else 0.0
    return Axis(low, high, False, ticks or _round_numbers(low, high))


def _values(line: Line) -> Iterator[float | None]:
    yield from line.y
    yield from line.low or ()
    yield from line.high or ()


def _fits(value: float, log: bool) -> bool:
    """Whether an axis can show the value. Quotients and differences of numbers near float64's limits are 0 or infinite."""
    return (LEAST <= abs(value) <= 1 / LEAST and (not log or value > 0)) or (value == 0 and not log)


def _round_numbers(low: float, high: float, most: int = 6) -> tuple[float, ...]:
    rough = (high - low) / most
    power = 10 ** floor(log10(rough))
    step = power * next((size for size in (1, 2, 2.5, 5) if size * power >= rough), 10)
    first = ceil(low / step - 1e-9)
    count = floor(high / step + 1e-9) - first + 1
    return tuple(float(f"{(first + i) * step:.12g}") for i in range(count))


def _powers(low: float, high: float, most: int = 6) -> tuple[float, ...]:
    """Powers of ten, at most `most` of them; within two decades also 2 and 5 times a power."""
    first, last = ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9)
    if last - first < 2:
        sizes = (1, 2, 5) if last - first >= 0 and high / low > 8 else (1, 1.5, 2, 3, 5, 7)
        between = (float(f"{size * 10.0**power:.3g}") for power in range(first - 1, last + 1) for size in sizes)
        return tuple(tick for tick in between if low <= tick <= high)
    step = ceil((last - first + 1) / most)
    return tuple(10.0**power for power in range(first, last + 1, step))
