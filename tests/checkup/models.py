"""Small attention models with a scale of one's choice, and the bugs people ship."""

from math import sqrt

import torch
import torch.nn.functional as F
from torch import nn

DIM, HEADS = 64, 4


class Attention(nn.Module):
    """Self-attention by hand or by PyTorch's kernel; `scale` multiplies q·k, `early` multiplies q and k beforehand."""

    def __init__(self, *, scale=None, early=1.0, fused=True, norm=False):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(DIM, DIM) for _ in range(4))
        self.scale, self.early, self.fused = scale, early, fused
        self.q_norm = nn.RMSNorm(DIM // HEADS) if norm else nn.Identity()
        self.k_norm = nn.RMSNorm(DIM // HEADS) if norm else nn.Identity()

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.q_norm(q) * self.early, self.k_norm(k) * self.early
        if self.fused:
            out = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        else:
            scores = q @ k.transpose(-1, -2) * (self.scale or 1 / sqrt(q.shape[-1]))
            out = torch.softmax(scores, dim=-1) @ v
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Model(nn.Module):
    """A stack of them, with LayerNorms."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in layers)

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x))
        return x


def batch(n=23, seed=0):
    return torch.randn(2, n, DIM, generator=torch.Generator().manual_seed(seed))


def trained(model):
    """Make it look trained: move the gains."""
    with torch.no_grad():
        for norm in model.norms:
            norm.weight.mul_(1.01)
    return model.eval()
