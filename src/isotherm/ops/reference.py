"""The specification: attention as a textbook writes it. It holds the n × n matrix and is differentiable."""

import torch
from torch import Tensor

from isotherm.ops.problem import Problem, Solution
from isotherm.stats import RowStats


def logits(problem: Problem) -> Tensor:
    """s [B, Hq, T, S] as they enter the softmax, before masking."""
    q, k = (tensor.to(problem.dtype) for tensor in (problem.q, problem.k))
    s = (problem.scale * q) @ k.repeat_interleave(problem.groups, dim=1).transpose(-1, -2)
    if problem.softcap is not None:
        s = problem.softcap * torch.tanh(s / problem.softcap)
    return s if problem.bias is None else s + problem.bias.to(problem.dtype)


def solve(problem: Problem, *, stats: bool) -> Solution:
    """softmax(s)·v over visible keys; a row that sees none gives 0."""
    s, visible = logits(problem), problem.visibility.matrix()
    if not problem.k.shape[2]:  # without keys there is no maximum
        empty = s.new_full(s.shape[:-1], -torch.inf)
        output = s @ problem.v.to(problem.dtype).repeat_interleave(problem.groups, dim=1)
        return Solution(output.to(problem.v.dtype), empty, RowStats.from_logits(s) if stats else None)
    s = s.masked_fill(~visible, -torch.inf)
    peak = s.detach().amax(-1, keepdim=True)
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    weights = (s - peak).exp()
    total = weights.sum(-1, keepdim=True)
    empty = total == 0
    total = torch.where(empty, 1.0, total)
    output = (weights @ problem.v.to(problem.dtype).repeat_interleave(problem.groups, dim=1)) / total
    lse = torch.where(empty, -torch.inf, peak + total.log()).squeeze(-1)
    return Solution(output.to(problem.v.dtype), lse, RowStats.from_logits(s.detach(), visible) if stats else None)
