"""PyTorch's own Transformer layers with the weights of ours: two implementations that share no line, to compare."""

import torch
from torch import Tensor, nn

from isotherm.models import Attention, Shape
from isotherm.models.layers import Stack, TransformerLayer


@torch.no_grad()
def torch_layer(ours: TransformerLayer, shape: Shape, *, activation: str = "relu", eps: float = 1e-5) -> nn.Module:
    """A TransformerEncoderLayer, or a TransformerDecoderLayer for a layer with cross-attention, that computes the same.

    In training mode, where PyTorch runs its plain formulas; there is no dropout in it.
    """
    kind = nn.TransformerEncoderLayer if ours.cross is None else nn.TransformerDecoderLayer
    dtype = ours.feed_forward.norm.weight.dtype
    theirs = kind(
        shape.width,
        shape.heads,
        shape.inside,
        0.0,
        activation,
        eps,
        batch_first=True,
        norm_first=shape.norm == "pre",
        dtype=dtype,
    )
    _copy_attention(theirs.self_attn, _attention(ours.attention.inner))
    norms = [ours.attention.norm, ours.feed_forward.norm]
    if ours.cross is not None:
        assert isinstance(theirs, nn.TransformerDecoderLayer)
        _copy_attention(theirs.multihead_attn, _attention(ours.cross.inner))
        norms.insert(1, ours.cross.norm)
    for index, norm in enumerate(norms, 1):
        getattr(theirs, f"norm{index}").load_state_dict(norm.state_dict())
    first, _, second = ours.feed_forward.inner.children()
    theirs.linear1.load_state_dict(first.state_dict())
    theirs.linear2.load_state_dict(second.state_dict())
    return theirs


def encode(stack: Stack, shape: Shape, x: Tensor, padding: Tensor, **kind: str | float) -> Tensor:
    """x [B, T, W] through PyTorch's encoder layers; `padding` [B, T] is True where there is no word."""
    for layer in stack.layers:
        assert isinstance(layer, TransformerLayer)
        x = torch_layer(layer, shape, **kind)(x, src_key_padding_mask=padding)  # type: ignore[arg-type]
    return stack.norm(x)


def decode(stack: Stack, shape: Shape, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
    """x [B, T, W] through PyTorch's decoder layers, looking at memory [B, S, W] where there is no padding [B, S]."""
    later = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
    for layer in stack.layers:
        assert isinstance(layer, TransformerLayer)
        x = torch_layer(layer, shape)(x, memory, tgt_mask=later, memory_key_padding_mask=padding)
    return stack.norm(x)


def _attention(inner: nn.Module) -> Attention:
    assert isinstance(inner, Attention)
    return inner


def _copy_attention(theirs: nn.MultiheadAttention, ours: Attention) -> None:
    projections = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([linear.weight for linear in projections]))
    theirs.in_proj_bias.copy_(torch.cat([linear.bias for linear in projections]))
    theirs.out_proj.load_state_dict(ours.out.state_dict())
