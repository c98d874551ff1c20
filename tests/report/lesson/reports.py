"""Reports of `isotherm check` for the lesson: a small good one, and ways to break it."""

import copy
from typing import Any

ATTACK = "</script><img src=x onerror=alert(1)>\u202e"


def curve(gate: float = 0.9) -> dict[str, Any]:
    return {
        "gate": [1.0, gate, 0.1],
        "entropy_fraction": [0.99, 0.8, None],
        "freezing": 2.5,
        "best_open": 4.0,
    }


def layer(index: int, heads: int = 2, name: str = "encoder.{index}.attention") -> dict[str, Any]:
    factors = {"factors": [0.25, 1.0, 4.0], "heads": [curve(0.5 + 0.1 * head) for head in range(heads)]}
    return {
        "index": index,
        "name": name.format(index=index),
        "keys": 64,
        "head_dim": 32,
        "curve": curve() | factors | {"rows": 32, "rows_total": 64, "label": "sampled"},
    }


def report() -> dict[str, Any]:
    """Three layers; the last has no curve."""
    layers = [layer(0), layer(3, heads=5), layer(4) | {"curve": None}]
    return {"schema": "isotherm.check/1", "model": {"name": "my-model"}, "layers": layers}


def broken(path: str, value: Any) -> dict[str, Any]:
    """The report with the value at a place such as `layers.0.curve.gate.1` replaced, or taken out by `...`."""
    whole = copy.deepcopy(report())
    *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place: Any = whole
    for part in way:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return whole


BROKEN = {
    "schema": ("schema", "isotherm.explain/1", "drop_schema"),
    "no schema": ("schema", ..., "drop_no_schema"),
    "no model": ("model", ..., "drop_missing"),
    "model is a list": ("model", [], "drop_object"),
    "name is a number": ("model.name", 7, "drop_text"),
    "layers is text": ("layers", "three", "drop_list"),
    "too many layers": ("layers", [layer(0)] * 1025, "drop_long"),
    "layer is null": ("layers.0", None, "drop_object"),
    "text for a gate": ("layers.0.curve.gate.1", "0.9", "drop_number"),
    "a gate beyond 1": ("layers.0.curve.gate.1", 1.5, "drop_number"),
    "a gate that is a list": ("layers.0.curve.heads.0.gate.1", [0.5], "drop_number"),
    "too few gates": ("layers.0.curve.gate", [1.0, 0.9], "drop_length"),
    "too many gates": ("layers.0.curve.gate", [1.0] * 4, "drop_long"),
    "no entropy": ("layers.0.curve.entropy_fraction", ..., "drop_missing"),
    "factors descend": ("layers.0.curve.factors", [4.0, 1.0, 0.25], "drop_order"),
    "factors without 1": ("layers.0.curve.factors", [0.25, 0.5, 4.0], "drop_factors"),
    "a factor of 0": ("layers.0.curve.factors.0", 0, "drop_number"),
    "half a key": ("layers.0.keys", 1.5, "drop_whole"),
    "freezing is true": ("layers.0.curve.freezing", True, "drop_number"),
    "heads is an object": ("layers.0.curve.heads", {"length": 3}, "drop_list"),
    "no curves": ("layers", [layer(0) | {"curve": None}], "drop_no_curves"),
}
"""What is broken: where, by what, and the word that the page answers with."""
