"""Learning curves as a figure, which `report.draw` shows on a terminal or as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

from isotherm.language import Text
from isotherm.record import Figure, Line

LOSS = Text("held-out loss (nats per token)", "留出损失（每词元 nat 数）")
TITLE = Text("Learning under each scale rule", "各缩放规则下的学习")
_STEP = Text("step", "步数")


@dataclass(frozen=True)
class Curve:
    """A name and points (step, value), by step."""

    name: str
    points: tuple[tuple[int, float], ...]


def figure(curves: Sequence[Curve], *, y: Text = LOSS, title: Text = TITLE) -> Figure:
    """The curves over one pair of axes."""
    lines = tuple(
        Line(Text(one.name, one.name), tuple(float(step) for step, _ in one.points), tuple(y for _, y in one.points))
        for one in curves
    )
    return Figure("curves", title, _STEP, y, lines)
