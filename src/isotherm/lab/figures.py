"""Figures as claims draw them: labels that several share, plain curves, maps of heads, losses while training."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from isotherm.lab.interval import line_over_seeds
from isotherm.language import Text
from isotherm.record import Figure, Heatmap, Line
from isotherm.record.claim import Source

D = Text("d (dimensions)", "d（维）")
D_K = Text("d_k (dimensions)", "d_k（维）")
POSITIONS = Text("n (positions)", "n（位置数）")
LAYER, HEAD = Text("layer", "层"), Text("head", "头")
TRAINING_STEP = Text("training step", "训练步")
IN_SEQUENCE = Text("operations in sequence", "依次执行的运算数")
MILLISECONDS = Text("time (ms)", "时间（毫秒）")
LOGIT_STD = Text("logit standard deviation (nats)", "logit 标准差（nat）")
LARGEST_ENTRY = Text("largest |J_ij| (probability per nat)", "最大 |J_ij|（概率/nat）")
SHARE_OF_DRAWS = Text("share of draws", "抽样比例")
MEAN, MEASURED = Text("mean", "均值"), Text("measured", "实测")
QUANTILES = {
    0.1: Text("10th percentile", "10 % 分位"),
    0.5: Text("median", "中位数"),
    0.9: Text("90th percentile", "90 % 分位"),
}


def figure(name: str, caption: Text, x: Text, y: Text, lines: Iterable[Line], log: str = "") -> Figure:
    """Curves over one pair of axes; `log` names the logarithmic ones: "x", "y" or "xy"."""
    return Figure(name, caption, x, y, tuple(lines), "x" in log, "y" in log)


def curve(
    name: Text, x: Sequence[Any], y: Callable[[Any], float | None] | Iterable[float | None], source: Source = "measured"
) -> Line:
    """A curve without a band; `y` is a function of x, or its values."""
    values = map(y, x) if callable(y) else y
    return Line(name, tuple(map(float, x)), tuple(values), source=source)


def predicted(name: Text, x: Sequence[Any], y: Callable[[Any], float | None] | Iterable[float | None]) -> Line:
    """A curve from theory."""
    return curve(name, x, y, "predicted")


def level(name: Text, x: Sequence[float], y: float, source: Source = "predicted") -> Line:
    """A horizontal line from the first x to the last."""
    return curve(name, (x[0], x[-1]), (y, y), source)


def heads_map(name: str, caption: Text, value: Text, values: Tensor) -> Heatmap:
    """A number for each head of each layer, values [layers, heads]."""
    layers, heads = (tuple(map(float, range(count))) for count in values.shape)
    return Heatmap(name, caption, HEAD, LAYER, value, heads, layers, tuple(map(tuple, values.tolist())))


def training_loss(
    name: str, caption: Text, y: Text, steps: Sequence[int], losses: Iterable[Sequence[float]], guess: float, last: int
) -> Figure:
    """All seeds' losses at some steps, and the loss of guessing a word from the first step to the last."""
    loss = line_over_seeds(Text("training loss", "训练损失"), steps, losses)
    guessing = level(Text("guessing a word", "随机猜词"), (steps[0], last), guess)
    return figure(name, caption, TRAINING_STEP, y, (loss, guessing))
