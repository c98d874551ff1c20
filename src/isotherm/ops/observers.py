"""Who sees a call of `attention`: a probe registers here, whatever name `attention` was imported under; PyTorch has others."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from isotherm.ops.problem import Problem

Observer = Callable[[Problem, Tensor | None], AbstractContextManager[object]]
"""Receives a call's problem and sink, and returns a context to run its kernel in."""

observers: list[Observer] = []
tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
"""Whether `torch.jit` is."""


def observed(problem: Problem, sink: Tensor | None) -> ExitStack:
    """A context in which every observer sees this call."""
    stack = ExitStack()
    for observer in observers:
        stack.enter_context(observer(problem, sink))
    return stack


def unwatched(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether nothing of PyTorch's sees operators: no compiler, no tracer, no dispatch mode, no odd tensors."""
    plain = type(q) is Tensor and type(k) is Tensor and type(v) is Tensor
    graph = torch.compiler.is_compiling() or tracing()
    return plain and not graph and not torch._C._len_torch_dispatch_stack()


def readable(x: Tensor) -> bool:
    """Return whether numbers of a tensor can be read: not in a graph, on the meta device or of a fake tensor."""
    return not (x.is_meta or torch.compiler.is_compiling() or isinstance(x, FakeTensor))


def exporting() -> bool:
    """Return whether `torch.export` is tracing, which PyTorch 2.6 does not tell. The flag is read, since Dynamo of PyTorch 2.11
    says yes to `is_exporting()` whenever it compiles."""
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


def numberless(x: Tensor) -> bool:
    """Return whether no code can read numbers of a tensor: an exported or traced graph has no place where it could break."""
    return exporting() or tracing() or isinstance(x, FakeTensor)


def whole(size: int) -> int:
    """Return a size as a number: while `torch.jit` traces, it is a tensor."""
    return int(size) if tracing() else size
