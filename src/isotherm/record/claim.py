"""One claim put to the test: what was asked, what was measured, and what came of it."""

import re
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from typing import Literal

from isotherm.errors import ArgumentError
from isotherm.language import Text

CLAIM_SCHEMA = "isotherm.claim/1"
Verdict = Literal["confirmed", "conditional", "refuted"]
Source = Literal["measured", "predicted", "document"]
ErratumKind = Literal["error", "remark"]


@dataclass(frozen=True)
class Measured:
    """One number. `low` and `high` are its 95 % interval over seeds; `predicted` is theory's, `document` the source's own;
    `holds` is whether this number satisfies the claim's inequality, None where it only illustrates; `digits` is how many
    significant ones a table shows."""

    name: Text
    value: float
    low: float | None = None
    high: float | None = None
    predicted: float | None = None
    document: float | None = None
    holds: bool | None = None
    digits: int = 4


@dataclass(frozen=True)
class Line:
    """One curve; `low` and `high` are the band around it."""

    name: Text
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None
    source: Source = "measured"

    def __post_init__(self) -> None:
        _check_lengths("line", len(self.x), (part for part in (self.y, self.low, self.high) if part is not None))


@dataclass(frozen=True)
class Figure:
    """Curves over one pair of axes; `id` is its file name. Axis labels carry their units. `bars` draws each point as a bar."""

    id: str
    caption: Text
    x: Text
    y: Text
    lines: tuple[Line, ...]
    x_log: bool = False
    y_log: bool = False
    bars: bool = False

    def __post_init__(self) -> None:
        _check_file_name(self.id)


@dataclass(frozen=True)
class Heatmap:
    """A number for each pair: values[i][j] at ys[i], xs[j]; `boundary` is a predicted curve drawn over it."""

    id: str
    caption: Text
    x: Text
    y: Text
    value: Text
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    values: tuple[tuple[float | None, ...], ...]
    boundary: Line | None = None

    def __post_init__(self) -> None:
        _check_file_name(self.id)
        _check_lengths("values", len(self.ys), [self.values])
        _check_lengths("values", len(self.xs), self.values)


def _check_lengths(name: str, length: int, parts: Iterable[Sized]) -> None:
    for part in parts:
        if len(part) != length:
            expected = Text("one number for each of {n} places", "{n} 个位置各一个数").format(n=length)
            raise ArgumentError(name, expected, got=len(part))


def _check_file_name(name: str) -> None:
    if not re.fullmatch(r"[\w-][\w.-]{0,99}", name):
        raise ArgumentError("id", Text("a plain file name", "普通文件名"), got=repr(name))


@dataclass(frozen=True)
class Step:
    """One step of a derivation: a sentence and, where it has one, its formula as MathML (without the <math> element)."""

    sentence: Text
    math: str = ""


@dataclass(frozen=True)
class Quotation:
    """A sentence of a document. The documents are Chinese: `words` has their own words, and a translation as its English."""

    document: str
    line: str
    words: Text


@dataclass(frozen=True)
class Erratum:
    """What a document gets wrong, and the corrected statement; or a `remark`: what it says is right or harmless as far as it
    goes, and there is more to say."""

    document: str
    wrong: Text
    right: Text
    kind: ErratumKind = "error"
    line: str = ""


@dataclass(frozen=True)
class ClaimRecord:
    """Everything about one claim that the same seed gives again, bit for bit. Wall-clock times are in `Timed`, not here.

    `recorded` sums up runs made earlier, a sentence each; their numbers are among `measured`."""

    schema: str
    id: str
    title: Text
    question: Text
    statement: Text
    sources: tuple[str, ...]
    hypothesis: Text
    parameters: dict[str, str]
    seed: int
    verdict: Verdict
    condition: Text | None
    sentence: Text
    measured: tuple[Measured, ...]
    figures: tuple[Figure, ...] = ()
    heatmaps: tuple[Heatmap, ...] = ()
    steps: tuple[Step, ...] = ()
    errata: tuple[Erratum, ...] = ()
    quotations: tuple[Quotation, ...] = ()
    recorded: tuple[Text, ...] = ()


@dataclass(frozen=True)
class Timed:
    """A claim's record as one run made it, with what no seed fixes: wall-clock times, versions, when and from which code.

    `scale` is the size, quick or full: the field keeps the name under which the schema was published."""

    record: ClaimRecord
    expected: Verdict
    scale: str
    code: str
    created: str
    seconds: float
    versions: dict[str, str]
    timings: tuple[Measured, ...] = ()
    timing_figures: tuple[Figure, ...] = ()
