"""The record of a check-up. `SCHEMA` names its format and changes when a field is removed or changes its meaning."""

from dataclasses import dataclass
from typing import Literal

from isotherm.language import Text
from isotherm.record.tune import TemperatureGradient

SCHEMA = "isotherm.check/1"

State = Literal["balanced", "saturated", "diffuse", "sink", "invalid", "empty"]
Severity = Literal["error", "warning", "note"]
Unit = Literal["tokens", "patches", "frames", "positions"]
Kind = Literal["self", "cross", "channel", "batch", "landmark"]


@dataclass(frozen=True)
class Spread:
    """One statistic over the rows of a head."""

    mean: float | None
    p10: float | None
    p50: float | None
    p90: float | None


@dataclass(frozen=True)
class HeadDetail:
    """A head's distributions. Histograms count rows in equal bins of [0, 1]; `position_*` are means over equal stretches
    of the sequence, first to last, None where a stretch has no valid row."""

    gate_histogram: tuple[int, ...]
    entropy_histogram: tuple[int, ...]
    position_gate: tuple[float | None, ...]
    position_entropy: tuple[float | None, ...]


@dataclass(frozen=True)
class HeadStats:
    """One head of one layer. `sink` is the mean probability of the first visible key; None where no row is valid.

    If the head was sampled, `rows_total` is the number of rows it has, and `entropy_interval` is the 95 % margin of the mean
    entropy in nats, None where fewer than two of the rows seen are valid.
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
    """The multiplier between the projections' q·k and the logits: passed to the kernel, in force, and declared.

    `agrees` is None if the scale in force or the declared one is unknown; `note` then says why.
    """

    passed: float | None
    effective: float | None
    declared: float | None
    rule: str
    source: str
    agrees: bool | None
    note: Text | None = None


@dataclass(frozen=True)
class ModelChange:
    """One change to a model, to be taken literally: multiply `target` by `number`, add `number` to it, or set it to that.

    A `target` is the full name of a parameter, of an attribute of a module, or a key of the configuration. If `axis` is given,
    only the indices `start` to `stop` (not included), `step` apart, of that dimension of the parameter change; with `block`,
    these indices of every `block` indices.
    """

    target: str
    operation: Literal["multiply", "add", "set"]
    number: float
    kind: Literal["parameter", "attribute", "configuration"] = "parameter"
    axis: int | None = None
    start: int = 0
    stop: int = 0
    step: int = 1
    block: int | None = None


@dataclass(frozen=True)
class Advice:
    """The factor that would bring a layer's logit spread to its target, and how to apply it in this model.

    The changes were tried on a copy of the model, and `achieved` is the spread they led to. Without changes, `achieved` is the
    spread of the captured q and k under another scale, or None if nothing that was tried led to the target.
    """

    spread: float
    target: float
    factor: float
    how: Text
    changes: tuple[ModelChange, ...] = ()
    achieved: float | None = None


@dataclass(frozen=True)
class Curve:
    """Gate and entropy of the median row when q·k is multiplied by each of some factors; factor 1 is the model as it is.

    `freezing` is the factor at which the logit spread reaches √(2 ln n). `best_open` is the factor at which factor × gate is
    largest. Either is None where it is not known or not within the range; `isotherm.checkup.curve` derives both.
    """

    gate: tuple[float | None, ...]
    entropy_fraction: tuple[float | None, ...]
    freezing: float | None
    best_open: float | None


@dataclass(frozen=True)
class LayerCurve(Curve):
    """The curve over all heads and rows of a layer, at these `factors`, and the curve of each head.

    `rows` of each head were measured, out of `rows_total`.
    """

    factors: tuple[float, ...]
    heads: tuple[Curve, ...]
    rows: int
    rows_total: int
    label: Literal["exact", "sampled"]


@dataclass(frozen=True)
class Layer:
    """One attention layer. `keys` is the largest number of visible keys a row had.

    `kind` says what it attends over: its own sequence (self), another one (cross), the channels of a head (channel), the
    members of the batch (batch), or by way of a few landmarks pooled from the sequence (landmark).
    """

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
    curve: LayerCurve | None = None


@dataclass(frozen=True)
class Finding:
    """Something a person should act on. `threshold` names the source of the limit. `changes` are what the advice says to change
    in the model, and were tried."""

    code: str
    severity: Severity
    layer: int | None
    head: int | None
    message: Text
    evidence: dict[str, float | str | None]
    advice: Text
    threshold: Text
    changes: tuple[ModelChange, ...] = ()


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
    """A prediction for a longer context: the entropy fraction now and then, and the factor that keeps the entropy."""

    length: int
    seen: int
    entropy_fraction_now: float | None
    entropy_fraction_then: float | None
    factor: float
    message: Text


@dataclass(frozen=True)
class Unseen:
    """An attention module that the probe could not see into. `library` is the package that its class comes from."""

    name: str
    module: str
    why: Text
    severity: Severity = "warning"
    library: str = ""


@dataclass(frozen=True)
class Comparison:
    """The largest difference between two implementations of one model on one batch, over all layers' statistics. `on` says
    which part of the batch they ran on, None if on all of it."""

    implementations: tuple[str, str]
    layer: int | None
    statistic: str
    difference: float
    tolerance: float
    agree: bool
    on: Text | None = None


@dataclass(frozen=True)
class NotCompared:
    """An implementation that the model was not compared under, though it offers a choice, and why."""

    implementation: str
    why: Text


@dataclass(frozen=True)
class Subject:
    """What was checked. `origin` says where the weights came from.

    `tokens` is the number of positions of each member of the batch, and `unit` what they are. `size` is the height and width
    of a picture, or the length of a sound. `compiled`: the model or a part of it is compiled, and was checked uncompiled.
    """

    name: str
    architecture: str
    origin: str
    parameters: int
    dtype: str
    device: str
    tokens: int
    batch: int
    at_initialisation: bool
    unit: Unit = "tokens"
    size: tuple[int, ...] = ()
    compiled: bool = False


@dataclass(frozen=True)
class Cost:
    """Seconds for the whole check-up and for the model's forward under the probe, and the process's peak memory."""

    seconds: float
    model_seconds: float
    peak_mib: float


@dataclass(frozen=True)
class CheckRecord:
    """A whole check-up. `remarks` are sentences about what was computed on less than everything."""

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
    not_compared: tuple[NotCompared, ...] = ()
    remarks: tuple[Text, ...] = ()
    temperature_gradient: TemperatureGradient | None = None
