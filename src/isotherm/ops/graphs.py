"""Functions that `torch.compile` does not trace."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def untraced(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Break the graph at this function: a traced graph would hold every iteration of its loops.

    `torch.compiler.disable` imports PyTorch's compiler, which takes a second, so it is called only after other code has
    imported the compiler.
    """
    disabled: list[Callable[Given, Result]] = []

    @wraps(function)
    def call(*args: Given.args, **options: Given.kwargs) -> Result:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **options)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **options)

    return call
