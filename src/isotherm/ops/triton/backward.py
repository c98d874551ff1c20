# mypy: disable-error-code="import-untyped, import-not-found"
"""Gradients from output and lse: cuDNN's kernel where it takes the shapes, ours for everything else."""

from typing import NamedTuple

import torch
from torch import Tensor

from isotherm.ops.triton import backward_kernel
from isotherm.ops.triton.attend import Blocks, Call, blocks, pieces, precision, shared_strides, width


class Gradients(NamedTuple):
    """As shaped as the inputs; None for a bias that wants none."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None


def stock_can(call: Call, d_lse: Tensor | None) -> bool:
    """Whether cuDNN's backward kernel does this: plain attention in half precision, gradients through the output only.

    Not with a negative scale, which gives it NaN. Not when deterministic algorithms were asked for: it adds up d_q in
    whatever order its blocks finish.
    """
    plain = call.mask is None and call.bias is None and call.window == 0 and call.softcap == 0
    t, s, d = call.q.shape[2], call.k.shape[2], call.q.shape[3]
    return (
        plain
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


def stock(call: Call, output: Tensor, lse: Tensor, d_output: Tensor) -> Gradients:
    """cuDNN's backward kernel, handed our output and lse. Grouped keys are repeated for it and their gradients summed."""
    k, v = (x if call.groups == 1 else x.repeat_interleave(call.groups, 1) for x in (call.k, call.v))
    seed = torch.zeros((), dtype=torch.int64, device=call.q.device)
    d_q, d_k, d_v = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        d_output, call.q, k, v, output, lse.unsqueeze(-1), seed, seed, None, None, None,
        call.q.shape[2], call.k.shape[2], 0.0, call.causal, scale=call.scale,
    )  # fmt: skip
    if call.groups > 1:
        d_k, d_v = (x.unflatten(1, (-1, call.groups)).sum(2) for x in (d_k, d_v))
    return Gradients(d_q, d_k, d_v, None)


def own(
    call: Call, output: Tensor, lse: Tensor, d_output: Tensor, d_lse: Tensor | None, *, wants_bias: bool
) -> Gradients:
    """Our kernels: any shape, mask, bias, cap; the same bits every time unless a shared bias wants its gradient."""
    # Every key of a row shares −Σ p·dp; lse adds p·d_lse, which is the same kind of term.
    delta = (d_output.float() * output.float()).sum(-1)
    if d_lse is not None:
        delta = delta - torch.where(lse == -torch.inf, 0.0, d_lse)
    d_output, delta, bias, mask = d_output.contiguous(), delta.contiguous(), call.bias, call.mask
    d_q, d_k, d_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (call.q, call.k, call.v))
    d_bias = torch.zeros(bias.shape, device=bias.device) if bias is not None and wants_bias else None
    if not call.q.numel() or not call.k.numel():
        return Gradients(d_q.zero_(), d_k.zero_(), d_v.zero_(), d_bias)
    tile: Blocks = blocks(call, backward=True)
    nothing = call.q
    b, h, t, s = *call.shape, call.k.shape[2]
    shared = d_bias is not None and tuple(d_bias.shape) != (b, h, t, s)
    tensors = (
        call.q, call.k, call.v, nothing if bias is None else bias, nothing if mask is None else mask.view(torch.uint8),
        call.positions, d_output, lse, delta,
    )  # fmt: skip
    strides = (*call.q.stride(), *call.k.stride(), *call.v.stride(), *shared_strides(bias), *shared_strides(mask))
    sizes = (t, s, call.q.shape[3], call.v.shape[3], h, call.groups, call.behind, call.ahead, call.scale, call.softcap)
    options = {
        "BM": tile.rows, "BN": tile.keys, "WIDE": width(call.q.shape[3]), "WIDE_V": width(call.v.shape[3]),
        "GEOMETRY": call.causal or call.window > 0, "MASK": mask is not None, "BIAS": bias is not None,
        "SOFTCAP": call.softcap > 0, "PARTS": call.q.dtype != call.k.dtype, "PRECISION": precision(call),
        "num_warps": tile.warps, "num_stages": 1,
    }  # fmt: skip
    backward_kernel.rows[(pieces(t, tile.rows) * b * h,)](
        *tensors, d_q, nothing if d_bias is None else d_bias, *strides, *shared_strides(d_bias), *sizes,
        D_BIAS=0 if d_bias is None else 1 + shared, **options,
    )  # fmt: skip
    backward_kernel.columns[(pieces(s, tile.keys) * b * call.k.shape[1],)](
        *tensors, d_k, d_v, *strides, *sizes, **options
    )
    return Gradients(d_q, d_k, d_v, d_bias)
