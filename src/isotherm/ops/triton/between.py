"""Sums of weights at scales between those they are known at.

Over the keys of a row Σ e^(s·t), as a function of the scale s, is a Laplace transform, and these are so smooth that a few
scales determine it in between. Known with its slope Σ t·e^(s·t) at every half-octave, it comes out within 3e-6 of itself
whatever 16,384 logits are, an entropy within 3e-5 nats and Σw² within 5e-5 of itself (of 131,072: 2e-5, 2e-4 and 2e-4);
what is rounded in float32 on the way may be more. So any number of scales within three octaves take one pass, and two
exponentials a logit. What the sums at the half-octaves are multiplied by does not depend on the logits: it is found here
by least squares, once for each set of scales.
"""

from collections.abc import Sequence
from ctypes import c_float
from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

NODES = 10
"""Scales at which sums are known: half-octaves up to twice the highest scale, where Σw² is Σw, and down to one half-octave
below the lowest that may be asked for."""
REACH = 8.0
"""The highest scale is this many times the lowest at most."""
FACTORS = 16
"""Exponentials that a weight at these is the product of at most: two a logit are enough then."""
MANY = 2.0**14
"""Keys that share a row's weight, beside a few that have most of it: the more, the further down weights must be right."""
NOISE = 2.0**-22
"""Of the sums, relatively: what they are multiplied by is kept so small that this does not grow much."""
POINTS, FARTHEST = 320, 60.0
"""Logits at which weights are to be right, and the lowest of them, in nats at the lowest of the scales."""
MOST = 256
"""Tables kept at a time."""

_tables: dict[tuple[tuple[float, ...], torch.device], Tensor] = {}
_in_graphs: dict[tuple[tuple[float, ...], torch.device], Tensor] = {}


def nodes(highest: float) -> tuple[float, ...]:
    """The half-octaves, ascending, for scales up to `highest`."""
    return tuple(highest * 2.0 ** (i / 2 + 1) for i in range(1 - NODES, 1))


def ready(scales: Sequence[float], device: torch.device) -> bool:
    """Whether there is a table, or one can be made now: not while a CUDA graph is captured, which copies nothing."""
    return (tuple(scales), device) in _tables or not _capturing(device)


def table(scales: Sequence[float], device: torch.device) -> Tensor:
    """float64 [1 + 6 · NODES, scales]: each scale's ratio to the lowest node, and what sums are multiplied by.

    For each node first what its Σw, then what its Σtw is multiplied by: for Σw, Σtw and Σw² at the scale. Here t are
    exponents of 2 at the lowest node.
    """
    key = tuple(scales), device
    found = _tables.get(key)
    if found is None:
        while len(_tables) >= MOST:
            _tables.pop(next(iter(_tables)), None)
        lowest = nodes(scales[-1])[0]
        ratios = np.array([scale / lowest for scale in scales])
        rows = np.concatenate([ratios[None], mixture(ratios).reshape(-1, len(ratios))])
        found = _tables[key] = torch.from_numpy(rows).to(device)
    if _capturing(device):
        _in_graphs[key] = found  # which read it for as long as they live
    elif device.type == "cuda":
        found.record_stream(torch.cuda.current_stream(device))
    return found


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def mixture(ratios: Array) -> Array:
    """[NODES, 2, 3, scales]: of the sums at each node, what makes those at scales of these ratios to the lowest one."""
    known = np.array([c_float(2.0 ** (i / 2)).value for i in range(NODES)])
    slope = _fit(ratios, known, slope=True) / (log(2) * ratios)
    parts = np.stack([_fit(ratios, known), slope, _fit(2 * ratios, known)], 1).reshape(2, NODES, 3, len(ratios))
    return np.stack([parts[0], parts[1] * (log(2) * known)[:, None, None]], 1)


def _fit(scales: Array, known: Array, *, slope: bool = False) -> Array:
    """[2 · NODES, scales]: how much of e^(bt), and of bt·e^(bt), at every known b makes e^(st), or st·e^(st) if `slope`.

    An error in a weight counts relative to the sum of the weights: that is at least 1, as the logits here are relative to the
    level where it is 1 at the highest node; and where all keys are at t, at least MANY · e^(st).
    """
    t = -np.concatenate([[0.0], np.logspace(-3, 0, POINTS) * FARTHEST])
    at = np.multiply.outer(t, known)
    basis = np.concatenate([np.exp(at), at * np.exp(at)], 1) / len(t) ** 0.5
    found = []
    for s in scales:
        wanted = np.exp(s * t)
        weight = np.maximum(wanted, 1 / MANY)
        # By Jensen's inequality the sum at a lower scale b is larger by MANY^(1 − b/s) at most.
        grown = MANY ** np.maximum(1 - known / s, 0)
        rows = np.concatenate([basis / weight[:, None], NOISE * np.diag(np.concatenate([grown, 3 * grown]))])
        goal = (s * t if slope else 1) * wanted / weight / len(t) ** 0.5
        size = np.linalg.norm(rows, axis=0)
        q, r = np.linalg.qr(rows / size)
        found.append(np.linalg.solve(r, q[: len(t)].T @ goal) / size)
    return np.stack(found, 1)
