"""Whether a capture says what the model did: a few rows computed from it alone, held against what came out."""

import torch
from torch import Tensor

from isotherm.ops import Problem

TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


def weights(problem: Problem, sink: Tensor | None, batch: int, head: int, row: int) -> Tensor | None:
    """One row of softmax weights [S] in float64; None where it sees no key or meets what is not finite."""
    one = problem.take(torch.tensor([row], device=problem.q.device))
    seen = _pick(one.visibility.matrix(), batch, head)
    q, k = problem.q[batch, head, row].double(), problem.k[batch, head // problem.groups].double()
    logits = problem.scale * (k @ q)
    if problem.softcap is not None:
        logits = problem.softcap * torch.tanh(logits / problem.softcap)
    if one.bias is not None:
        logits = logits + _pick(one.bias, batch, head)
    if not bool(seen.any()) or not bool(logits[seen.expand_as(logits)].isfinite().all()):
        return None
    logits = logits.masked_fill(~seen, -torch.inf)
    if sink is None:
        return logits.softmax(-1)
    return torch.cat([logits, sink[head].double().view(1)]).softmax(-1)[:-1]


def _pick(tensor: Tensor, batch: int, head: int) -> Tensor:
    """[B, H, 1, S] with 1 for what does not vary → [S]."""
    return tensor[min(batch, tensor.shape[0] - 1), min(head, tensor.shape[1] - 1), 0]


def sample(problem: Problem) -> list[tuple[int, int, int]]:
    """A few rows, (batch, head, row): the corners, and one between."""
    batch, heads, rows = (size - 1 for size in problem.q.shape[:3])
    return list(dict.fromkeys([(0, 0, rows), (batch, heads, rows // 2), (batch, 0, rows), (0, heads, rows)]))


def gives(problem: Problem, sink: Tensor | None, values: Tensor, output: Tensor) -> bool:
    """Whether weights · values [B, Hkv, S, Dv] are rows of the output [B, Hq, T, Dv] that the model computed."""
    groups = problem.q.shape[1] // values.shape[1]
    for batch, head, row in sample(problem):
        expected, got = weights(problem, sink, batch, head, row), output[batch, head, row].double()
        if expected is None or not bool(got.isfinite().all()):
            continue
        value = values[batch, head // groups].double()
        if not _near(expected @ value, got, value.abs().max(), problem.q):
            return False
    return True


def softens(problem: Problem, sink: Tensor | None, logits: Tensor) -> bool:
    """Whether the weights are the softmax of the logits [B, Hq, T, S] that the model computed."""
    for batch, head, row in sample(problem):
        expected, got = weights(problem, sink, batch, head, row), logits[batch, head, row].double().softmax(-1)
        if expected is None or not bool(got.isfinite().all()):
            continue
        if not _near(expected, got, got.max(), problem.q):
            return False
    return True


def same_rows(problem: Problem, other: Problem, sink: Tensor | None = None) -> bool:
    """Whether two problems have the same weights, however their heads are repeated."""
    for batch, head, row in sample(problem):
        expected, got = weights(problem, sink, batch, head, row), weights(other, sink, batch, head, row)
        if expected is not None and got is not None and not _near(expected, got, got.max(), problem.q):
            return False
    return True


def _near(expected: Tensor, got: Tensor, size: Tensor, like: Tensor) -> bool:
    tolerance = TOLERANCE.get(like.dtype, 3e-2)
    if like.device.type != "cpu" or torch.is_autocast_enabled(like.device.type):
        tolerance = max(tolerance, 1e-2)  # TF32 and autocast round more than the inputs' own precision
    return bool((expected - got).abs().max() <= tolerance * size)
