"""Tokens as vectors, and where they stand: attention itself has no idea of order."""

from math import log, sqrt
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.models.layers import dropout
from isotherm.models.shape import Shape

Positions = Literal["sinusoidal", "learned"]


class Embedding(nn.Module):
    """E[token]·√width + position; the same matrix E turns the last layer back into logits (Press & Wolf 2017).

    E starts as N(0, 1/width): times √width its rows enter as unit-variance vectors, and as an output projection it gives
    logits of unit variance. The matrix serves both ends only because of that factor. A recurrent network counts by itself:
    its positions are None.
    """

    table: Tensor | None

    def __init__(self, shape: Shape, positions: Positions | None = "sinusoidal") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape.vocabulary, shape.width) * shape.width**-0.5)
        self.scale = sqrt(shape.width)
        self.dropout = dropout(shape)
        if positions == "learned":
            self.table = nn.Parameter(0.02 * torch.randn(shape.longest, shape.width))
        else:
            table = sinusoids(shape.longest, shape.width) if positions else None
            self.register_buffer("table", table, persistent=False)

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Tokens [B, T] that stand at positions `first`, first + 1, … as vectors [B, T, W]."""
        x = F.embedding(tokens, self.weight) * self.scale
        return self.dropout(x if self.table is None else x + place(self.table, tokens, first))

    def logits(self, x: Tensor) -> Tensor:
        """x [B, T, W] against every word of the vocabulary: [B, T, V]."""
        return F.linear(x, self.weight)


def place(table: Tensor, tokens: Tensor, first: int = 0) -> Tensor:
    """The rows of a table of positions [longest, W] that tokens [B, T] stand at, from `first` on."""
    end = first + tokens.shape[1]
    if end > table.shape[0]:
        expected = Text("at most {longest} tokens (Shape.longest)", "至多 {longest} 个 token（Shape.longest）")
        raise ArgumentError("tokens", expected.format(longest=table.shape[0]), got=end)
    return table[first:end]


def sinusoids(length: int, width: int) -> Tensor:
    """sin(p/10000^(2i/W)) and cos of the same, side by side: [length, W]; a shift in position is a rotation of each pair."""
    angles = torch.arange(length, dtype=torch.float64).view(-1, 1)
    angles = angles * torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-log(10000) / width))
    pairs = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    return pairs[:, :width].to(torch.get_default_dtype())
