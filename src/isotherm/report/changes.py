"""What changed from one check-up to another, as plain data: what is new, what went away, what moved.

Layers are matched by name, since an added layer shifts every index after it; findings by code and place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from isotherm.record import CheckRecord, Finding, Layer, State
from isotherm.report import summary

SCHEMA = "isotherm.compare/1"


@dataclass(frozen=True)
class Change:
    """One number before and after; `difference` is None where one of them is missing."""

    before: float | None
    after: float | None
    difference: float | None


@dataclass(frozen=True)
class LayerChange:
    """One layer in both check-ups: medians over heads, the largest logit, the multiplier in force."""

    index: int
    name: str
    entropy_fraction: Change
    gate_p50: Change
    gate_p10: Change
    max_logit: Change
    scale: Change


@dataclass(frozen=True)
class StateFlip:
    """A head that is in another state than before."""

    layer: int
    name: str
    head: int
    before: State
    after: State


@dataclass(frozen=True)
class ComparedFinding:
    """A finding that only one of the check-ups has; `name` is that of its layer, by which findings are matched."""

    name: str | None
    finding: Finding


@dataclass(frozen=True)
class CompareRecord:
    """What changed from one check-up to another. `layers` holds those present in both, changed or not."""

    schema: str
    before: str
    after: str
    new_findings: tuple[ComparedFinding, ...]
    gone_findings: tuple[ComparedFinding, ...]
    layers: tuple[LayerChange, ...]
    flips: tuple[StateFlip, ...]
    added_layers: tuple[str, ...]
    removed_layers: tuple[str, ...]

    @property
    def worse(self) -> bool:
        """Whether an error or a warning is new: what a build should fail on."""
        return any(compared.finding.severity != "note" for compared in self.new_findings)


def compare(before: CheckRecord, after: CheckRecord) -> CompareRecord:
    """What changed from `before` to `after`."""
    old, new = _by_name(before), _by_name(after)
    shared = [name for name in new if name in old]
    old_findings, new_findings = _keyed(before), _keyed(after)
    return CompareRecord(
        SCHEMA,
        before.model.name,
        after.model.name,
        tuple(found for key, found in new_findings.items() if key not in old_findings),
        tuple(found for key, found in old_findings.items() if key not in new_findings),
        tuple(_layer_change(old[name], new[name]) for name in shared),
        tuple(flip for name in shared for flip in _flips(old[name], new[name])),
        tuple(new[name].name for name in new if name not in old),
        tuple(old[name].name for name in old if name not in new),
    )


def change(before: float | None, after: float | None) -> Change:
    """One number before and after; NaN and Inf count as missing."""
    before, after = (value if value is not None and isfinite(value) else None for value in (before, after))
    return Change(before, after, None if before is None or after is None else after - before)


def _by_name(record: CheckRecord) -> dict[tuple[str, int], Layer]:
    """Layers by name and, for a shared module that runs several times, the number of the run."""
    found: dict[tuple[str, int], Layer] = {}
    times: dict[str, int] = {}
    for layer in record.layers:
        times[layer.name] = times.get(layer.name, -1) + 1
        found[layer.name, times[layer.name]] = layer
    return found


def _keyed(record: CheckRecord) -> dict[tuple[str, object, int | None, int], ComparedFinding]:
    keys = {layer.index: key for key, layer in _by_name(record).items()}
    found: dict[tuple[str, object, int | None, int], ComparedFinding] = {}
    for finding in summary.ordered_findings(record):
        layer = None if finding.layer is None else keys.get(finding.layer, ("", finding.layer))
        again = 0
        while (key := (finding.code, layer, finding.head, again)) in found:
            again += 1
        found[key] = ComparedFinding(layer[0] if layer else None, finding)
    return found


def _layer_change(before: Layer, after: Layer) -> LayerChange:
    old, new = summary.summarise(before), summary.summarise(after)
    return LayerChange(
        after.index,
        after.name,
        change(old.entropy_fraction, new.entropy_fraction),
        change(old.gate_p50, new.gate_p50),
        change(old.gate_p10, new.gate_p10),
        change(old.max_logit, new.max_logit),
        change(before.scale.effective, after.scale.effective),
    )


def _flips(before: Layer, after: Layer) -> Iterator[StateFlip]:
    states = {head.head: head.state for head in before.head_stats}
    for head in after.head_stats:
        old = states.get(head.head, head.state)
        if old != head.state:
            yield StateFlip(after.index, after.name, head.head, old, head.state)
