"""BERT (Devlin et al. 2018, arXiv:1810.04805): the encoder alone, which reads a text in both directions at once."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isotherm.models.embedding import place
from isotherm.models.layers import Stack, dropout
from isotherm.models.shape import Shape
from isotherm.scale import Rule


class Bert(nn.Module):
    """Token, position and segment embeddings, then encoder layers with GELU; `Shape.norm` is "post" in the paper.

    >>> model = Bert.load("all-MiniLM-L6-v2")                       # doctest: +SKIP
    >>> model.mean(model(tokens, mask), mask)                       # one vector per sentence  # doctest: +SKIP
    """

    def __init__(self, shape: Shape, rule: Rule | None = None, *, types: int = 2, eps: float = 1e-12) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.longest, shape.width)
        self.types = nn.Embedding(types, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps)
        self.dropout = dropout(shape)
        self.stack = Stack(shape, rule, activation=nn.GELU, eps=eps)
        self.pooler = nn.Linear(shape.width, shape.width)
        self.head = nn.Sequential(nn.Linear(shape.width, shape.width), nn.GELU(), nn.LayerNorm(shape.width, eps))
        self.head_bias = nn.Parameter(torch.zeros(shape.vocabulary))
        self.initialise()

    @torch.no_grad()
    def initialise(self, std: float = 0.02) -> None:
        """Draw the weights anew: N(0, std²), biases 0, as the paper does."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, types: Tensor | None = None) -> Tensor:
        """Every token [B, T] in its context: [B, T, W]. `mask` [B, T] is true (or 1) for words, false for padding."""
        kind = self.types.weight[0] if types is None else self.types(types)
        x = self.tokens(tokens) + place(self.positions.weight, tokens) + kind
        visible = None if mask is None else mask.bool()[:, None, None, :]
        return self.stack(self.dropout(self.norm(x)), mask=visible)

    def pooled(self, hidden: Tensor) -> Tensor:
        """One vector per text [B, W]: tanh of a projection of the first token, which next-sentence prediction trains."""
        return self.pooler(hidden[:, 0]).tanh()

    def mean(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """One vector per text [B, W]: the mean over its words, which sentence-transformers train."""
        if mask is None:
            return hidden.mean(1)
        weight = mask.to(hidden.dtype).unsqueeze(-1)
        return (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)

    def logits(self, hidden: Tensor) -> Tensor:
        """Which word stood at each place [B, T, V]: the head of masked-language modelling, tied to the embedding."""
        return F.linear(self.head(hidden), self.tokens.weight, self.head_bias)

    @staticmethod
    def load(folder: str | Path, rule: Rule | None = None) -> "Bert":
        """A model from a folder with transformers' config.json and model.safetensors, in evaluation mode."""
        from isotherm.models.bert_checkpoint import read_bert

        return read_bert(Path(folder), rule)
