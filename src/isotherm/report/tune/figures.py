"""A tuned model as pictures: the loss over the factor, the best factor over the length, the temperature gradient."""

from isotherm.language import Text
from isotherm.record import Figure, Heatmap, Line
from isotherm.record.tune import TemperatureGradient, TunedLength, TunePoint, TuneRecord
from isotherm.report.digits import thousands
from isotherm.report.tune.words import LAW_NAMES, UNITS, of_heads

FACTOR = Text("factor on the scale in force", "对实际缩放的倍数")
LENGTH = Text("length (tokens)", "长度（词元）")
TOKENS = Text("{n} tokens", "{n} 词元")
CURVES = Text(
    "How the loss changes when q·k is multiplied by a factor; 0 is the model as it is. Bands: 95 % over documents, paired.",
    "将 q·k 乘以某个倍数时损失的变化；0 为模型现状。阴影：对文档配对的 95 % 区间。",
)
CHANGE = Text("change of the loss ({unit})", "损失的变化（{unit}）")
FACTORS = Text(
    "The best factor at each length with its 95 % interval, the laws that the lengths support, and where attention would lose"
    " all but its largest logits: by the gaps below the maximum (critical), and by the spread of the logits (freezing).",
    "每个长度上的最佳倍数及其 95 % 区间、受这些长度支持的规律，以及注意力只剩最大 logits 之处："
    "按最大值以下的间隙（临界），按 logits 的标准差（冻结）。",
)
BEST = Text("best factor", "最佳倍数")
CRITICAL = Text("critical (gap count)", "临界（间隙计数）")
FREEZING = Text("freezing, σ = √(2 ln n)", "冻结，σ = √(2 ln n)")
GRADIENT = Text(
    "∂loss/∂ln scale of every layer and head at {n} tokens, in thousandths of a nat. Dark, below 0: sharper is better; pale,"
    " above 0: softer.",
    "{n} 词元处每层每头的 ∂损失/∂ln 缩放，单位为千分之一奈特。深色（小于 0）：更尖锐为好；浅色（大于 0）：更平缓为好。",
)
HEAD, LAYER = Text("head", "头"), Text("layer", "层")
VALUE = Text("10⁻³ nats", "10⁻³ 奈特")


def curves(record: TuneRecord) -> Figure:
    """The change of the loss over the factor, a line for each length, as far as the change is of the size that matters."""
    unit = UNITS[record.task]
    shown = [_near(one) for one in record.lengths]
    lines = tuple(
        Line(
            TOKENS.format(n=thousands(one.length)),
            tuple(point.factor for point in points),
            tuple(point.change for point in points),
            tuple(point.low for point in points),
            tuple(point.high for point in points),
        )
        for one, points in zip(record.lengths, shown, strict=True)
    )
    return Figure("loss", CURVES, FACTOR, CHANGE.format(unit=unit), lines, x_log=True)


def _near(one: TunedLength) -> tuple[TunePoint, ...]:
    """The points on both sides of the best factor and of 1; those far away would flatten the rest."""
    low, high = min(one.best.low, 1.0) / 1.6, max(one.best.high, 1.0) * 1.6
    return tuple(point for point in one.points if low <= point.factor <= high)


def factors(record: TuneRecord) -> Figure:
    """The best factor over the length."""
    lengths = tuple(float(one.length) for one in record.lengths)
    bests = [one.best for one in record.lengths]
    lines = [
        Line(
            BEST,
            lengths,
            tuple(best.factor for best in bests),
            tuple(best.low for best in bests),
            tuple(best.high for best in bests),
        ),
        Line(CRITICAL, lengths, tuple(one.critical for one in record.lengths), source="document"),
        Line(FREEZING, lengths, tuple(one.freezing for one in record.lengths), source="document"),
    ]
    for law in record.laws:
        if law.supported and record.law_fits:
            name = LAW_NAMES.get(law.name, Text(law.name, law.name))
            lines.append(Line(name, lengths, law.factors, source="predicted"))
    kept = tuple(line for line in lines if any(y is not None for y in line.y))
    return Figure("factors", FACTORS, LENGTH, FACTOR, kept, x_log=True, y_log=True)


def gradient(found: TemperatureGradient) -> Heatmap:
    """The temperature gradient: a row for each layer, the first one lowest."""
    widest = max((len(row) for row in found.gradient), default=0)
    values = tuple(
        tuple(None if value is None else 1000 * value for value in (*row, *[None] * (widest - len(row))))
        for row in found.gradient
    )
    what, noise = GRADIENT.format(n=thousands(found.length)), of_heads(found)
    caption = Text(f"{what.en} {noise.en}", f"{what.zh}{noise.zh}")
    xs, ys = tuple(map(float, range(widest))), tuple(map(float, range(len(values))))
    return Heatmap("gradient", caption, HEAD, LAYER, VALUE, xs, ys, values)
