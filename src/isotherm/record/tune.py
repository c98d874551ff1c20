"""The record of a tuned model. `TUNE_SCHEMA` names its format and changes when a field is removed or changes its meaning."""

from dataclasses import dataclass
from typing import Literal

TUNE_SCHEMA = "isotherm.tune/1"

TunedTask = Literal["auto", "next", "masked", "pairs"]


@dataclass(frozen=True)
class TunePoint:
    """The mean loss at one factor on the scale in force, and its change from factor 1 with the 95 % interval over documents."""

    factor: float
    loss: float
    change: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class TunedFactor:
    """The factor with the least loss, and its 95 % interval by resampling documents.

    `gain` is the loss it saves on documents that had no part in choosing it, with its 95 % interval. `worth` says whether
    that interval lies above 0; if not, leave the scale as it is. `enclosed` is False if the interval of the factor
    reaches the end of what was tried.
    """

    factor: float
    low: float
    high: float
    loss: float
    gain: float
    gain_low: float | None
    gain_high: float | None
    worth: bool
    enclosed: bool


@dataclass(frozen=True)
class TunedLength:
    """One length: the documents, the loss at every factor that was tried (ascending), and the best factor.

    `critical` is the factor at which the median row loses all but its largest logits, by the gaps below the maximum; `within`
    is the median number of keys within one nat of it; `freezing` is the factor at which the spread of the logits reaches
    √(2 ln n). None where no logits are known.
    """

    length: int
    documents: int
    scored: int
    loss: float
    points: tuple[TunePoint, ...]
    best: TunedFactor
    critical: float | None
    within: float | None
    freezing: float | None


@dataclass(frozen=True)
class TunedLaw:
    """A law over the length, factor = constant·g(n), and how well the tuned factors follow it: χ² over `freedom` degrees.

    `supported`: no other law is better by more than 3.84. `factors` is the law's factor at each length.
    """

    name: str
    formula: str
    constant: float
    chi_squared: float
    freedom: int
    supported: bool
    factors: tuple[float, ...]


@dataclass(frozen=True)
class TemperatureGradient:
    """∂loss/∂ln scale of each layer and head, with its 95 % margin over groups of documents: below 0, sharper is better.

    Of many heads some are beyond their own margins by chance. `beyond` is how many margins all of them together need for 95 %;
    None where there were too few groups to say.
    """

    task: TunedTask
    length: int
    documents: int
    loss: float
    layers: tuple[str, ...]
    gradient: tuple[tuple[float | None, ...], ...]
    margin: tuple[tuple[float | None, ...], ...]
    beyond: float | None = None


@dataclass(frozen=True)
class TuneStep:
    """One step along the temperature gradient: a layer, or one head of it, and its best factor with all others where earlier
    steps left them. The factor was kept if it is worth its while."""

    layer: str
    head: int | None
    gradient: float
    best: TunedFactor
    loss: float


@dataclass(frozen=True)
class TuneRecord:
    """Everything about one run of `tune`. `law_fits` is None if there were too few lengths to tell."""

    schema: str
    created: str
    model: str
    origin: str
    text: str
    task: TunedTask
    layers: tuple[str, ...]
    lengths: tuple[TunedLength, ...]
    laws: tuple[TunedLaw, ...]
    law_fits: bool | None
    gradient: TemperatureGradient | None
    steps: tuple[TuneStep, ...]
    evaluations: int
    seconds: float
    device: str
    dtype: str
    versions: dict[str, str]

    @property
    def bests(self) -> tuple[TunedFactor, ...]:
        """Every best factor: of the lengths, then of the steps."""
        return (*(one.best for one in self.lengths), *(step.best for step in self.steps))
