"""Test whether a capture describes what the model computed: recompute a few rows from it and compare them with the output."""

from math import exp, isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isotherm.ops import Problem

Array = NDArray[np.float64]

SMALL = 1 << 20
"""Matrices of no more numbers are multiplied without threads."""
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


def weights(problem: Problem, sink: Tensor | None, batch: int, head: int, row: int) -> Array | None:
    """One row of softmax weights [S]. None if the row sees no key or has a logit that is not finite."""
    q, k = _together(problem.q[batch, head, row], problem.k[batch, head // problem.groups])
    return _weights_of(problem, sink, (batch, head, row), _times(k, q))


def _weights_of(problem: Problem, sink: Tensor | None, at: tuple[int, int, int], products: Array) -> Array | None:
    """The weights of a row whose q·k are known."""
    batch, head, row = at
    logits = products * problem.scale
    if problem.softcap is not None:
        logits = problem.softcap * np.tanh(logits / problem.softcap)
    if problem.bias is not None:
        logits = logits + _numbers(_pick(problem.bias, batch, head, row))
    seen = _seen(problem, batch, head, row)
    known = logits if seen is None else logits[seen]
    if not known.size or not isfinite(known.sum()):
        return None
    top = known.max() if sink is None else max(known.max(), float(sink[head]))
    shares = np.exp(logits - top) if seen is None else np.where(seen, np.exp(np.minimum(logits - top, 0)), 0.0)
    mass: Array = shares / (shares.sum() + (0.0 if sink is None else exp(float(sink[head]) - top)))
    return mass


def _times(matrix: Array, vector: Array) -> Array:
    """matrix · vector. The threads of a BLAS take longer to wake than small ones take to multiply."""
    product: Array = matrix @ vector if matrix.size > SMALL else np.einsum("ij,j->i", matrix, vector)
    return product


def _seen(problem: Problem, batch: int, head: int, row: int) -> NDArray[np.bool_] | None:
    """The keys that a row sees, [S]; None means all."""
    visibility = problem.visibility
    if not visibility.causal and visibility.window is None:
        seen = None
    else:
        offset = np.arange(visibility.keys) - int(visibility.positions[row])
        seen = (offset >= -visibility.behind) & (offset <= visibility.ahead)
    if visibility.mask is None:
        return seen
    mask: NDArray[np.bool_] = _pick(visibility.mask, batch, head, row).expand(visibility.keys).cpu().numpy()
    return mask if seen is None else mask & seen


def _pick(tensor: Tensor, batch: int, head: int, row: int) -> Tensor:
    """One row of [B, H, T, S], whose dimensions may have size 1 where it is constant."""
    wanted = (min(index, size - 1) for index, size in zip((batch, head, row), tensor.shape, strict=False))
    return tensor[tuple(wanted)]


def sample(problem: Problem) -> list[tuple[int, int, int]]:
    """Rows to compare, as (batch, head, row): one in the middle and, if there is a mask, bias or cap, the last row of the first
    head."""
    batch, heads, rows = (size - 1 for size in problem.q.shape[:3])
    middle = (batch // 2, heads // 2, rows // 2)
    plain = problem.visibility.mask is None and problem.bias is None and problem.softcap is None
    return [middle] if plain else list(dict.fromkeys([middle, (0, 0, rows)]))


def gives_output(problem: Problem, sink: Tensor | None, values: Tensor, output: Tensor) -> bool:
    """Whether weights · values [B, Hkv, S, Dv] equals the output [B, Hq, T, Dv] that the model computed."""
    groups = problem.q.shape[1] // values.shape[1]
    for batch, head, row in sample(problem):
        at = batch, head, row
        q, got, k, value = _together(
            problem.q[at], output[at], problem.k[batch, head // problem.groups], values[batch, head // groups]
        )
        expected = _weights_of(problem, sink, at, _times(k, q))
        if expected is None or not isfinite(got.sum()):
            continue
        if not _near(_times(value.T, expected), got, np.abs(value).max(), problem.q):
            return False
    return True


def gives_softmax_of(problem: Problem, sink: Tensor | None, logits: Tensor) -> bool:
    """Whether the weights equal the softmax of the logits [B, Hq, T, S] that the model computed."""
    for batch, head, row in sample(problem):
        expected, got = weights(problem, sink, batch, head, row), logits[batch, head, row].double().softmax(-1)
        if expected is None or not bool(got.isfinite().all()):
            continue
        if not _near(expected, _numbers(got), float(got.max()), problem.q):
            return False
    return True


def same_weights(problem: Problem, other: Problem) -> bool:
    """Whether two problems have the same weights. One of them may have repeated its key heads."""
    for batch, head, row in sample(problem):
        expected, got = weights(problem, None, batch, head, row), weights(other, None, batch, head, row)
        if expected is not None and got is not None and not _near(expected, got, got.max(), problem.q):
            return False
    return True


def _together(*tensors: Tensor) -> list[Array]:
    """The tensors' numbers. From a GPU they come in one copy, because each copy waits for what the GPU was given before."""
    if len({(tensor.device, tensor.dtype) for tensor in tensors}) > 1 or not tensors[0].is_cuda:
        return [_numbers(tensor) for tensor in tensors]
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors]).cpu().double().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors])
    parts = np.split(flat, ends[:-1].tolist())
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _numbers(tensor: Tensor) -> Array:
    """The tensor as float64 in numpy, whose operations on a row cost a tenth of torch's."""
    numbers: Array = tensor.detach().to("cpu", torch.float64).numpy()
    return numbers


def _near(expected: Array, got: Array, size: float, like: Tensor) -> bool:
    tolerance = TOLERANCE.get(like.dtype, 3e-2)
    if like.device.type != "cpu" or torch.is_autocast_enabled(like.device.type):
        tolerance = max(tolerance, 1e-2)  # TF32 and autocast round more than the inputs' precision suggests
    return bool(np.abs(expected - got).max() <= tolerance * size)
