"""Runs for tests, made by hand: healthy ones, and one whose logits grow."""

from collections.abc import Sequence
from math import exp
from os import PathLike

import numpy as np

from isotherm.monitor.alerts import Alarms
from isotherm.monitor.store import Writer, read
from isotherm.record.watch import Reading, WatchedLayer, WatchRecord

LAYERS = tuple(WatchedLayer(number, f"blocks.{number}.attn", 4) for number in range(3))


def reading(
    step: int, layers: Sequence[WatchedLayer] = LAYERS, *, hot: float = 0.0, seed: int = 0, **fields
) -> Reading:
    """One reading of a small run. `hot` heats the last head of the last layer: 1 is a hundredfold logit."""
    heads, chance = sum(layer.heads for layer in layers), np.random.default_rng([seed, step])
    std = 1.2 + 0.1 * chance.standard_normal(heads)
    std[-1] *= 100**hot
    gate = 1 / (1 + std / 3)
    values = {
        "max_logit": 4.5 * std,
        "logit_std": std,
        "entropy": 0.9 * gate,
        "gate": gate,
        "saturated": np.clip(0.5 - 2 * gate, 0, 1),
        "invalid": np.zeros(heads),
    }
    given = {"at": 1.7e9 + step, "loss": 2 + 3 * exp(-step / 500), "rows": 128, "seconds": 0.002} | fields
    gradients = {name: chance.uniform(0.01, 0.02, len(layers)).astype(np.float32) for name in ("q", "k")}
    return Reading(step, values={k: v.astype(np.float32) for k, v in values.items()}, gradients=gradients, **given)


def run(
    path: str | PathLike[str],
    layers: Sequence[WatchedLayer] = LAYERS,
    steps: Sequence[int] = range(0, 5000, 50),
    hot: float = 1.0,
    alarms: bool = True,
) -> WatchRecord:
    """A whole run in a store, whose last head gets hotter; steps 2000 to 2500 are missing."""
    told = Alarms(layers)
    with Writer(path, model="tiny", every=50, rows=128) as writer:
        writer.layers(layers)
        for step in steps:
            if not 2000 < step < 2500:
                one = reading(step, layers, hot=hot * max(step - 1000, 0) / 4000)
                writer.reading(one)
                for event in told.look(one) if alarms else ():
                    writer.event(event)
    return read(path)
