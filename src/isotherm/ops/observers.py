"""Observers of `attention`: a probe registers here to see every call, whatever name `attention` was imported under."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

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
