"""Small models and the plainest training loop there is."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Attention with one fused projection."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w))


class Written(Attention):
    """The same by hand."""

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, w))


class Model(nn.Module):
    """A few residual layers of attention, of different numbers of heads."""

    def __init__(self, kind=Attention, heads=(2, 4), width=16):
        super().__init__()
        self.layers = nn.ModuleList(kind(width, count) for count in heads)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def build(kind=Attention, seed=0, **options):
    torch.manual_seed(seed)
    return Model(kind, **options)


def batch(step, size=3, length=7, width=16):
    return torch.randn(size, length, width, generator=torch.Generator().manual_seed(step))


def train(model, steps, monitor=None, *, lr=1e-2, pieces=1, first=0, precision=nullcontext):
    """Train on noise. Return every loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    with monitor or nullcontext():
        for step in range(first, first + steps):
            for piece in batch(step, 3 * pieces).chunk(pieces):
                with precision():
                    loss = (model(piece) - piece.roll(1, 1)).square().mean() / pieces
                loss.backward()
            if monitor is not None:
                monitor.log(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses
