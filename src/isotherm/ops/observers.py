"""Who sees a call of `attention`: a probe registers here, whatever name `attention` was imported under; PyTorch has others."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import torch
from torch import Tensor

from isotherm.ops.problem import Problem

Observer = Callable[[Problem, Tensor | None], AbstractContextManager[object]]
"""Receives a call's problem and sink, and returns a context to run its kernel in."""

observers: list[Observer] = []


def observed(problem: Problem, sink: Tensor | None) -> ExitStack:
    """A context in which every observer sees this call."""
    stack = ExitStack()
    for observer in observers:
        stack.enter_context(observer(problem, sink))
    return stack


def unwatched(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether nothing of PyTorch's sees operators: no compiler, no dispatch mode, no odd tensors."""
    plain = type(q) is Tensor and type(k) is Tensor and type(v) is Tensor
    return plain and not torch.compiler.is_compiling() and not torch._C._len_torch_dispatch_stack()
