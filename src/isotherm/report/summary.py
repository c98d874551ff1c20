"""What several views derive from a record: medians per layer, the verdict, which heads are worth a look."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, isnan
from statistics import median

from isotherm.language import Text
from isotherm.record import CheckRecord, Finding, HeadStats, Layer, Severity, State, WhatIf
from isotherm.report import vocabulary
from isotherm.theory import freezing_threshold

SEVERITY_ORDER: tuple[Severity, ...] = ("error", "warning", "note")
_STATE_WEIGHT: dict[State, int] = {"invalid": 5, "saturated": 4, "diffuse": 3, "empty": 2, "sink": 1, "balanced": 0}


@dataclass(frozen=True)
class LayerSummary:
    """A layer in one line: medians over its heads, except `max_logit`, their largest."""

    layer: Layer
    sigma: float | None
    critical: float | None
    entropy_fraction: float | None
    gate_p10: float | None
    gate_p50: float | None
    max_logit: float | None
    weight: float


@dataclass(frozen=True)
class WhatIfSummary:
    """One rule over the whole model: medians over the layers, and the largest logit."""

    rule: str
    entropy_fraction: float | None
    gate_p50: float | None
    gate_p10: float | None
    max_logit: float | None


def finite(values: Iterable[float | None]) -> list[float]:
    """The values that are finite numbers."""
    return [value for value in values if value is not None and isfinite(value)]


def middle(values: Iterable[float | None]) -> float | None:
    """The median of the finite numbers; None where there are none."""
    numbers = finite(values)
    return median(numbers) if numbers else None


def largest(values: Iterable[float | None]) -> float | None:
    """The largest, +Inf included: an overflow must not vanish from a maximum."""
    return max((value for value in values if value is not None and not isnan(value)), default=None)


def critical_spread(layer: Layer) -> float | None:
    """σ_c of the layer's longest row; None where no row sees a second key."""
    return freezing_threshold(layer.keys) if layer.keys > 1 else None


def summarise(layer: Layer) -> LayerSummary:
    """A layer in one line; a larger `weight` deserves more of a look."""
    heads = layer.head_stats
    gate = middle(head.jacobian_trace.p50 for head in heads)
    return LayerSummary(
        layer,
        middle(head.logit_std for head in heads),
        critical_spread(layer),
        middle(head.entropy_fraction.p50 for head in heads),
        middle(head.jacobian_trace.p10 for head in heads),
        gate,
        largest(head.max_logit for head in heads),
        sum(_STATE_WEIGHT[head.state] for head in heads) / max(len(heads), 1)
        + (100 if layer.scale.agrees is False else 0)
        + (1 - gate if gate is not None else 0),
    )


def worst_layers(record: CheckRecord, how_many: int) -> list[LayerSummary]:
    """The layers most worth a look, in the model's order. Layers with findings come before others."""
    found = Counter({finding.layer: 0 for finding in record.findings})
    for finding in record.findings:
        found[finding.layer] += 100 if finding.severity == "error" else 20 if finding.severity == "warning" else 0
    lines = [
        (found[layer.index] + (line := summarise(layer)).weight, place, line)
        for place, layer in enumerate(record.layers)
    ]
    chosen = sorted(lines, key=lambda item: (-item[0], item[1]))[:how_many]
    return [line for _, _, line in sorted(chosen, key=lambda item: item[1])]


def ordered_findings(record: CheckRecord) -> list[Finding]:
    """Errors, then warnings, then notes; otherwise as they were found."""
    return sorted(record.findings, key=lambda finding: SEVERITY_ORDER.index(finding.severity))


def severity_counts(record: CheckRecord) -> dict[Severity, int]:
    """How many findings of each severity, zeros included."""
    counted = Counter(finding.severity for finding in record.findings)
    return {severity: counted[severity] for severity in SEVERITY_ORDER}


def state_counts(record: CheckRecord) -> dict[State, int]:
    """How many heads are in each state, zeros included."""
    counted = Counter(head.state for layer in record.layers for head in layer.head_stats)
    return {state: counted[state] for state in vocabulary.STATES}


def verdict(record: CheckRecord) -> Text:
    """The whole check-up in one line."""
    if not record.layers:
        return vocabulary.NOT_SEEN
    counts = [vocabulary.counted(severity, n) for severity, n in severity_counts(record).items() if n]
    found = vocabulary.joined(counts) if counts else vocabulary.HEALTHY
    unknown = sum(layer.scale.effective is None for layer in record.layers)
    if not unknown:
        return found
    return vocabulary.NOT_AUDITED.format(verdict=found, n=unknown, layers=len(record.layers))


def verdict_severity(record: CheckRecord) -> Severity | None:
    """The most severe severity found; None where there is nothing to act on."""
    return next((severity for severity, n in severity_counts(record).items() if n), None)


def how_got(record: CheckRecord) -> Text:
    """Whether the numbers come from every row or from a sample."""
    labels = {head.label for layer in record.layers for head in layer.head_stats}
    if labels == {"sampled"}:
        heads = [head for layer in record.layers for head in layer.head_stats]
        if all(head.entropy_interval is None and head.rows == 1 for head in heads):
            return vocabulary.SAMPLED_ONE.format(total=heads[0].rows_total or 1)
        interval = max((head.entropy_interval or 0.0 for head in heads), default=0.0)
        return vocabulary.SAMPLED.format(
            rows=heads[0].rows, total=heads[0].rows_total or heads[0].rows, interval=interval
        )
    return vocabulary.MIXED if "sampled" in labels else vocabulary.EXACT


def widest(record: CheckRecord) -> int:
    """The largest number of heads in a layer."""
    return max((len(layer.head_stats) for layer in record.layers), default=0)


def rule_summary(what_if: WhatIf) -> WhatIfSummary:
    """One rule over the whole model."""
    return WhatIfSummary(
        what_if.rule,
        middle(layer.entropy_fraction for layer in what_if.layers),
        middle(layer.jacobian_trace for layer in what_if.layers),
        middle(layer.gate_p10 for layer in what_if.layers),
        largest(layer.max_logit for layer in what_if.layers),
    )


def remarkable(record: CheckRecord) -> list[tuple[Layer, HeadStats]]:
    """Every head, sorted: first those that a finding names, then by state, then by how closed the gate is."""
    named = {
        (finding.layer, finding.head): 3 - SEVERITY_ORDER.index(finding.severity) for finding in record.findings[::-1]
    }

    def key(item: tuple[Layer, HeadStats]) -> tuple[int, int, float, int, int]:
        layer, head = item
        closed = head.jacobian_trace.p10
        closed = closed if closed is not None and isfinite(closed) else 1.0
        return -named.get((layer.index, head.head), 0), -_STATE_WEIGHT[head.state], closed, layer.index, head.head

    return sorted(((layer, head) for layer in record.layers for head in layer.head_stats), key=key)
