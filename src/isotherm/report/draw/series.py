"""How each line of a figure looks, and what its legend says: the same in every back end."""

from dataclasses import dataclass

from isotherm.language import Text
from isotherm.record import Figure, Line
from isotherm.record.claim import Source
from isotherm.report.draw import palette

SOURCES: dict[Source, Text] = {
    "measured": Text("measured", "实测"),
    "predicted": Text("predicted", "理论预测"),
    "document": Text("document", "文档"),
}
_COLOURS = len(palette.SERIES["light"])
_MARKERS = len(palette.MARKERS)


JOINED = 4
"""Numbers at fewer places than this stand by themselves: a line would say what lies between them."""


@dataclass(frozen=True)
class Series:
    """A line and how it looks. `colour` is an index into the palette, "doc" or "ink".

    `name` is None for a prediction that shares the legend's one entry «predicted».
    """

    line: Line
    colour: str
    marker: str | None
    dash: str | None
    name: Text | None

    @property
    def joined(self) -> bool:
        """Whether a line goes through the points. One that is level or upright says nothing of what lies between them. Losses
        of one run, which have no interval, follow one another however few they are."""
        line = self.line
        straight = len(set(line.x)) == 1 or len(set(line.y)) == 1
        one_run = line.source == "measured" and line.low is None
        return line.source == "predicted" or straight or one_run or len(line.x) >= JOINED

    @property
    def outline(self) -> dict[str, str | None]:
        """The SVG attributes of a bar: filled where it was measured, a dashed outline where it is predicted."""
        kind = "solid" if self.line.source == "measured" else "stroke bar"
        dash = self.dash if self.line.source == "predicted" else None
        return {"class_": f"{self.colour_class} {kind}", "stroke_dasharray": dash}

    @property
    def colour_class(self) -> str:
        """The CSS class of its colour."""
        return f"c{self.colour}" if self.colour.isdigit() else f"c-{self.colour}"

    def colour_on(self, theme: palette.Theme) -> str:
        """The colour itself."""
        if self.colour.isdigit():
            return palette.SERIES[theme][int(self.colour)]
        return palette.DOCUMENT[theme] if self.colour == "doc" else palette.INK[theme]


def series(figure: Figure) -> tuple[Series, ...]:
    """Measured lines are solid with markers, predicted ones dashed, a document's dotted with hollow markers.

    A prediction has the colour of its measurement. Where each prediction is named after its measurement, the legend
    has one entry for all of them.
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


def legend(figure: Figure) -> list[tuple[Series, Text]]:
    """The entries of a figure's legend; what a dashed line is, is said once where all predictions share it."""
    looks = series(figure)
    entries = [(look, look.name) for look in looks if look.name is not None]
    if len(entries) < len(looks):
        shared = Line(SOURCES["predicted"], (), (), source="predicted")
        entries.append((Series(shared, "ink", None, palette.DASHES[0], shared.name), shared.name))
    return entries


def _prediction(line: Line, number: int, partner: int | None, unnamed: bool, before: int, *, alone: bool) -> Series:
    if unnamed:
        return Series(line, str((partner or 0) % _COLOURS), None, palette.DASHES[0], None)
    dash = palette.DASHES[number % len(palette.DASHES)]
    if alone:
        return Series(line, "ink", None, dash, line.name)
    return Series(line, str((before + number if partner is None else partner) % _COLOURS), None, dash, line.name)


def _partners(figure: Figure, measured: list[Line], predicted: list[Line]) -> list[int | None]:
    """For each prediction the index of its measurement: the one it is named after, else the one just before it."""
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
    """Whether each prediction's name is its measurement's with the same words added, as in «x: predicted»."""
    if len(predicted) < 2 or None in partners:
        return False
    rests = {
        line.name.en.removeprefix(measured[partner].name.en)
        for line, partner in zip(predicted, partners, strict=True)
        if partner is not None and line.name.en.startswith(measured[partner].name.en)
    }
    return len(rests) == 1 and len(set(partners)) == len(partners) and rests != {""}
