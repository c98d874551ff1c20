"""What a check-up found. `SCHEMA` names the format; it changes when a field changes its meaning or goes away."""

from dataclasses import dataclass
from typing import Literal

from isotherm.language import Text

SCHEMA = "isotherm.check/1"

State = Literal["balanced", "saturated", "diffuse", "sink", "invalid", "empty"]
Severity = Literal["error", "warning", "note"]
Kind = Literal["self", "cross"]


@dataclass(frozen=True)
class Spread:
    """One statistic over the rows of a head."""

    mean: float | None
    p10: float | None
    p50: float | None
    p90: float | None


@dataclass(frozen=True)
class HeadDetail:
    """Finer pictures of a head. Histograms count rows in equal bins of [0, 1]; `position_*` are means over equal
    stretches of the sequence, first to last, None where a stretch has no valid row."""

    gate_histogram: tuple[int, ...]
    entropy_histogram: tuple[int, ...]
    position_gate: tuple[float | None, ...]
    position_entropy: tuple[float | None, ...]


@dataclass(frozen=True)
class HeadStats:
    """One head of one layer. `sink` is the mean probability of the first visible key; None where no row is valid.

    Of a sampled head, `rows_total` says how many rows there were and `entropy_interval` how far the mean entropy may be off
    (95 %, nats).
    """

    head: int
    state: State
    entropy: Spread
    entropy_fraction: Spread
    jacobian_trace: Spread
    top1: Spread
    n_eff: Spread
    max_logit: float | None
    logit_std: float | None
    sink: float | None
    rows: int
    empty: int
    invalid: int
    label: Literal["exact", "sampled"]
    predicted_gate: float | None
    predicted_entropy_fraction: float | None
    detail: HeadDetail | None = None
    rows_total: int | None = None
    entropy_interval: float | None = None


@dataclass(frozen=True)
class ScaleAudit:
    """The multiplier between the projections' q·k and the logits: handed to the kernel, measured, declared.

    `agrees` is None where one of the two sides could not be had; `note` then says why.
    """

    passed: float | None
    effective: float | None
    declared: float | None
    rule: str
    source: str
    agrees: bool | None
    note: Text | None = None


@dataclass(frozen=True)
class Advice:
    """What would bring a layer's logit spread to its target, and how to do that here."""

    spread: float
    target: float
    factor: float
    how: Text


@dataclass(frozen=True)
class Layer:
    """One attention layer. `keys` is the largest number of visible keys a row had."""

    index: int
    name: str
    kind: Kind
    heads: int
    kv_heads: int
    head_dim: int
    keys: int
    implementation: str
    scale: ScaleAudit
    head_stats: tuple[HeadStats, ...]
    advice: Advice | None = None


@dataclass(frozen=True)
class Finding:
    """Something a person should act on. `threshold` says where the limit comes from."""

    code: str
    severity: Severity
    layer: int | None
    head: int | None
    message: Text
    evidence: dict[str, float | str | None]
    advice: Text
    threshold: Text


@dataclass(frozen=True)
class WhatIfLayer:
    """One layer replayed under another rule: medians over heads and rows, the largest logit, and each head's medians."""

    index: int
    entropy_fraction: float | None
    jacobian_trace: float | None
    gate_p10: float | None
    max_logit: float | None
    head_gate: tuple[float | None, ...] = ()
    head_entropy: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class WhatIf:
    """Every layer replayed under one rule; `rule` is what `isotherm rules` calls it, "as is" for the present one."""

    rule: str
    layers: tuple[WhatIfLayer, ...]


@dataclass(frozen=True)
class Context:
    """What a longer context would do: predicted entropy fraction at each length, as is and with a log-n factor."""

    length: int
    seen: int
    entropy_fraction_now: float | None
    entropy_fraction_then: float | None
    factor: float
    message: Text


@dataclass(frozen=True)
class Unseen:
    """An attention module that ran, or should have, and could not be looked into."""

    name: str
    module: str
    why: Text


@dataclass(frozen=True)
class Comparison:
    """Two implementations of the same model on the same batch: the largest difference of any layer's statistics."""

    implementations: tuple[str, str]
    layer: int | None
    statistic: str
    difference: float
    tolerance: float
    agree: bool


@dataclass(frozen=True)
class Subject:
    """What was checked. `origin` says where the weights came from."""

    name: str
    architecture: str
    origin: str
    parameters: int
    dtype: str
    device: str
    tokens: int
    batch: int
    at_initialisation: bool


@dataclass(frozen=True)
class Cost:
    """What the check-up cost: all of it, one plain forward of the model, and the most memory this process has held."""

    seconds: float
    model_seconds: float
    peak_mib: float


@dataclass(frozen=True)
class CheckRecord:
    """A whole check-up."""

    schema: str
    created: str
    model: Subject
    versions: dict[str, str]
    layers: tuple[Layer, ...]
    findings: tuple[Finding, ...]
    what_if: tuple[WhatIf, ...]
    comparisons: tuple[Comparison, ...]
    unseen: tuple[Unseen, ...]
    cost: Cost
    context: Context | None = None
