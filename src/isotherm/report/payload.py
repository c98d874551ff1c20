"""The data of the check-up page: the record in compact form, cut so that the page stays below its limit.

Three things can be cut: findings beyond their share of the bytes, layers beyond what the map can hold, and the details
of the least remarkable heads (`summary.remarkable`). What was cut is counted in `left_out`, and the page says so.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from math import isfinite, log
from typing import Any

from isotherm.language import Text
from isotherm.printable import printable
from isotherm.record import CheckRecord, HeadStats, Layer, Spread, WhatIfLayer
from isotherm.report import summary, vocabulary
from isotherm.report.curve import factors_of, packed_heads, packed_layers
from isotherm.report.digits import compact, magnitude
from isotherm.report.summary import LayerSummary

MANY_HEADS = 4096
ALPHABET = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in "\"\\<>&'")
COLUMNS = ("gate_p50", "gate_p10", "entropy_fraction", "max_logit", "logit_std", "top1", "sink", "n_eff")
GRADIENT = "temperature_gradient"
"""A column of check-ups that measured it (`--loss`)."""
_SPREADS = ("jacobian_trace", "entropy_fraction", "entropy", "top1", "n_eff")


def size_of(value: object) -> int:
    """Bytes of a value once embedded: `<`, `>`, `&` grow to six characters."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode("utf-8", "replace")) + 5 * sum(text.count(letter) for letter in "<>&\u2028\u2029")


class Texts:
    """Sentences and names, each stored once; the rest of the payload refers to them by index."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], int] = {}

    def add(self, text: Text | str | None, limit: int = 600) -> int | None:
        """The index of a sentence; None for None."""
        if text is None:
            return None
        english, chinese = (text, text) if isinstance(text, str) else (text.en, text.zh)
        return self.known.setdefault((printable(english, limit), printable(chinese, limit)), len(self.known))

    def plain(self) -> list[list[str] | str]:
        """[English, Chinese], or one string where they are the same."""
        return [english if english == chinese else [english, chinese] for english, chinese in self.known]


def payload(record: CheckRecord, room: int) -> dict[str, Any]:
    """Everything the page shows, in at most about `room` bytes."""
    texts = Texts()
    base = _base(record, texts)
    layers = _layers_within(record, room * 27 // 32)
    base |= {
        "layers": [_layer(line, texts) for line in layers],
        "heads": columns_of([head for line in layers for head in line.layer.head_stats], _gradients(record, layers)),
        "comparisons": [_comparison(comparison, texts) for comparison in record.comparisons[:100]],
        "not_compared": [[printable(one.implementation, 60), texts.add(one.why)] for one in record.not_compared[:100]],
        "remarks": [texts.add(remark) for remark in record.remarks[:100]],
        "unseen": [[texts.add(it.name), texts.add(it.module), texts.add(it.why)] for it in record.unseen[:100]],
    }
    left = max(room - size_of(base), 0)
    findings = _within(left // 2, (_finding(finding, texts) for finding in summary.ordered_findings(record)))
    base |= {
        "findings": findings,
        "what_if": _what_if(record, texts, {line.layer.index for line in layers}, left // 4),
        "factors": factors_of(layers),
    }
    curved = packed_layers(layers)
    base["curves"] = curves = _within(left // 6, curved)
    base["texts"] = texts.plain()
    base["details"] = details = _details_within(room - size_of(base), record, layers)
    heads = sum(len(line.layer.head_stats) for line in layers)
    base["left_out"] = {
        "findings": len(record.findings) - len(findings),
        "layers": len(record.layers) - len(layers),
        "details": heads - len(details),
        "curves": len(curved) - len(curves),
        "unseen": max(len(record.unseen) - 100, 0),
        "packed": heads > MANY_HEADS,
    }
    return base


def _within(room: int, rows: Iterable[Any]) -> list[Any]:
    """The first rows, as many as fit into `room` bytes."""
    kept, used = [], 0
    for row in rows:
        used += size_of(row) + 1
        if used > room:
            break
        kept.append(row)
    return kept


def _base(record: CheckRecord, texts: Texts) -> dict[str, Any]:
    model, cost, context = record.model, record.cost, record.context
    return {
        "schema": printable(record.schema, 60),
        "created": printable(record.created, 60),
        "model": {
            "name": printable(model.name, 200),
            "architecture": printable(model.architecture, 200),
            "origin": printable(model.origin, 300),
            "dtype": printable(model.dtype, 40),
            "device": printable(model.device, 40),
            "parameters": magnitude(model.parameters),
            "amount": texts.add(vocabulary.amount(model)),
            "compiled": model.compiled,
            "at_initialisation": model.at_initialisation,
            "layers": len(record.layers),
            "heads": summary.widest(record),
        },
        "versions": [
            [printable(name, 60), printable(version, 60)] for name, version in islice(record.versions.items(), 40)
        ],
        "cost": [compact(cost.seconds), compact(cost.model_seconds), compact(cost.peak_mib)],
        "verdict": texts.add(summary.verdict(record)),
        "severity": summary.verdict_severity(record),
        "how_got": texts.add(summary.how_got(record)),
        "states": summary.state_counts(record),
        "context": context
        and {
            "length": context.length,
            "seen": context.seen,
            "now": compact(context.entropy_fraction_now),
            "then": compact(context.entropy_fraction_then),
            "factor": compact(context.factor),
            "message": texts.add(context.message),
        },
    }


def _finding(finding: Any, texts: Texts) -> dict[str, Any]:
    return {
        "code": printable(finding.code, 60),
        "severity": finding.severity,
        "layer": finding.layer,
        "head": finding.head,
        "message": [printable(finding.message.en, 600), printable(finding.message.zh, 600)],
        "evidence": [
            [printable(name, 60), vocabulary.fact(printable(value, 120)) if isinstance(value, str) else compact(value)]
            for name, value in islice(finding.evidence.items(), 12)
        ],
        "advice": texts.add(finding.advice),
        "threshold": texts.add(finding.threshold),
    }


def _layer(line: LayerSummary, texts: Texts) -> dict[str, Any]:
    layer, scale, advice = line.layer, line.layer.scale, line.layer.advice
    return {
        "index": layer.index,
        "name": printable(layer.name, 120),
        "kind": texts.add(vocabulary.KINDS[layer.kind]),
        "shape": [len(layer.head_stats), layer.kv_heads, layer.head_dim, layer.keys],
        "ids": _irregular(layer),
        "implementation": texts.add(layer.implementation, 60),
        "critical": compact(line.critical),
        "line": [
            compact(value)
            for value in (line.sigma, line.entropy_fraction, line.gate_p10, line.gate_p50, line.max_logit)
        ],
        "scale": [compact(scale.passed), compact(scale.effective), compact(scale.declared)],
        "agrees": scale.agrees,
        "rule": texts.add(scale.rule, 120),
        "source": texts.add(scale.source, 120),
        "note": texts.add(scale.note, 300),
        "advice": advice
        and [compact(advice.spread), compact(advice.target), compact(advice.factor), texts.add(advice.how)],
    }


def _irregular(layer: Layer) -> list[int] | None:
    """The heads' numbers, where they are not simply 0, 1, 2…"""
    numbers = [head.head for head in layer.head_stats]
    return None if numbers == list(range(len(numbers))) else numbers


def _comparison(comparison: Any, texts: Texts) -> list[Any]:
    first, second = comparison.implementations
    numbers = compact(comparison.difference), compact(comparison.tolerance)
    return [
        texts.add(first, 60),
        texts.add(second, 60),
        comparison.layer,
        texts.add(comparison.statistic),
        *numbers,
        comparison.agree,
        texts.add(comparison.on),
    ]


def _what_if(record: CheckRecord, texts: Texts, shown: set[int], room: int) -> list[dict[str, Any]]:
    """Medians of every rule, and its curve over the layers for as many rules as fit."""
    rules: list[dict[str, Any]] = []
    for what_if in record.what_if[:40]:
        line = summary.rule_summary(what_if)
        medians = (line.entropy_fraction, line.gate_p50, line.gate_p10, line.max_logit)
        curve = [
            [
                at.index,
                *(compact(value, 3) for value in (at.entropy_fraction, at.jacobian_trace, at.gate_p10, at.max_logit)),
            ]
            for at in what_if.layers
            if at.index in shown
        ]
        room -= size_of(curve)
        rules.append(
            {
                "rule": texts.add(vocabulary.rule_name(what_if.rule), 60),
                "as_is": what_if.rule == "as is",
                "medians": [compact(value) for value in medians],
                "curve": curve if room > 0 else [],
            }
        )
    return rules


def _layers_within(record: CheckRecord, room: int) -> list[LayerSummary]:
    """All layers or, where they do not fit, those most worth a look."""
    many = sum(len(layer.head_stats) for layer in record.layers) > MANY_HEADS
    per_head = 2 * len(COLUMNS) + 1 if many else 7 * len(COLUMNS)
    size = max((len(layer.head_stats) for layer in record.layers), default=0) * per_head + 400
    return summary.worst_layers(record, max(room // size, 1))


def _gradients(record: CheckRecord, layers: list[LayerSummary]) -> list[float | None] | None:
    """The temperature gradient of every head, if it was measured; None for a head it does not have."""
    found = record.temperature_gradient
    if found is None:
        return None
    known = dict(zip(found.layers, found.gradient, strict=False))
    return [
        known.get(line.layer.name, ())[head.head] if 0 <= head.head < len(known.get(line.layer.name, ())) else None
        for line in layers
        for head in line.layer.head_stats
    ]


def columns_of(heads: Sequence[HeadStats], gradients: list[float | None] | None = None) -> dict[str, Any]:
    """Statistics of all heads, one column each, layer after layer; packed into text where there are many."""
    values: dict[str, list[float | None]] = {
        "gate_p50": [head.jacobian_trace.p50 for head in heads],
        "gate_p10": [head.jacobian_trace.p10 for head in heads],
        "entropy_fraction": [head.entropy_fraction.p50 for head in heads],
        "max_logit": [head.max_logit for head in heads],
        "logit_std": [head.logit_std for head in heads],
        "top1": [head.top1.p50 for head in heads],
        "sink": [head.sink for head in heads],
        "n_eff": [head.n_eff.p50 for head in heads],
    }
    states = list(vocabulary.STATE_GLYPHS)
    columns: dict[str, Any] = {"state": "".join(str(states.index(head.state)) for head in heads)}
    values |= {} if gradients is None else {GRADIENT: gradients}
    for name in values:
        columns[name] = pack(values[name]) if len(heads) > MANY_HEADS else [compact(value) for value in values[name]]
    return columns


def pack(values: Sequence[float | None]) -> dict[str, Any]:
    """Numbers as two characters each: code 0 is «none», 1 is zero, the others are even steps from the least to the largest.

    Steps are logarithmic where the values span decades, twelve at most: smaller values read as the smallest. A step is
    0.4 % over twelve decades, 1.3e-4 over [0, 1].
    """
    known = [value for value in values if value is not None and isfinite(value)]
    positive = [value for value in known if value > 0]
    logarithmic = len(positive) > 0 and min(known) >= 0 and max(positive) / min(positive) > 50
    scaled = [log(value) for value in positive] if logarithmic else known
    low, high = (min(scaled), max(scaled)) if scaled else (0.0, 0.0)
    low = max(low, high - log(1e12)) if logarithmic else low
    steps = len(ALPHABET) ** 2 - 3

    def code(value: float | None) -> int:
        if value is None or not isfinite(value):
            return 0
        if value == 0:
            return 1
        place = log(value) if logarithmic else value
        return 2 + (round(max(place - low, 0) / (high - low) * steps) if high > low else 0)

    letters = (divmod(code(value), len(ALPHABET)) for value in values)
    text = "".join(ALPHABET[first] + ALPHABET[second] for first, second in letters)
    return {"low": low, "high": high, "steps": steps, "log": logarithmic, "codes": text}


def _details_within(room: int, record: CheckRecord, layers: list[LayerSummary]) -> list[list[Any]]:
    """The details of heads, the most remarkable first, until the room is full."""
    order = ((line.layer.index, head.head) for line in layers for head in line.layer.head_stats)
    places = {head: place for place, head in enumerate(order)}
    heads = (((layer.index, head.head), head) for layer, head in summary.remarkable(record))
    replayed = [{layer.index: layer for layer in what_if.layers} for what_if in record.what_if[:40]]
    curves = packed_heads(layers)
    chosen = ((key, head) for key, head in heads if key in places)
    rows = ([*_detail(places[key], head), _head_what_if(replayed, *key), curves.get(key)] for key, head in chosen)
    return _within(room - 200, rows)


def _head_what_if(replayed: list[dict[int, WhatIfLayer]], layer: int, head: int) -> list[list[int | None]]:
    """One head under each rule: [gate, entropy fraction] in thousandths, in the order of the rules; [] where unknown."""
    rows = []
    for rule in replayed:
        at = rule.get(layer)
        known = at is not None and 0 <= head < min(len(at.head_gate), len(at.head_entropy))
        rows.append(_per_mille((at.head_gate[head], at.head_entropy[head])) if at is not None and known else [])
    return rows


def _detail(place: int, head: HeadStats) -> list[Any]:
    """[place, spreads, predicted, counts, sampled, gate and entropy histograms, gate and entropy along the sequence].

    The caller appends the head under other rules, and its temperature curve.
    """
    spreads: list[Spread] = [getattr(head, name) for name in _SPREADS]
    detail = head.detail
    return [
        place,
        [[compact(value) for value in (it.mean, it.p10, it.p50, it.p90)] for it in spreads],
        [compact(head.predicted_gate), compact(head.predicted_entropy_fraction)],
        [head.rows, head.empty, head.invalid],
        int(head.label == "sampled"),
        *([[], []] if detail is None else [list(detail.gate_histogram), list(detail.entropy_histogram)]),
        *([[], []] if detail is None else [_per_mille(detail.position_gate), _per_mille(detail.position_entropy)]),
    ]


def _per_mille(values: tuple[float | None, ...]) -> list[int | None]:
    return [None if value is None or not isfinite(value * 1000) else round(value * 1000) for value in values]
