"""What the views show of temperature curves: numbers for the page, a line of bars for a terminal.

A record may come from a file, so a curve is shown only if its parts fit together (`shown`).
"""

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

from rich.console import Console
from rich.text import Text as Styled

from isotherm.language import Language, Text
from isotherm.record import Curve, Layer, LayerCurve
from isotherm.report import digits
from isotherm.report.draw.terminal import sparks
from isotherm.report.layout import table
from isotherm.report.summary import LayerSummary, finite

MOST_FACTORS = 64
_HEADS = (
    Text("layer", "层"),
    Text("gate, ÷{first} … ×{last}", "闸门，÷{first} … ×{last}"),
    Text("freezes at", "冻结于"),
    Text("best open at", "最佳开度于"),
)
_NOTE = Text(
    "The median gate if q·k were multiplied by a factor, [ ] as it is. Freezes: σ reaches σ_c. Best open: factor × gate is "
    "largest, so the weights answer q·k the most. {how}",
    "假如把 q·k 乘以某个倍数，闸门的中位数；[ ] 为现状。冻结：σ 达到 σ_c。"
    "最佳开度：倍数 × 闸门最大，权重对 q·k 的响应最强。{how}",
)
_EXACT = Text("Exact.", "精确。")
_SAMPLED = Text("Sampled: {rows} of {total} rows of each head.", "抽样：每个头取 {total} 行中的 {rows} 行。")


def shown(layer: Layer) -> LayerCurve | None:
    """The layer's curves, if their factors ascend through 1 and each curve has a number, or none, at every factor."""
    curve = layer.curve
    if curve is None or not 2 <= len(curve.factors) <= MOST_FACTORS or 1.0 not in curve.factors:
        return None
    ascending = all(0 < low < high and isfinite(high / low) for low, high in pairwise(curve.factors))
    sizes = {len(values) for one in (curve, *curve.heads) for values in (one.gate, one.entropy_fraction)}
    whole = len(curve.heads) == len(layer.head_stats) and sizes == {len(curve.factors)}
    return curve if ascending and whole else None


def factors_of(lines: Sequence[LayerSummary]) -> tuple[float, ...]:
    """The factors of the first layer that has curves; all layers of a check have the same."""
    return next((curve.factors for line in lines if (curve := shown(line.layer)) is not None), ())


def packed_layers(lines: Sequence[LayerSummary]) -> list[list[Any]]:
    """For each layer with curves: [place, p10 and p90 of the heads' gates, `_packed`]."""
    return [[place, *_band(curve), *_packed(curve, curve)] for place, curve in _curves(lines).items()]


def packed_heads(lines: Sequence[LayerSummary]) -> dict[tuple[int, int], list[Any]]:
    """The `_packed` curve of each head, by the index of its layer and its own."""
    return {
        (lines[place].layer.index, head.head): _packed(one, curve)
        for place, curve in _curves(lines).items()
        for head, one in zip(lines[place].layer.head_stats, curve.heads, strict=True)
    }


def show_curves(lines: Sequence[LayerSummary], console: Console, language: Language) -> None:
    """Print a line for each layer: its gate over the factors, and where it freezes and is best open."""
    curves = _curves(lines)
    factors, here = factors_of(lines), factors_of(lines).index(1.0)
    ends = {"first": digits.number(1 / factors[0], 2), "last": digits.number(factors[-1], 2)}
    made = table([head.format(**ends) for head in _HEADS], language, gap=3, left={1})
    for place, curve in curves.items():
        below, now, above = (
            sparks(curve.gate[part]) for part in (slice(here), slice(here, here + 1), slice(here + 1, None))
        )
        marks = _named(curve.freezing), _named(curve.best_open)
        made.add_row(str(lines[place].layer.index), Styled(f"{below}[{now}]{above}"), *marks)
    console.print(made)
    console.print(Styled(_NOTE.format(how=_how(list(curves.values()))).to(language), style="dim"))


def _curves(lines: Sequence[LayerSummary]) -> dict[int, LayerCurve]:
    """The curves that can be shown together, by the place of their layer."""
    factors = factors_of(lines)
    found = {place: shown(line.layer) for place, line in enumerate(lines)}
    return {place: curve for place, curve in found.items() if curve is not None and curve.factors == factors}


def _packed(curve: Curve, layer: LayerCurve) -> list[Any]:
    """[gate, entropy, freezing, best open, rows measured, rows in all] for the page."""
    gate, entropy = ([digits.compact(value, 3) for value in values] for values in (curve.gate, curve.entropy_fraction))
    marks = (_factor(value) for value in (curve.freezing, curve.best_open))
    return [gate, entropy, *marks, layer.rows, layer.rows_total]


def _band(curve: LayerCurve) -> list[list[float | int | None]]:
    """The tenth and the ninetieth percentile of the heads' gates at each factor."""
    by_factor = [sorted(finite(head.gate[place] for head in curve.heads)) for place in range(len(curve.factors))]
    return [
        [digits.compact(gates[round(part * (len(gates) - 1))], 3) if gates else None for gates in by_factor]
        for part in (0.1, 0.9)
    ]


def _how(curves: list[LayerCurve]) -> Text:
    if all(curve.label == "exact" for curve in curves):
        return _EXACT
    ends = [[pick(getattr(curve, name) for curve in curves) for pick in (min, max)] for name in ("rows", "rows_total")]
    rows, total = ("–".join(digits.thousands(end) for end in sorted(set(pair))) for pair in ends)
    return _SAMPLED.format(rows=rows, total=total)


def _named(factor: float | None) -> str:
    if factor is None or not isfinite(factor) or factor <= 0:
        return digits.NOTHING
    return f"÷{digits.number(1 / factor, 2)}" if factor < 1 else f"×{digits.number(factor, 2)}"


def _factor(value: float | None) -> float | int | None:
    return digits.compact(value) if value is not None and isfinite(value) and value > 0 else None
