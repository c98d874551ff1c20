"""Sums of weights at any scale, interpolated from sums at ten fixed scales, the nodes.

Over the keys of a row, Σ e^(s·t) as a function of the scale s is a Laplace transform, which is very smooth. Where it is
known with its slope Σ t·e^(s·t) at every half-octave, it is known in between: Σw to 3e-6 of itself for any 16,384 logits,
an entropy to 3e-5 nats and Σw² to 5e-5 of itself (for 131,072 logits 2e-5, 2e-4 and 2e-4). Rounding in float32 may add
more. So any number of scales within three octaves take one pass and two exponentials a logit.

A sum at a scale is a linear combination of the sums at the nodes. The coefficients do not depend on the logits: least
squares finds them here, once for each set of scales.
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
"""Half-octaves from one half-octave below the lowest scale that may be asked for up to twice the highest, where Σw is the
Σw² of the highest."""
MOST_RATIO = 8.0
"""The highest scale is at most this many times the lowest."""
MOST_FACTORS = 16
"""Exponentials that a weight at a node may be the product of. Two exponentials a logit are then enough."""
MANY = 2.0**14
"""Keys that share a row's weight beside the few that have most of it. More keys require accuracy further down."""
NOISE = 2.0**-22
"""Relative rounding error of the sums. It keeps the coefficients small, so that they do not amplify it much."""
POINTS, FARTHEST = 320, 60.0
"""Number of logits at which the fit is made, and the lowest of them in nats at the lowest scale."""
MOST_TABLES = 256
"""Tables kept at a time."""

_tables: dict[tuple[tuple[float, ...], torch.device], Tensor] = {}
_in_graphs: dict[tuple[tuple[float, ...], torch.device], Tensor] = {}


def nodes(highest: float) -> tuple[float, ...]:
    """Return the nodes, ascending, for scales up to `highest`."""
    return tuple(highest * 2.0 ** (i / 2 + 1) for i in range(1 - NODES, 1))


def ready(scales: Sequence[float], device: torch.device) -> bool:
    """Return whether the table exists or can be made now. It cannot while a CUDA graph is captured, which forbids copies."""
    return (tuple(scales), device) in _tables or not _capturing(device)


def table(scales: Sequence[float], device: torch.device) -> Tensor:
    """Return the table of a set of scales, float64 [1 + 6 · NODES, scales].

    Row 0 has each scale's ratio to the lowest node. For each node follow three coefficients of its Σw and three of its Σwt,
    for Σw, Σwt and Σw² at the scale. t are exponents of 2 at the lowest node.
    """
    key = tuple(scales), device
    found = _tables.get(key)
    if found is None:
        while len(_tables) >= MOST_TABLES:
            _tables.pop(next(iter(_tables)), None)
        lowest = nodes(scales[-1])[0]
        ratios = np.array([scale / lowest for scale in scales])
        rows = np.concatenate([ratios[None], coefficients(ratios).reshape(-1, len(ratios))])
        found = _tables[key] = torch.from_numpy(rows).to(device)
    if _capturing(device):
        _in_graphs[key] = found  # a graph reads the table for as long as it lives
    elif device.type == "cuda":
        found.record_stream(torch.cuda.current_stream(device))
    return found


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def coefficients(ratios: Array) -> Array:
    """Return [NODES, 2, 3, scales]: coefficients of Σw and Σwt at each node for Σw, Σwt, Σw² at these ratios to the lowest."""
    known = np.array([c_float(2.0 ** (i / 2)).value for i in range(NODES)])
    slope = _fit(ratios, known, slope=True) / (log(2) * ratios)
    parts = np.stack([_fit(ratios, known), slope, _fit(2 * ratios, known)], 1).reshape(2, NODES, 3, len(ratios))
    return np.stack([parts[0], parts[1] * (log(2) * known)[:, None, None]], 1)


def _fit(scales: Array, known: Array, *, slope: bool = False) -> Array:
    """Return [2 · NODES, scales]: coefficients of e^(bt) and of bt·e^(bt) at every node b for e^(st), or st·e^(st) if `slope`.

    The error of a weight is relative to Σw. That is at least 1, since t = 0 is where Σw at the highest node would be 1; and
    at least MANY · e^(st) where all keys are at t.
    """
    t = -np.concatenate([[0.0], np.logspace(-3, 0, POINTS) * FARTHEST])
    at = np.multiply.outer(t, known)
    basis = np.concatenate([np.exp(at), at * np.exp(at)], 1) / len(t) ** 0.5
    found = []
    for s in scales:
        wanted = np.exp(s * t)
        weight = np.maximum(wanted, 1 / MANY)
        # By Jensen's inequality the sum at a lower scale b is larger by at most MANY^(1 − b/s).
        grown = MANY ** np.maximum(1 - known / s, 0)
        rows = np.concatenate([basis / weight[:, None], NOISE * np.diag(np.concatenate([grown, 3 * grown]))])
        goal = (s * t if slope else 1) * wanted / weight / len(t) ** 0.5
        size = np.linalg.norm(rows, axis=0)
        q, r = np.linalg.qr(rows / size)
        found.append(np.linalg.solve(r, q[: len(t)].T @ goal) / size)
    return np.stack(found, 1)
