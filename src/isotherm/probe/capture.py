"""What a probe brings back from one attention call: enough to measure the call and to replay it under another rule."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from isotherm.ops import Problem
from isotherm.record import Kind


@dataclass(frozen=True)
class Factor:
    """What happened to q (or k) between its projection and the kernel, judged by the lengths of its vectors.

    `kind` is one of:
    - "constant": every vector was multiplied by `value`. A rotation gives 1, a pre-scaled query d^-½, YaRN its m.
    - "normalised": the factor differs between tokens and heads, as QK-norm's does. `after_norm` is the number that
      multiplied the normalised vectors, where it is known.
    - "per-query": the factor depends on the position alone, as log-n's and Llama 4's do.
    - "untraced": no projection was found whose output has these vectors.

    `value` is None for every kind but "constant". `source` is the projection's name.
    """

    value: float | None
    kind: Literal["constant", "normalised", "per-query", "untraced"]
    source: str | None = None
    after_norm: float | None = None


@dataclass(frozen=True)
class Capture:
    """One attention call.

    - `name`, `module`: the module's name in the model, and its class.
    - `implementation`: transformers' name (eager, sdpa, flex_attention …), multi-head, hand-written or isotherm.
    - `problem`: q and k as the kernel received them, its scale and the visible keys. Values are not kept: its v is k.
    - `sink` [Hq]: the logit of a learned sink.
    - `passed`: the scale as the caller wrote it. None if the caller left it to the default, or if it is not one number (then
      the problem's q already contains it).
    - `padded` [B, T]: True where the query is padding. None if no query is known to be.
    """

    name: str
    module: str
    kind: Kind
    implementation: str
    problem: Problem
    sink: Tensor | None
    passed: float | None
    q_factor: Factor
    k_factor: Factor
    padded: Tensor | None = None
