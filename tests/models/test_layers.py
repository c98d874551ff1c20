"""Our layers against PyTorch's own with the same weights: outputs and gradients, to float64's rounding."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from isotherm.models.layers import Stack, TransformerLayer

from .small import SHAPE

WIDE = replace(SHAPE, head_dim=4)  # PyTorch's heads have width/heads dimensions


def copy_attention(ours, theirs: nn.MultiheadAttention) -> None:
    pairs = zip(
        (ours.query, ours.key, ours.value), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
    )
    for linear, weight, bias in pairs:
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
    ours.out.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def copy_layer(ours: TransformerLayer, theirs: nn.Module) -> None:
    """Weights and norms of a TransformerEncoderLayer or TransformerDecoderLayer."""
    for parameter in theirs.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    copy_attention(ours.attention.inner, theirs.self_attn)
    if ours.cross is not None:
        copy_attention(ours.cross.inner, theirs.multihead_attn)
    norms = [ours.attention.norm, *([] if ours.cross is None else [ours.cross.norm]), ours.feed_forward.norm]
    for index, norm in enumerate(norms, 1):
        norm.load_state_dict(getattr(theirs, f"norm{index}").state_dict())
    ours.feed_forward.inner[0].load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.inner[2].load_state_dict(theirs.linear2.state_dict())


def states(length: int) -> torch.Tensor:
    return torch.randn(2, length, WIDE.width, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("cross", [False, True], ids=["encoder", "decoder"])
def test_a_layer_is_torchs_layer(norm, cross):
    torch.manual_seed(11)
    ours = TransformerLayer(replace(WIDE, norm=norm), cross=cross).double()
    kind = nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer
    theirs = kind(WIDE.width, WIDE.heads, WIDE.inside, 0.0, batch_first=True, norm_first=norm == "pre").double()
    copy_layer(ours, theirs)
    x, memory = states(5), states(7)
    padding = torch.arange(7) >= torch.tensor([[7], [4]])
    if cross:
        later = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
        want = theirs(x, memory, tgt_mask=later, memory_key_padding_mask=padding)
        got = ours(x, memory, causal=True, memory_mask=~padding[:, None, None])
        inputs = [x, memory]
    else:
        want = theirs(memory, src_key_padding_mask=padding)
        got = ours(memory, mask=~padding[:, None, None])
        inputs = [memory]
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)
    weight = torch.randn_like(want)
    gradients = [torch.autograd.grad((y * weight).sum(), inputs, retain_graph=True) for y in (got, want)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-11)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    for projection, part in zip(("query", "key", "value"), theirs.self_attn.in_proj_weight.grad.chunk(3), strict=True):
        mine = getattr(ours.attention.inner, projection).weight.grad
        torch.testing.assert_close(mine, part, atol=1e-12, rtol=1e-11)
    torch.testing.assert_close(
        ours.feed_forward.inner[0].weight.grad, theirs.linear1.weight.grad, atol=1e-12, rtol=1e-11
    )


def test_only_a_pre_norm_stack_ends_with_a_norm():
    assert isinstance(Stack(replace(WIDE, norm="pre")).norm, nn.LayerNorm)
    assert isinstance(Stack(replace(WIDE, norm="post")).norm, nn.Identity)


def test_pre_norm_keeps_the_straight_path():
    """With every sublayer's last weights 0, a pre-norm layer hands on what it was given, a post-norm layer its norm."""
    x = states(3)
    for norm in ("pre", "post"):
        layer = TransformerLayer(replace(WIDE, norm=norm)).double()
        with torch.no_grad():
            layer.attention.inner.out.weight.zero_()
            layer.feed_forward.inner[2].weight.zero_()
        kept = torch.allclose(layer(x), x)
        assert kept is (norm == "pre")


def test_dropout_acts_in_training_only():
    layer = TransformerLayer(replace(WIDE, dropout=0.5)).double()
    x = states(5)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
