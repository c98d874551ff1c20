"""The Transformer of Vaswani et al. 2017 (arXiv:1706.03762): an encoder reads, a decoder writes."""

from torch import Tensor, nn

from isotherm.models.cache import Cache
from isotherm.models.embedding import Embedding
from isotherm.models.layers import Stack
from isotherm.models.shape import Shape
from isotherm.scale import Rule


class Transformer(nn.Module):
    """Encoder and decoder; source, target and output share one embedding matrix.

    >>> import torch
    >>> model = Transformer(Shape(vocabulary=11, width=8, heads=2, layers=1))
    >>> model(torch.tensor([[3, 4, 5, 0]]), torch.tensor([[1, 6, 7]])).shape      # [B, S], [B, T] → [B, T, V]
    torch.Size([1, 3, 11])
    """

    def __init__(self, shape: Shape, rule: Rule | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = Embedding(shape)
        self.encoder = Stack(shape, rule)
        self.decoder = Stack(shape, rule, cross=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits [B, T, V] of the token that follows each target token, given the source."""
        return self.decode(target, self.encode(source), source)

    def encode(self, source: Tensor) -> Tensor:
        """The memory [B, S, W]: every source token, having looked at all the others."""
        return self.encoder(self.embedding(source), mask=self._words(source))

    def decode(self, target: Tensor, memory: Tensor, source: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits [B, T, V]. With a cache, `target` holds only the tokens that come after those already decoded.

        A target token sees those before it and no later one; padding, on the right, is later than every word, so that the
        causal mask hides it as well.
        """
        x = self.embedding(target, 0 if cache is None else cache.length)
        x = self.decoder(x, memory, causal=True, memory_mask=self._words(source), cache=cache)
        if cache is not None:
            cache.length += target.shape[1]
        return self.embedding.logits(x)

    def _words(self, source: Tensor) -> Tensor:
        """Where the source is no padding: [B, 1, 1, S]."""
        return (source != self.shape.pad)[:, None, None, :]
