"""Where a row's softmax would lose all but its largest logits, from the gaps below the maximum.

Hayase and Karakida (2026, arXiv:2605.12697) count the competitors N(t) of a row within a gap t of its largest logit and
show that this count decides the critical inverse temperature; laws such as √ln n, ln n and (ln n)² are what it comes to for
one or another distribution of logits. Here, with the logits as they are: at a factor f the competitors within t weigh about
N(t)·e^(−f·t) beside the largest, so the row is critical at

    f* = max over its keys of ln(1 + j)/t_j,    t_j the gap of the j-th competitor.

Above f* no group of competitors outweighs the largest logit. For n independent normal logits of spread σ this is √(2 ln n)/σ
up to a factor of order 1, where the random energy model freezes.
"""

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from isotherm.probe import Capture
from isotherm.theory import freezing_threshold

ROWS = 16
"""Rows of each head and sequence that are looked at."""
SEQUENCES = 2


def gaps(logits: Tensor) -> Tensor:
    """The gaps below the largest of each row [..., n], ascending, without the largest itself: [..., n − 1]."""
    ordered = logits.sort(-1, descending=True).values
    return ordered[..., :1] - ordered[..., 1:]


def critical_factor(logits: Tensor) -> Tensor:
    """f* of each row of logits [..., n]; keys that are not visible have −inf. Inf where two logits tie for the largest."""
    below = gaps(logits)
    rank = torch.arange(1, below.shape[-1] + 1, dtype=below.dtype, device=below.device)
    return ((1 + rank).log() / below).amax(-1)


def critical_of(captures: Sequence[Capture]) -> tuple[float | None, float | None, float | None]:
    """Medians over heads and rows: the critical factor, keys within one nat of the largest (itself included), and the factor at
    which the spread of the logits reaches √(2 ln n). None where no logits are known."""
    critical, within, freezing = [], [], []
    for capture in captures:
        if not capture.affine:
            continue
        logits, seen = _logits(capture)
        many = seen.sum(-1) >= 3
        if not many.any():
            continue
        rows, count = logits[many], seen[many].sum(-1)
        critical.append(critical_factor(rows))
        within.append((gaps(rows) <= 1).sum(-1).double() + 1)
        known = seen[many]
        mean = rows.where(known, 0).sum(-1) / count
        spread = ((rows - mean.unsqueeze(-1)).where(known, 0).square().sum(-1) / count).sqrt()
        threshold = torch.tensor([freezing_threshold(int(n)) for n in count], dtype=spread.dtype, device=spread.device)
        freezing.append(threshold / spread)
    return _median(critical), _median(within), _median(freezing)


def _logits(capture: Capture) -> tuple[Tensor, Tensor]:
    """Logits [B, H, R, S] of rows in the second half of the sequence, and which keys they see."""
    problem = capture.problem
    total = problem.q.shape[2]
    rows = torch.linspace(total // 2, total - 1, min(ROWS, total), device=problem.q.device).long().unique()
    part = problem.take(rows)
    q, k = part.q[:SEQUENCES].double(), part.k[:SEQUENCES].double().repeat_interleave(part.groups, 1)
    logits = part.scale * q @ k.mT
    if part.softcap:
        logits = part.softcap * (logits / part.softcap).tanh()
    if part.bias is not None:
        logits = logits + part.bias[:SEQUENCES].double()
    seen = part.visibility.matrix()[:SEQUENCES].expand_as(logits)
    if capture.padded is not None:
        seen = seen & ~capture.padded[:SEQUENCES, rows].view(-1, 1, len(rows), 1)
    return logits.where(seen, -torch.inf), seen


def _median(found: list[Tensor]) -> float | None:
    if not found:
        return None
    value = torch.cat([one.flatten() for one in found]).median().item()
    return value if isfinite(value) else None
