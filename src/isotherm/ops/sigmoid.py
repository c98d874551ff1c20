"""Attention with a sigmoid in place of the softmax: each key has its own weight, so there is no row to measure."""

import torch
from torch import Tensor

from isotherm.ops.problem import Problem
from isotherm.ops.reference import logits


def solve(problem: Problem, bias: Tensor) -> Tensor:
    """σ(s + bias)·v over visible keys, `bias` [B or 1, Hq or 1, T, 1]; holds the n × n matrix."""
    weights = torch.sigmoid(logits(problem) + bias.to(problem.dtype))
    weights = weights.masked_fill(~problem.visibility.matrix(), 0)
    v = problem.v.to(problem.dtype).repeat_interleave(problem.groups, dim=1)
    return (weights @ v).to(problem.v.dtype)
