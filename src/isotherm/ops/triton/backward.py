# mypy: disable-error-code="import-untyped, import-not-found"
"""Gradients from output and lse: by cuDNN's kernel where it takes the problem, by ours otherwise."""

from typing import NamedTuple

import torch
from torch import Tensor

from isotherm.ops.triton import backward_kernel, general
from isotherm.ops.triton.attention_call import (
    AttentionCall,
    broadcast_strides,
    ceil_div,
    document_strides,
    padded_dim,
    precision,
)


class InputGradients(NamedTuple):
    """Gradients in the shapes of the inputs; None for a bias that needs none."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None


def cudnn_can(call: AttentionCall, d_lse: Tensor | None) -> bool:
    """Return whether cuDNN's kernel can do it: plain attention in half precision, gradients through the output only.

    A negative scale gives NaN there. The order in which cuDNN adds up d_q varies, so it is not used when PyTorch is asked
    for deterministic algorithms.
    """
    t, s, d = call.q.shape[2], call.k.shape[2], call.q.shape[3]
    return (
        call.plain
        and call.scale > 0
        and d_lse is None
        and call.q.is_cuda
        and call.q.dtype in (torch.float16, torch.bfloat16)
        and call.q.dtype is call.k.dtype
        and d == call.v.shape[3]
        and d % 8 == 0
        and d <= 128
        and (not call.causal or t == s)
        and min(t, s) >= 16
        and not torch.are_deterministic_algorithms_enabled()
    )


def by_cudnn(call: AttentionCall, output: Tensor, lse: Tensor, d_output: Tensor) -> InputGradients:
    """Call cuDNN's backward kernel with our output and lse. Grouped keys are repeated and their gradients summed."""
    k, v = (x if call.groups == 1 else x.repeat_interleave(call.groups, 1) for x in (call.k, call.v))
    seed = torch.empty((), dtype=torch.int64, device=call.q.device)  # of dropout, which there is none of
    d_q, d_k, d_v = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default(
        d_output, call.q, k, v, output, lse.unsqueeze(-1), seed, seed, None, None, None,
        call.q.shape[2], call.k.shape[2], 0.0, call.causal, scale=call.scale,
    )  # fmt: skip
    if call.groups > 1:
        d_k, d_v = (x.unflatten(1, (-1, call.groups)).sum(2) for x in (d_k, d_v))
    return InputGradients(d_q, d_k, d_v, None)


def by_our_kernels(
    call: AttentionCall, output: Tensor, lse: Tensor, d_output: Tensor, d_lse: Tensor | None, *, wants_bias: bool
) -> InputGradients:
    """Launch our kernels, which take every problem. Only the gradient of a shared bias may vary from run to run."""
    # d_s = p · (d_p − delta) with delta = Σ p·d_p = Σ output·d_output. A gradient of lse adds p · d_lse.
    delta = (d_output.float() * output.float()).sum(-1)
    if d_lse is not None:
        delta = delta - torch.where(lse == -torch.inf, 0.0, d_lse)
    d_output, delta, bias, mask = d_output.contiguous(), delta.contiguous(), call.bias, call.mask
    d_q, d_k, d_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (call.q, call.k, call.v))
    d_bias = None
    if bias is not None and wants_bias:
        d_bias = torch.zeros(bias.shape, dtype=torch.float32, device=bias.device)
    if not call.q.numel() or not call.k.numel():
        return InputGradients(d_q.zero_(), d_k.zero_(), d_v.zero_(), d_bias)
    tile, unused = general.tile_size(call, backward=True), call.q
    b, h, t, s = *call.shape, call.k.shape[2]
    shared = d_bias is not None and tuple(d_bias.shape) != (b, h, t, s)
    tensors = (
        call.q, call.k, call.v, unused if bias is None else bias, unused if mask is None else mask.view(torch.uint8),
        call.positions, call.positions if call.documents is None else call.documents, d_output, lse, delta,
    )  # fmt: skip
    strides = (
        *call.q.stride(), *call.k.stride(), *call.v.stride(), *broadcast_strides(bias), *broadcast_strides(mask),
        *document_strides(call.documents),
    )  # fmt: skip
    sizes = (t, s, call.q.shape[3], call.v.shape[3], h, call.groups, call.behind, call.ahead, call.scale, call.softcap)
    options = {
        "BM": tile.rows, "BN": tile.keys, "PADDED_D": padded_dim(call.q.shape[3]),
        "PADDED_DV": padded_dim(call.v.shape[3]),
        "GEOMETRY": call.geometry, "MASK": mask is not None, "BIAS": bias is not None,
        "SOFTCAP": call.softcap > 0, "SPLIT_Q": call.q.dtype != call.k.dtype, "PRECISION": precision(call),
        "num_warps": tile.warps, "num_stages": 1,
    }  # fmt: skip
    backward_kernel.query_gradients[(ceil_div(t, tile.rows) * b * h,)](
        *tensors, d_q, unused if d_bias is None else d_bias, *strides, *broadcast_strides(d_bias), *sizes,
        D_BIAS=0 if d_bias is None else 1 + shared, **options,
    )  # fmt: skip
    backward_kernel.key_gradients[(ceil_div(s, tile.keys) * b * call.k.shape[1],)](
        *tensors, d_k, d_v, *strides, *sizes, **options
    )
    return InputGradients(d_q, d_k, d_v, d_bias)
