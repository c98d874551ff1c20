"""A small GPT: the decoder alone, which reads and writes one sequence."""

import torch
from torch import Tensor, nn

from isotherm.models.cache import Cache
from isotherm.models.embedding import Embedding, Positions
from isotherm.models.layers import Stack
from isotherm.models.shape import Shape
from isotherm.scale import Rule


class Decoder(nn.Module):
    """Causal self-attention over tokens, GELU, learned positions as in GPT-2 (or sinusoidal ones)."""

    def __init__(self, shape: Shape, rule: Rule | None = None, *, positions: Positions = "learned") -> None:
        super().__init__()
        self.shape = shape
        self.embedding = Embedding(shape, positions)
        self.stack = Stack(shape, rule, activation=nn.GELU)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits [B, T, V] of the token that follows each; with a cache, `tokens` are only the new ones."""
        x = self.embedding(tokens, 0 if cache is None else cache.length)
        x = self.stack(x, causal=True, cache=cache)
        if cache is not None:
            cache.length += tokens.shape[1]
        return self.embedding.logits(x)

    @torch.no_grad()
    def generate(
        self, prompt: Tensor, *, tokens: int, temperature: float = 0.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """The prompt [B, T] and `tokens` more: the likeliest each time, or drawn at a temperature above 0."""
        cache, ids, new = Cache(), prompt, prompt
        for _ in range(tokens):
            logits = self(new, cache)[:, -1]
            if temperature:
                new = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
            else:
                new = logits.argmax(-1, keepdim=True)
            ids = torch.cat([ids, new], 1)
        return ids
