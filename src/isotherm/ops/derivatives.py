"""Second derivatives, for implementations whose own backward pass autograd cannot differentiate.

A fused backward pass gives first derivatives. When autograd records it (`create_graph=True`), it becomes one operation,
`_Backward`, and the derivative of that operation comes from the reference's formula, a block of query rows at a time. A
third derivative records the formula itself and holds the n × n matrix.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from isotherm.language import Text
from isotherm.ops import reference
from isotherm.ops.autocast import autocast_off
from isotherm.ops.problem import Problem, Visibility

FUSED = "ScaledDotProduct"
"""How the names of the autograd nodes of PyTorch's fused kernels begin."""
ENTRIES = 1 << 20
"""Entries of the n × n matrix that a second derivative holds at once."""
Tensors = Sequence[Tensor | None]
First = Callable[[], tuple[Tensor | None, ...]]
"""A backward pass: returns d_q, d_k, d_v and d_bias, None for a gradient that is not wanted."""


def transform(*, compiled: bool = False) -> Text | None:
    """The transform around this call, inside which only plain PyTorch operations work; None if there is none, or, unless
    `compiled`, if the compiler sees to it."""
    if torch.compiler.is_compiling() and not compiled:
        return None
    if torch._C._are_functorch_transforms_active():
        return Text("torch.func transforms", "torch.func 变换")
    return Text("forward-mode derivatives", "前向模式求导") if forward_ad._current_level >= 0 else None


def backward(problem: Problem, d_output: Tensor, d_lse: Tensor | None, first: First) -> tuple[Tensor | None, ...]:
    """The gradients that `first()` returns. If autograd is recording, it can differentiate them again.

    Autocast may be on where the backward pass runs, although it was off in the forward pass.
    """
    inputs = (problem.q, problem.k, problem.v, problem.bias, d_output, d_lse)
    with autocast_off(problem.q.device.type):
        if _batched(d_output, d_lse):
            return tuple(_first(problem, inputs, create_graph=torch.is_grad_enabled()))
        if not torch.is_grad_enabled():
            return first()
        found: tuple[Tensor | None, ...] = _Backward.apply(problem, first, *inputs)  # type: ignore[no-untyped-call]
        return found


def twice_differentiable(output: Tensor, problem: Problem) -> None:
    """Give the output of one of PyTorch's fused kernels second derivatives. PyTorch's kernel of plain operations has them.

    A hook replaces the gradients of the kernel's node where autograd records them. It reads q, k and v from the node, so that
    it keeps no tensor alive that the node does not keep itself.
    """
    node = output.grad_fn
    if node is not None and node.name() == "SliceBackward0":  # the head dimension was padded
        node = node.next_functions[0][0]
    if node is not None and node.name().startswith(FUSED):
        node.register_hook(partial(_recorded, problem.visibility, problem.scale, problem.bias))


def _recorded(
    visibility: Visibility, scale: float, bias: Tensor | None, gradients: Tensors, d_outputs: Tensors
) -> Tensors | None:
    """The gradients of q, k and v, such that autograd can differentiate them; None to leave them as they are."""
    d_output = d_outputs[0]
    if not torch.is_grad_enabled() or d_output is None:
        return None
    node: Any = torch._C._current_autograd_node()
    problem = Problem(node._saved_query, node._saved_key, node._saved_value, visibility, scale, bias)

    def first() -> tuple[Tensor | None, ...]:
        return *(None if x is None else x.detach() for x in gradients[:3]), None

    d_q, d_k, d_v, _ = backward(problem, d_output, None, first)
    return d_q, d_k, d_v, *gradients[3:]


class _Backward(torch.autograd.Function):
    """A backward pass as an operation: q, k, v, bias, d_output and d_lse give d_q, d_k, d_v and d_bias."""

    @staticmethod
    def forward(ctx: Any, problem: Problem, first: First, *inputs: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        ctx.visibility, ctx.scale, ctx.softcap = problem.visibility, problem.scale, problem.softcap
        return first()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, bias, *_ = inputs = ctx.saved_tensors
        problem = Problem(q, k, v, ctx.visibility, ctx.scale, bias, ctx.softcap)
        with autocast_off(problem.q.device.type):
            if torch.is_grad_enabled():
                return None, None, *_second(problem, inputs, cotangents, create_graph=True)
            return None, None, *_second_by_rows(problem, inputs, cotangents)


def _batched(*gradients: Tensor | None) -> bool:
    """Whether vmap holds several gradients in one tensor, its older version (`is_grads_batched=True`) or the newer one."""
    older = torch._C._functorch.is_legacy_batchedtensor
    return torch._C._are_functorch_transforms_active() or any(x is not None and older(x) for x in gradients)


def once(*gradients: Tensor | None) -> bool:
    """Whether a backward pass with these gradients of the outputs needs first derivatives only, one gradient at a time."""
    return not torch.is_grad_enabled() and not _batched(*gradients)


def _first(problem: Problem, inputs: Tensors, *, create_graph: bool) -> list[Tensor | None]:
    """Gradients with respect to the first four inputs by the reference's formula, None for those that need none."""
    *leaves, d_output, d_lse = inputs
    with torch.enable_grad():
        leaves = _views(leaves)  # q, k and v may be one tensor
        tensors: dict[str, Any] = dict(zip(("q", "k", "v", "bias"), leaves, strict=True))
        solution = reference.solve(replace(problem, **tensors), stats=False)
        return _grad((solution.output, solution.lse), leaves, (d_output, d_lse), create_graph=create_graph)


def _second(problem: Problem, inputs: Tensors, cotangents: Tensors, *, create_graph: bool) -> list[Tensor | None]:
    """Gradients of ⟨cotangents, `_first`⟩ with respect to all six inputs."""
    with torch.enable_grad():
        leaves = _views(inputs)
        return _grad(_first(problem, leaves, create_graph=True), leaves, cotangents, create_graph=create_graph)


def _second_by_rows(problem: Problem, inputs: Tensors, cotangents: Tensors) -> tuple[Tensor | None, ...]:
    """`_second` for a block of query rows at a time."""
    sums = [torch.zeros_like(x) if x is not None and x.requires_grad else None for x in inputs]
    width = problem.q.shape[0] * problem.q.shape[1] * problem.k.shape[2]
    everything = torch.arange(problem.q.shape[2], device=problem.q.device)
    for rows in everything.split(max(1, ENTRIES // max(1, width))):
        part = replace(problem, visibility=problem.visibility.take(rows))
        leaves = [
            None if x is None or like is None else x.detach().requires_grad_(like.requires_grad)
            for x, like in zip(_take(inputs, rows), inputs, strict=True)
        ]
        found = _second(part, leaves, _take(cotangents, rows), create_graph=False)
        for index, (total, x) in enumerate(zip(sums, found, strict=True)):
            if total is None or x is None:
                continue
            if _one_for_all_rows(index, total):
                total.add_(x)
            else:
                total.index_copy_(2, rows, x)
    return tuple(sums)


def _take(tensors: Tensors, rows: Tensor) -> list[Tensor | None]:
    """These query rows of q, k, v, bias, d_output and d_lse."""
    return [
        x if x is None or _one_for_all_rows(index, x) else x.index_select(2, rows) for index, x in enumerate(tensors)
    ]


def _one_for_all_rows(index: int, x: Tensor) -> bool:
    """True of k, v and a bias that is the same for every query."""
    return index in (1, 2) or x.shape[2] == 1


def _views(tensors: Tensors) -> list[Tensor | None]:
    return [None if x is None else x.view_as(x) for x in tensors]


def _grad(outputs: Tensors, inputs: Tensors, cotangents: Tensors, *, create_graph: bool) -> list[Tensor | None]:
    """`torch.autograd.grad` for tensors that may be None or need no gradient."""
    pairs = [
        (y, dy)
        for y, dy in zip(outputs, cotangents, strict=True)
        if y is not None and dy is not None and y.requires_grad
    ]
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    if not pairs or not wanted:
        return [None] * len(inputs)
    ys, dys = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(ys, wanted, dys, create_graph=create_graph, allow_unused=True))
    return [next(found) if x is not None and x.requires_grad else None for x in inputs]
