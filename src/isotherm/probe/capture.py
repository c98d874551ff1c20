"""What a probe brings back from one attention call: enough to measure it and to replay it under another rule."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from isotherm.ops import Problem
from isotherm.record import Kind

Implementation = str
"""eager, sdpa, flex_attention, flash… (transformers' own names), multi-head, hand-written, isotherm."""


@dataclass(frozen=True)
class Factor:
    """What happened to q (or k) between its projection and the kernel, seen in the lengths of its vectors.

    `value` is the one number they were all multiplied by: 1 for rotations and nothing, d^-½ for a pre-scaled query, YaRN's
    m. None where it is no one number: `kind` says "normalised" (differs from token to token and head to head, as QK-norm
    does), "per-query" (depends on the position alone, as log-n and Llama 4 do), or "untraced" (no projection was found
    whose output has these vectors). `source` is the projection's name. `after_norm` is the one number that came after the
    normalisation, for "normalised" only, where it could be had.
    """

    value: float | None
    kind: Literal["constant", "normalised", "per-query", "untraced"]
    source: str | None = None
    after_norm: float | None = None


@dataclass(frozen=True)
class Capture:
    """One attention call. `problem` holds q and k as the kernel got them, the scale handed to it, and what it may see
    (its v is k: values are not kept); `sink` [Hq] is the logit of a learned sink; `passed` is the scale as the caller wrote
    it, None if left to the default or if it is no one number (then it is already in the problem's q).
    """

    name: str
    module: str
    kind: Kind
    implementation: Implementation
    problem: Problem
    sink: Tensor | None
    passed: float | None
    q_factor: Factor
    k_factor: Factor
