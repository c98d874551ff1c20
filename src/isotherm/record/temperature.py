"""Scaled beside unscaled attention over the head dimension."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RuleAtDimension:
    """One rule at one head dimension: measured over all rows, predicted beside it. Entropies are fractions of ln n."""

    logit_std: float
    entropy: float
    entropy_predicted: float
    gate: float
    gate_predicted: float
    gate_p10: float


@dataclass(frozen=True)
class DimensionRow:
    """One head dimension, with 1/√d and without."""

    d: int
    scaled: RuleAtDimension
    unscaled: RuleAtDimension


@dataclass(frozen=True)
class TemperatureTable:
    """n keys, `rows_measured` softmax rows a reading; a row freezes beyond a logit spread of `threshold`."""

    n: int
    rows_measured: int
    threshold: float
    rows: tuple[DimensionRow, ...]
