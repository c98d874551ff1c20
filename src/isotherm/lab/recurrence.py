"""Recurrent layers for many seeds at once, as plain formulas, so that paths through them can be followed and counted."""

from collections.abc import Sequence
from math import log, sqrt
from typing import NamedTuple

import torch
from torch import Tensor


class RecurrentWeights(NamedTuple):
    """A layer for each seed: `into` [S, d, g·d] from the input, `over` [S, d, g·d] from the state, `bias` [S, 1, g·d] twice."""

    into: Tensor
    over: Tensor
    bias: Tensor
    state_bias: Tensor


def weights(generators: Sequence[torch.Generator], d: int, gates: int) -> RecurrentWeights:
    """PyTorch's initialisation, uniform in ±1/√d; 3 gates for a GRU, 1 for a tanh net."""

    def drawn(rows: int) -> Tensor:
        each = [2 * torch.rand(rows, gates * d, generator=g, dtype=torch.float64) - 1 for g in generators]
        return torch.stack(each) / sqrt(d)

    return RecurrentWeights(drawn(d), drawn(d), drawn(1), drawn(1))


def keep_long(layer: RecurrentWeights, generators: Sequence[torch.Generator], steps: int) -> RecurrentWeights:
    """The same GRU whose update gates are biased to hold on for up to `steps` (Tallec & Ollivier 2018, arXiv:1804.11188)."""
    d = layer.bias.shape[-1] // 3
    ages = torch.stack([torch.rand(1, d, generator=g, dtype=torch.float64) for g in generators])
    bias = layer.bias.clone()
    bias[..., d : 2 * d] = ((ages * (steps - 2) + 1).log()) if steps > 2 else log(1)
    return layer._replace(bias=bias, state_bias=torch.zeros_like(layer.state_bias))


def tanh_step(layer: RecurrentWeights, x: Tensor, h: Tensor) -> Tensor:
    """h ← tanh(x W + h U + b), one step for every seed; x and h [S, B, d]."""
    return torch.tanh(torch.baddbmm(layer.bias, x, layer.into) + torch.baddbmm(layer.state_bias, h, layer.over))


def gru_step(layer: RecurrentWeights, x: Tensor, h: Tensor) -> Tensor:
    """One step of torch.nn.GRU: gates in the order reset, update, new."""
    given, kept = torch.baddbmm(layer.bias, x, layer.into), torch.baddbmm(layer.state_bias, h, layer.over)
    reset, update, new = given.chunk(3, -1)
    reset_h, update_h, new_h = kept.chunk(3, -1)
    z = torch.sigmoid(update + update_h)
    candidate = torch.tanh(new + torch.sigmoid(reset + reset_h) * new_h)
    return candidate + z * (h - candidate)
