"""The statistics of one problem under several scales."""

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

import torch
from torch import Tensor

from isotherm.ops import blockwise, triton
from isotherm.ops.problem import Problem
from isotherm.stats import RowStats

AT_ONCE = 320
"""Most sampled rows times scales in one pass on a CPU: more no longer fit the cache together."""


@torch.no_grad()
def statistics_at(problem: Problem, scales: Sequence[float], rows: Tensor | None = None) -> list[RowStats]:
    """Statistics at each of `scales` in place of the problem's own, of every row or of some.

    A GPU makes one pass over q·kᵀ for up to eight scales, or, in half precision, for any number of them if the highest is at
    most eight times the lowest. Beyond eight, sums are interpolated from those at ten other scales, which adds an error of up
    to 3e-5 nats to an entropy over 16,384 keys and 2e-4 nats over 131,072. On other devices every scale takes a pass, but a few
    sampled rows pass together at several scales.

    >>> from isotherm.ops import Visibility
    >>> q = torch.eye(3).view(1, 1, 3, 3)
    >>> problem = Problem(q, q, q, Visibility(torch.arange(3), 3, False), 1.0)
    >>> [round(stats.max_logit.max().item(), 3) for stats in statistics_at(problem, [0.5, 2.0])]
    [0.5, 2.0]
    """
    if problem.q.is_cuda and triton.unsupported(problem) is None:
        found = triton.statistics_at(problem, scales, rows)
    elif rows is None:
        found = [blockwise.statistics(replace(problem, scale=scale)) for scale in scales]
    else:
        step = max(1, AT_ONCE // max(1, len(rows)))
        passes = (scales[start : start + step] for start in range(0, len(scales), step))
        found = [stats for some in passes for stats in _together(problem, some, rows)]
    if rows is None:
        return found
    return [replace(stats, rows=rows, total_rows=problem.q.shape[2]) for stats in found]


def _together(problem: Problem, scales: Sequence[float], rows: Tensor) -> list[RowStats]:
    """Sampled rows at several scales in one pass: each row is there once for every scale, which is multiplied into its q."""
    part = problem.take(rows.repeat_interleave(len(scales)))
    factors = torch.tensor(scales, dtype=problem.dtype, device=rows.device).repeat(len(rows)).unsqueeze(-1)
    stats = blockwise.statistics(replace(part, q=part.q.to(problem.dtype) * factors, scale=1.0))
    every = [slice(place, None, len(scales)) for place in range(len(scales))]
    return [stats.map(itemgetter((slice(None), slice(None), places))) for places in every]
