"""How each curve of a figure is told from the others: colour, marker and dash, the same in every view."""

from dataclasses import dataclass

from isotherm.language import Text
from isotherm.record import Figure, Line
from isotherm.report.explain import palette

PREDICTED = Text("predicted", "理论预测")
_COLOURS = len(palette.SERIES["light"])
_MARKERS = len(palette.MARKERS)


@dataclass(frozen=True)
class Series:
    """A curve and its looks. `colour` is a number of the palette, «doc» or «ink»; `name` None when a sign says it."""

    line: Line
    colour: str
    marker: str | None
    dash: str | None
    name: Text | None


def series(figure: Figure) -> tuple[Series, ...]:
    """Measured curves are solid with markers, predicted ones dashed, a document's dotted with hollow markers.

    A prediction has the colour of the measurement it goes with. Where every one is named after its measurement, the
    legend says once what a dashed line is.
    """
    measured = [line for line in figure.lines if line.source == "measured"]
    predicted = [line for line in figure.lines if line.source == "predicted"]
    partners = _partners(figure, measured, predicted)
    unnamed = _unnamed(measured, predicted, partners)
    count = {"measured": 0, "predicted": 0, "document": 0}
    styled = []
    for line in figure.lines:
        number = count[line.source]
        count[line.source] += 1
        if line.source == "document":
            look = Series(line, "doc", palette.MARKERS[(3 + number) % _MARKERS], palette.DOTTED, line.name)
        elif line.source == "measured":
            marker = palette.MARKERS[(number + number // _COLOURS) % _MARKERS]
            look = Series(line, str(number % _COLOURS), marker, None, line.name)
        else:
            look = _prediction(line, number, partners[number], unnamed, len(measured), alone=len(predicted) == 1)
        styled.append(look)
    return tuple(styled)


def is_paired(figure: Figure) -> bool:
    """Whether the legend says once what a dashed line is."""
    return any(it.name is None for it in series(figure))


def _prediction(line: Line, number: int, partner: int | None, unnamed: bool, before: int, *, alone: bool) -> Series:
    if unnamed:
        return Series(line, str((partner or 0) % _COLOURS), None, palette.DASHES[0], None)
    dash = palette.DASHES[number % len(palette.DASHES)]
    if alone:
        return Series(line, "ink", None, dash, line.name)
    return Series(line, str((before + number if partner is None else partner) % _COLOURS), None, dash, line.name)


def _partners(figure: Figure, measured: list[Line], predicted: list[Line]) -> list[int | None]:
    """For each prediction the number of its measurement: the one it is named after, else the one it comes right after."""
    after: list[int | None] = []
    seen = 0
    for place, line in enumerate(figure.lines):
        seen += line.source == "measured"
        if line.source == "predicted":
            follows = place > 0 and figure.lines[place - 1].source == "measured"
            after.append(seen - 1 if follows and len(predicted) == len(measured) else None)
    found: list[int | None] = []
    for line, previous in zip(predicted, after, strict=True):
        named = [n for n, other in enumerate(measured) if line.name.en.startswith(other.name.en)]
        found.append(max(named, key=lambda n: len(measured[n].name.en)) if named else previous)
    return found


def _unnamed(measured: list[Line], predicted: list[Line], partners: list[int | None]) -> bool:
    """Whether the names of the predictions say nothing but «x: predicted», the same words for every x."""
    if len(predicted) < 2 or None in partners:
        return False
    rests = {
        line.name.en.removeprefix(measured[partner].name.en)
        for line, partner in zip(predicted, partners, strict=True)
        if partner is not None and line.name.en.startswith(measured[partner].name.en)
    }
    return len(rests) == 1 and len(set(partners)) == len(partners) and rests != {""}
