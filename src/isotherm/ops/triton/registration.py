"""The kernels as PyTorch operators, for `torch.compile` without graph breaks, and for everything that watches operators.

Outside a graph, where nothing watches, the same functions are called directly: an operator's way through PyTorch takes
longer than a small problem. Statistics leave an operator as plain tensors, those of `Fields`, and carry no gradient.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isotherm.ops import derivatives
from isotherm.ops.observers import unwatched
from isotherm.ops.problem import Problem, Visibility
from isotherm.ops.triton import attention_call, backward, fast, several_scales
from isotherm.ops.triton.attention_call import AttentionCall
from isotherm.ops.triton.fields import Fields

CALL = (
    "Tensor q, Tensor k, Tensor v, Tensor positions, Tensor? mask, Tensor? bias, "
    "bool causal, SymInt window, float scale, float softcap, Tensor? documents"
)
"""The fields of an `AttentionCall` in their order: the first arguments of every operator."""
Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def attend(*given: Any) -> Five:
    """Return output [B, Hq, T, Dv], lse [B, Hq, T], and the three tensors of `Fields` (without rows unless `stats`)."""
    *parts, stats = given
    call = AttentionCall(*parts)
    out, lse, values, first_key, broken = _allocate(call.q, call.v, stats)
    with attention_call.on_device_of(call.q):
        fields = Fields(values, first_key, broken) if stats else None
        fast.run_fast_or_general(call, output=(out, lse), fields=fields)
    return out, lse, values, first_key, broken


attend_op = torch.library.custom_op(
    "isotherm::attend",
    attend,
    mutates_args=(),
    schema=f"({CALL}, bool stats) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def _allocate(q: Tensor, v: Tensor, stats: bool) -> Five:
    """Memory for what `attend` returns. The output is laid out as q is, so that a model reshapes it without a copy."""
    b, h, t = q.shape[:3]
    fields = Fields.empty((b, h, t) if stats else (0, 0, 0), q.device)
    if q.stride(1) < q.stride(2):
        out = torch.empty(b, t, h, v.shape[3], dtype=v.dtype, device=q.device).transpose(1, 2)
    else:
        out = torch.empty(b, h, t, v.shape[3], dtype=v.dtype, device=q.device)
    lse = torch.empty(b, h, t, dtype=torch.float32, device=q.device)
    return out, lse, fields.values, fields.first_key, fields.broken


@attend_op.register_fake
def _(q: Tensor, *others: Any) -> Five:
    _, v, *_, stats = others
    return _allocate(q, v, stats)


def measure(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensors of `Fields` at each of `scales` (ascending, in place of `scale`), of all rows or some."""
    *call, scales = given
    return measured(call, scales, parts=len(scales)).tensors


def measured(given: Sequence[Any], scales: Sequence[float], *, parts: int | None) -> Fields:
    """Return the fields at each of `scales`; of a single one without a dimension for parts, if there shall be none."""
    call = AttentionCall(*given)
    fields = Fields.empty(call.shape, call.q.device, parts=parts)
    with attention_call.on_device_of(call.q):
        several_scales.run(call, scales, fields)
    return fields


measure_op = torch.library.custom_op(
    "isotherm::measure",
    measure,
    mutates_args=(),
    schema=f"({CALL}, Tensor? rows, float[] scales) -> (Tensor, Tensor, Tensor)",
)


@measure_op.register_fake
def _(q: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    *_, rows, scales = others
    t = q.shape[2] if rows is None else rows.shape[0]
    return Fields.empty((*q.shape[:2], t), q.device, parts=len(scales)).tensors


def gradients(*given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return d_q, d_k, d_v and d_bias, which is empty unless wanted."""
    d_q, d_k, d_v, d_bias = input_gradients(*given)
    return d_q, d_k, d_v, torch.empty(0, device=d_q.device) if d_bias is None else d_bias


def input_gradients(*given: Any) -> backward.InputGradients:
    """Return d_q, d_k, d_v and d_bias, which is None unless wanted."""
    *parts, output, lse, d_output, d_lse, wants_bias = given
    call = AttentionCall(*parts)
    with attention_call.on_device_of(call.q):
        if backward.cudnn_can(call, d_lse):
            return backward.by_cudnn(call, output, lse, d_output)
        found = backward.by_our_kernels(call, output, lse, d_output, d_lse, wants_bias=wants_bias)
    return found if found.bias is None or call.bias is None else found._replace(bias=found.bias.to(call.bias.dtype))


gradients_op = torch.library.custom_op(
    "isotherm::attend_backward",
    gradients,
    mutates_args=(),
    schema=f"({CALL}, Tensor output, Tensor lse, Tensor d_output, Tensor? d_lse, bool wants_bias)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)


@gradients_op.register_fake
def _(*given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lay the gradients out as the kernel that will run does: cuDNN's follow q, k and v in memory, ours are contiguous."""
    *parts, output, lse, d_output, d_lse, wants_bias = given
    call = AttentionCall(*parts)
    bias = call.bias if wants_bias else None
    shape, dtype = ((0,), None) if bias is None else (bias.shape, bias.dtype)
    d_bias = torch.empty(shape, dtype=dtype, device=call.q.device)
    if backward.cudnn_can(call, d_lse):
        d_q, d_k, d_v, _ = backward.by_cudnn(call, output, lse, d_output)
    else:
        d_q, d_k, d_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (call.q, call.k, call.v))
    return d_q, d_k, d_v, d_bias


class Attend(torch.autograd.Function):
    """`attend` with gradients."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Five:
        output = attend(*given)
        Attend.keep(ctx, given, output)
        return output

    @staticmethod
    def keep(ctx: Any, inputs: tuple[Any, ...], output: Five) -> None:
        """Keep what the backward pass needs. (Under the name `setup_context`, PyTorch would inspect a signature every time.)"""
        q, k, v, positions, mask, bias, *ctx.numbers, documents, _ = inputs
        out, lse, values, first_key, broken = output
        ctx.mark_non_differentiable(values, first_key, broken)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, positions, mask, bias, documents, out, lse)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor | None, d_lse: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        q, k, v, positions, mask, bias, documents, out, lse = ctx.saved_tensors
        if d_output is None and d_lse is None:
            return (None,) * 12
        wants_bias = bias is not None and ctx.needs_input_grad[5]
        d_out = torch.zeros_like(out) if d_output is None else d_output

        def first() -> tuple[Tensor | None, ...]:
            given = q, k, v, positions, mask, bias, *ctx.numbers, documents, out, lse, d_out, d_lse, wants_bias
            if unwatched(q, k, v) and type(d_out) is Tensor:
                return input_gradients(*given)
            *found, d_bias = torch.ops.isotherm.attend_backward(*given)
            return *found, d_bias if wants_bias else None

        if derivatives.once(d_out, d_lse):
            d_q, d_k, d_v, d_bias = first()
            return d_q, d_k, d_v, None, None, d_bias, *(None,) * 6
        causal, window, scale, softcap = ctx.numbers
        visibility = Visibility(positions, k.shape[2], causal, window or None, mask, documents)
        problem = Problem(q, k, v, visibility, scale, bias, softcap or None)
        d_q, d_k, d_v, d_bias = derivatives.backward(problem, d_out, d_lse, first)
        return d_q, d_k, d_v, None, None, d_bias, *(None,) * 6


attend_op.register_autograd(Attend.backward, setup_context=Attend.keep)
