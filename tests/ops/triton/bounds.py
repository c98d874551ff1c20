"""Under Triton's interpreter: a kernel reads and writes nothing but the tensors it was given.

Memory that PyTorch keeps for later hides most such mistakes from compute-sanitizer; here the next byte is too far.
"""

import numpy as np
import torch
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor


class Memory:
    """Wraps the interpreter's memory and checks every access."""

    def __init__(self, real):
        self.real, self.spans = real, []

    def __getattr__(self, name):
        return getattr(self.real, name)

    def ask(self, pointers, mask, size):
        at = pointers[np.broadcast_to(mask, pointers.shape)]
        outside = np.ones(at.shape, bool)
        for first, end in self.spans:
            outside &= (at < first) | (at + np.uint64(size) > end)
        if outside.any():
            raise IndexError(f"{outside.sum()} of {at.size} elements are in none of the tensors given")

    def load(self, pointers, mask, other, dtype):
        self.ask(pointers, mask, np.dtype(dtype).itemsize)
        return self.real.load(pointers, mask, other, dtype)

    def store(self, pointers, values, mask):
        self.ask(pointers, mask, values.dtype.itemsize)
        return self.real.store(pointers, values, mask)

    def atomic_rmw(self, op, pointers, values, mask, order):
        self.ask(pointers, mask, values.dtype.itemsize)
        return self.real.atomic_rmw(op, pointers, values, mask, order)

    def atomic_cas(self, pointers, expected, values, order):
        self.ask(pointers, np.True_, values.dtype.itemsize)
        return self.real.atomic_cas(pointers, expected, values, order)


def spans_of(given):
    """Yield the first byte, and the byte after the last, of every tensor among a launch's arguments."""
    for x in given:
        tensor = x.base if isinstance(x, TensorDescriptor) else x
        if isinstance(x, tuple):
            yield from spans_of(x)
        elif isinstance(tensor, torch.Tensor) and tensor.numel():
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            yield np.uint64(tensor.data_ptr()), np.uint64(tensor.data_ptr() + (last + 1) * tensor.element_size())


def watch():
    """Start checking."""
    if isinstance(interpreter._interpreter, Memory):
        return
    memory = interpreter._interpreter = Memory(interpreter._interpreter)
    take = interpreter.GridExecutor._init_args_hst

    def taken(self, args, kwargs):
        given, named = take(self, args, kwargs)
        memory.spans = list(spans_of((*given, *named.values())))
        return given, named

    interpreter.GridExecutor._init_args_hst = taken
