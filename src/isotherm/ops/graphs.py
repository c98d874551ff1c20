"""What `torch.compile` is to leave alone."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def untraced(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A function that is called as it is, where the graph breaks: a graph would have every turn of its loops in it.

    PyTorch's own way to say so imports its compiler, which takes a second: only where somebody else has.
    """
    quiet: list[Callable[Given, Result]] = []

    @wraps(function)
    def call(*args: Given.args, **options: Given.kwargs) -> Result:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **options)
        if not quiet:
            quiet.append(torch.compiler.disable(function))
        return quiet[0](*args, **options)

    return call
