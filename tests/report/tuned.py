"""Records of tuned models, made up by hand: one that is fine, one with several lengths, laws and steps."""

from dataclasses import replace
from math import log

from isotherm.record.tune import (
    TUNE_SCHEMA,
    TemperatureGradient,
    TunedFactor,
    TunedLaw,
    TunedLength,
    TunePoint,
    TuneRecord,
    TuneStep,
)


def best(factor: float, *, worth: bool = True, enclosed: bool = True) -> TunedFactor:
    gain = 0.02 if worth else 0.0005
    return TunedFactor(
        factor, factor * 0.97, factor * 1.03, 3.2 - gain, gain, gain - 0.004, gain + 0.004, worth, enclosed
    )


def length(tokens: int, factor: float, *, worth: bool = True) -> TunedLength:
    points = []
    for step in range(-3, 4):
        at = factor * 1.2**step
        change = 0.1 * (log(at / factor) ** 2 - log(factor) ** 2)
        points.append(TunePoint(at, 3.2 + change, change, change - 0.01, change + 0.01))
    return TunedLength(tokens, 32, tokens - 1, 3.2, tuple(points), best(factor, worth=worth), 1.6, 4.0, 2.1)


def gradient() -> TemperatureGradient:
    rows = tuple(tuple(0.01 * (head - layer) for head in range(4)) for layer in range(3))
    margins = tuple(tuple(0.005 for _ in row) for row in rows)
    return TemperatureGradient("next", 512, 32, 3.2, ("h.0", "h.1", "h.2"), rows, margins, 1.5)


def fine() -> TuneRecord:
    one = length(512, 1.01, worth=False)
    versions = {"python": "3.11", "torch": "2.13"}
    return TuneRecord(
        TUNE_SCHEMA, "2026-11-18T21:00:00+00:00", "tiny", "tiny", "held-out.txt", "next", ("h.0", "h.1", "h.2"), (one,), (),
        None, gradient(), (), 12, 34.5, "cpu", "float32", versions,
    )  # fmt: skip


def several() -> TuneRecord:
    lengths = (length(512, 1.01, worth=False), length(2048, 1.12), length(8192, 1.25))
    laws = (
        TunedLaw("sqrt-log", "c·√(ln n)", 0.41, 0.7, 2, True, (1.02, 1.13, 1.23)),
        TunedLaw("constant", "c", 1.1, 31.0, 2, False, (1.1, 1.1, 1.1)),
    )
    steps = (TuneStep("h.1", None, 0.05, best(0.4), 3.1), TuneStep("h.2", 3, -0.01, best(1.2, worth=False), 3.1))
    return replace(fine(), lengths=lengths, laws=laws, law_fits=True, steps=steps)
