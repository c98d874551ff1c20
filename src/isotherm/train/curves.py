"""Learning curves as a figure, which `report.draw` shows on a terminal or as SVG."""

from collections.abc import Mapping, Sequence

from isotherm.language import Text
from isotherm.record import Figure, Line

LOSS = Text("held-out loss (nats per token)", "留出损失（每词元 nat 数）")
TITLE = Text("Learning under each scale rule", "各缩放规则下的学习")
_STEP = Text("step", "步数")


Curve = Sequence[tuple[int, float]]
"""Points (step, value), by step."""


def figure(curves: Mapping[str, Curve]) -> Figure:
    """The curves, by name, over one pair of axes."""
    lines = tuple(
        Line(Text(name, name), tuple(float(step) for step, _ in points), tuple(value for _, value in points))
        for name, points in curves.items()
    )
    return Figure("curves", TITLE, _STEP, LOSS, lines)
