"""Training runs and what came of them, as plain data: one `Trial` in, one `TrialOutcome` out, a `SweepRecord` of many."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from isotherm.record.plain import bounded

SWEEP_SCHEMA = "isotherm.sweep/1"


@dataclass(frozen=True)
class Trial:
    """One training run: everything that determines its numbers, and nothing else.

    `rule` is a scale rule as `isotherm.scale.parse` reads it; for a recurrent model it is the score: additive,
    multiplicative, dot or scaled-dot. `init` is a gain on W_q and W_k at the start. `length` is the task's own (words to
    copy, pairs to recall, tokens of text); `test_lengths` are further ones it is tested at when trained.
    """

    task: str = "copy"
    model: str = "transformer"
    rule: str = "1/sqrt(d)"
    width: int = bounded(64, 1, 2**17)
    heads: int = bounded(4, 1, 2**14)
    head_dim: int | None = bounded(None, 1, 2**17)
    layers: int = bounded(2, 1, 1024)
    vocabulary: int = bounded(64, 6, 2**24)
    length: int = bounded(16, 1, 2**17)
    batch: int = bounded(32, 1, 2**20)
    steps: int = bounded(200, 1, 10**9)
    lr: float = bounded(1e-3, 1e-30, 1e30)
    warmup: int = bounded(20, 0, 10**9)
    seed: int = bounded(0, 0, 2**62)
    init: float = bounded(1.0, 1e-30, 1e30)
    corpus: str | None = None
    test_lengths: tuple[int, ...] = bounded((), 1, 2**17)

    def key(self) -> str:
        """A name for this run: the same on every machine, another one for any other run.

        >>> Trial(seed=1).key() == Trial(seed=1).key() != Trial(seed=2).key()
        True
        """
        plain = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(plain.encode()).hexdigest()[:16]

    @property
    def d(self) -> int:
        """The dimension of q and k in one head, which is d in a rule; a recurrent model has one head, of its width."""
        return self.head_dim or (self.width if self.model == "recurrent" else self.width // self.heads)


@dataclass(frozen=True)
class Temperature:
    """Attention at one moment, over all layers, heads and the rows of a held-out batch where something is asked of the model
    (in an encoder: where a word stands); None where no softmax was seen.

    `gate` is the median jacobian_trace and `gate_p10` its tenth percentile; the others are medians.
    """

    step: int
    gate: float | None
    gate_p10: float | None
    entropy_fraction: float | None
    logit_std: float | None


@dataclass(frozen=True)
class AtLength:
    """A trained model tested at one length."""

    length: int
    loss: float | None
    accuracy: float | None
    entropy_fraction: float | None = None


@dataclass(frozen=True)
class TrialOutcome:
    """What came of a trial. Losses are in nats a token; None stands for a number that was not finite.

    `held_out` and `accuracy` are measured on examples no model trained on, the same for every trial of a task;
    `held_out_start` is the loss before the first step. `losses` and `gradients` (the norm of the loss's gradient to all
    W_q) are sampled along the run. A model whose loss or gradient was not finite is frozen there: `diverged` and
    `diverged_at`. `together` is how many were trained at once, `seconds` their time shared between them, `graph` whether their
    step was a captured CUDA graph.
    """

    trial: Trial
    losses: tuple[tuple[int, float | None], ...]
    held_out_start: float | None
    held_out: float | None
    accuracy: float | None
    by_length: tuple[AtLength, ...]
    diverged: bool
    diverged_at: int | None
    temperatures: tuple[Temperature, ...]
    gradients: tuple[tuple[int, float | None], ...]
    parameters: int
    seconds: float
    together: int
    graph: bool
    device: str
    precision: str
    versions: dict[str, str]

    def numbers(self) -> "TrialOutcome":
        """The same without what no seed fixes (time): two runs of one trial are equal when these are."""
        return replace(self, seconds=0.0)


@dataclass(frozen=True)
class SeedInterval:
    """A mean over seeds with its 95 % t-interval; `low` and `high` are None for fewer than two seeds."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


@dataclass(frozen=True)
class Cell:
    """All seeds of one setting. `settings` holds what varies in the sweep besides the seed, as text.

    `effect` is Hedges' g of the held-out loss against the first series at the same place: below 0, this one is better.
    """

    block: str
    series: str
    x: float | None
    settings: dict[str, str]
    loss: SeedInterval | None
    accuracy: SeedInterval | None
    diverged: int
    effect: float | None
    gate_start: float | None
    gate_end: float | None


@dataclass(frozen=True)
class Analysis:
    """One number that sums a series up, over seeds. `name` says which.

    `lr-sensitivity`: of Wortsman et al. 2023. `large/small`: the loss at the largest dimension over that at the smallest.
    `small/first`, `large/first`: the loss there over that of the first series. `long/short`: the accuracy at the longest
    length tested over that at the shortest; `long-short entropy`: the entropy fraction there less that at the shortest.
    """

    name: str
    block: str
    series: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Axes:
    """What is drawn: `x` a field of Trial, or `length` for the lengths tested, or `step`; `y` loss or accuracy.

    There is one line for each combination of the fields in `series`. Of the values of `best` the one with the lowest mean
    loss stands for each place, as one would tune it.
    """

    x: str
    y: str
    series: tuple[str, ...]
    best: str | None = None


@dataclass(frozen=True)
class SweepRecord:
    """A whole sweep: what was asked (`spec`, its text), every outcome, and what they say over seeds."""

    schema: str
    title: str
    spec: str
    quick: bool
    axes: Axes
    created: str
    seconds: float
    commit: str
    versions: dict[str, str]
    devices: tuple[str, ...]
    precision: str
    blocks: tuple[tuple[str, tuple[str, ...]], ...]
    cells: tuple[Cell, ...]
    analyses: tuple[Analysis, ...]
    outcomes: tuple[TrialOutcome, ...]
