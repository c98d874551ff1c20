"""Measure what the story names and write it to `lab/recorded`: `python -m isotherm.lab.story`."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from statistics import median

from isotherm.checkup import check
from isotherm.checkup.load import DEFAULT_SHA256, Loaded
from isotherm.lab import recorded
from isotherm.lab.minilm import trained
from isotherm.lab.story import MEASURED, MODEL, finding, numbers
from isotherm.record import CheckRecord, to_plain
from isotherm.record.story import MEASURED_SCHEMA, PairFinding, StoryMeasured
from isotherm.record.versions import versions


def about_finding(found: PairFinding) -> dict[str, float]:
    """The finding's numbers: as the model is, divided by d, and without a scale."""
    at = dict(zip(finding.PARTS, found.points, strict=True))
    fields = {"pairs": float(found.pairs), "candidates": float(found.candidates), "tokens": found.tokens}
    for name, part in (("as_is", 0), ("whole", -6), ("none", 6)):
        point = at[part]
        fields |= {f"found_{name}": point.share, f"found_{name}_low": point.low, f"found_{name}_high": point.high}
        if part:
            fields |= {f"lost_{name}_least": -point.change_high, f"lost_{name}_most": -point.change_low}
        fields |= {f"model_gate_{name}": point.gate, f"model_entropy_{name}": point.entropy}
    return fields


def curves(loaded: Loaded) -> CheckRecord:
    """A check-up of the model, cut down to its temperature curves."""
    report = check(loaded.model, name=loaded.name, origin=loaded.origin, what_if=(), compare=False)
    layers = tuple(replace(layer, head_stats=(), advice=None) for layer in report.record.layers)
    return replace(report.record, layers=layers, findings=(), unseen=())


def about_curves(record: CheckRecord, d: int) -> dict[str, float]:
    """How many heads there are, and how many freeze now and without the scale."""
    freezing = [
        head.freezing
        for layer in record.layers
        if layer.curve is not None
        for head in layer.curve.heads
        if head.freezing is not None
    ]
    return {
        "heads": float(len(freezing)),
        "heads_frozen": float(sum(factor < 1 for factor in freezing)),
        "heads_frozen_none": float(sum(factor < sqrt(d) for factor in freezing)),
        "head_freezes_at": median(freezing),
    }


def measure() -> tuple[StoryMeasured, CheckRecord]:
    """Everything; it takes a few minutes."""
    loaded = trained()
    found, record = finding.measure(loaded), curves(loaded)
    fields = {**numbers.measure(), **about_finding(found), **about_curves(record, found.d)}
    created = datetime.now(UTC).isoformat(timespec="seconds")
    packages = versions("torch", "transformers", "numpy")
    return StoryMeasured(MEASURED_SCHEMA, created, packages, DEFAULT_SHA256, found, fields), record


def write(name: str, record: object) -> None:
    """Write a record to `lab/recorded`."""
    path = Path(recorded.__file__).parent / name
    path.write_text(json.dumps(to_plain(record), ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    story, curved = measure()
    write(MEASURED, story)
    write(MODEL, curved)
