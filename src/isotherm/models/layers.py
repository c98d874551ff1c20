"""What a Transformer is stacked from: attention, then a small network on each token, each inside a residual connection."""

from typing import Any

from torch import Tensor, nn

from isotherm.models.attention import Attention
from isotherm.models.cache import Cache
from isotherm.models.shape import Shape
from isotherm.scale import Rule


class FeedForward(nn.Sequential):
    """W₂·f(W₁·x + b₁) + b₂, the same for every token."""

    def __init__(self, shape: Shape, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__(xavier(shape.width, shape.inside), activation(), xavier(shape.inside, shape.width))


class Residual(nn.Module):
    """A sublayer f added to what it was given: norm(x + f(x)) in the paper ("post"), x + f(norm(x)) since ("pre").

    Before the sublayer the norm leaves a straight path from the last layer to the first, which is why deep pre-norm models
    train without warm-up (Xiong et al. 2020, arXiv:2002.04745).
    """

    def __init__(self, shape: Shape, inner: nn.Module, eps: float = 1e-5) -> None:
        super().__init__()
        self.inner = inner
        self.norm = nn.LayerNorm(shape.width, eps)
        self.dropout = dropout(shape)
        self.pre = shape.norm == "pre"

    def forward(self, x: Tensor, *memory: Tensor | None, **how: Any) -> Tensor:
        """x [B, T, W] with what the sublayer makes of it added."""
        if self.pre:
            return x + self.dropout(self.inner(self.norm(x), *memory, **how))
        return self.norm(x + self.dropout(self.inner(x, *memory, **how)))


class TransformerLayer(nn.Module):
    """Self-attention, for a decoder with an encoder also attention to its memory (`cross`), and the feed-forward layer."""

    def __init__(
        self,
        shape: Shape,
        rule: Rule | None = None,
        *,
        layer: int = 0,
        cross: bool = False,
        activation: type[nn.Module] = nn.ReLU,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.attention = Residual(shape, Attention(shape, rule, layer=layer), eps)
        self.cross = Residual(shape, Attention(shape, rule, layer=layer), eps) if cross else None
        self.feed_forward = Residual(shape, FeedForward(shape, activation), eps)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        causal: bool = False,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """x [B, T, W], one layer on."""
        x = self.attention(x, causal=causal, mask=mask, cache=cache)
        if self.cross is not None:
            x = self.cross(x, memory, mask=memory_mask, cache=cache)
        return self.feed_forward(x)


class Stack(nn.Module):
    """Layers one after another. Pre-norm leaves the sum of all sublayers unnormalised, so one more norm ends it."""

    def __init__(self, shape: Shape, rule: Rule | None = None, *, eps: float = 1e-5, **kind: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            TransformerLayer(shape, rule, layer=i, eps=eps, **kind) for i in range(shape.layers)
        )
        self.norm = nn.LayerNorm(shape.width, eps) if shape.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor | None = None, **how: Any) -> Tensor:
        """x [B, T, W] through all layers; `how` is `TransformerLayer.forward`'s."""
        for layer in self.layers:
            x = layer(x, memory, **how)
        return self.norm(x)


def xavier(width: int, out: int) -> nn.Linear:
    """A linear layer with Glorot's uniform weights, which keep the variance of what passes, and biases 0."""
    linear = nn.Linear(width, out)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def dropout(shape: Shape) -> nn.Module:
    """Dropout, or nothing at all where there is none to do: vmap refuses even a dropout of 0."""
    return nn.Dropout(shape.dropout) if shape.dropout else nn.Identity()
