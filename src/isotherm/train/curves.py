"""Learning curves for a terminal and for a page, with nothing to install."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from math import ceil, floor, log10
from unicodedata import east_asian_width

from isotherm.language import Text

MARKS = "●×▲◇"
COLOURS = ("#2563eb", "#dc2626", "#059669", "#7c3aed")
_STEP = Text("step", "步数")


@dataclass(frozen=True)
class Curve:
    """A name and points (step, value), by step."""

    name: str
    points: tuple[tuple[int, float], ...]

    def at(self, step: float) -> float | None:
        """The value at a step, on the line between the nearest points; None outside them."""
        for (left, low), (right, high) in zip(self.points, self.points[1:], strict=False):
            if left <= step <= right:
                return low + (high - low) * (step - left) / (right - left)
        return next((value for place, value in self.points if place == step), None)


def plot(curves: Sequence[Curve], label: Text, *, width: int = 64, height: int = 16) -> str:
    """The curves in characters, with the value's name above, ticks on both axes and what each mark means below."""
    steps, values = _extent(curves)
    grid = [[" "] * width for _ in range(height)]
    for mark, curve in zip(cycle(MARKS), curves, strict=False):
        for column in range(width):
            value = curve.at(steps[0] + (steps[1] - steps[0]) * column / (width - 1))
            if value is not None:
                row = round((height - 1) * (values[1] - value) / (values[1] - values[0]))
                grid[row][column] = mark
    ticks = {round(part * (height - 1)): values[1] - (values[1] - values[0]) * part for part in (0, 0.25, 0.5, 0.75, 1)}
    body = [
        f"{f'{ticks[row]:.2f}' if row in ticks else '':>7} ┤{''.join(line)}".rstrip() for row, line in enumerate(grid)
    ]
    first, last = str(steps[0]), str(steps[1])
    name = str(_STEP)
    gap = width - len(first) - len(last) - _cells(name)
    foot = [
        " " * 8 + "└" + "─" * width,
        " " * 9 + first + " " * (gap // 2) + name + " " * (gap - gap // 2) + last,
    ]
    legend = [f"{' ' * 9}{mark} {curve.name}" for mark, curve in zip(cycle(MARKS), curves, strict=False)]
    return "\n".join([f"{' ' * 9}{label}", *body, *foot, *legend])


def svg(curves: Sequence[Curve], label: Text, title: Text) -> str:
    """The same as an SVG picture, readable on a light and on a dark page."""
    width, height, left, top, right, bottom = 720, 420, 64, 56, 24, 56
    steps, values = _extent(curves)

    def x(step: float) -> float:
        return left + (width - left - right) * (step - steps[0]) / (steps[1] - steps[0])

    def y(value: float) -> float:
        return top + (height - top - bottom) * (values[1] - value) / (values[1] - values[0])

    parts = [f'<text x="{left}" y="26" font-size="16" font-weight="600">{escape(str(title))}</text>']
    for value in _round(*values):
        parts += [
            f'<line x1="{left}" x2="{width - right}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#e5e7eb"/>',
            f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>',
        ]
    for step in _round(*steps, least=1.0):
        parts.append(f'<text x="{x(step):.1f}" y="{height - bottom + 20}" text-anchor="middle">{step:.0f}</text>')
    parts.append(f'<text x="{left}" y="{top - 10}">{escape(str(label))}</text>')
    parts.append(f'<text x="{width - right}" y="{height - 14}" text-anchor="end">{escape(str(_STEP))}</text>')
    for place, (colour, curve) in enumerate(zip(cycle(COLOURS), curves, strict=False)):
        points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in curve.points)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        end, value = curve.points[-1]
        parts.append(f'<circle cx="{x(end):.1f}" cy="{y(value):.1f}" r="3.5" fill="{colour}"/>')
        row = top + 18 + 18 * place
        parts.append(f'<rect x="{width - right - 180}" y="{row - 9}" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{width - right - 158}" y="{row - 3}">{escape(curve.name)}</text>')
    style = 'font-family="system-ui, sans-serif" font-size="12" fill="#374151"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {style}>'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _extent(curves: Sequence[Curve]) -> tuple[tuple[int, int], tuple[float, float]]:
    steps = [step for curve in curves for step, _ in curve.points]
    values = [value for curve in curves for _, value in curve.points]
    low, high = min(values), max(values)
    last = max(steps)
    return (min(steps), last if last > min(steps) else last + 1), (low, high if high > low else low + 1.0)


def _round(low: float, high: float, *, least: float = 0.01) -> list[float]:
    """Round numbers from low to high, three to six of them where they are not closer than `least`.

    >>> _round(25, 400), _round(2.0, 6.0)
    ([100.0, 200.0, 300.0, 400.0], [2.0, 3.0, 4.0, 5.0, 6.0])
    """
    power = 10.0 ** floor(log10((high - low) / 5))
    gap = max(least, next(power * times for times in (1, 2, 5, 10) if (high - low) / (power * times) <= 5))
    return [place * gap for place in range(ceil(low / gap - 1e-9), floor(high / gap + 1e-9) + 1)]


def _cells(text: str) -> int:
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)
