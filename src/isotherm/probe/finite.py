"""Whether numbers are finite, at the cost of one sum for each tensor."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

DEEPEST = 6
"""How many containers within one another are looked into."""

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def is_finite(value: Any, depth: int = 0) -> bool:
    """Whether the tensors in `value` (a tensor, or tuples, lists and mappings of them) are free of NaN and Inf."""
    if isinstance(value, Tensor):
        return _is_finite(value)
    if depth == DEEPEST or not isinstance(value, (tuple, list, Mapping)):
        return True
    parts = value.values() if isinstance(value, Mapping) else value
    return all(is_finite(part, depth + 1) for part in parts)


def largest_of(tensor: Tensor) -> Tensor | None:
    """The largest magnitude in a tensor on a GPU, for reading later: it is finite only if all numbers are. None elsewhere."""
    if not tensor.is_cuda or tensor.is_nested or tensor.layout is not torch.strided or not tensor.numel():
        return None
    return torch.linalg.vector_norm(tensor.detach(), torch.inf).double() if tensor.dtype in FLOATS else None


def _is_finite(tensor: Tensor) -> bool:
    """A sum is finite only if every term is; where it overflows, each number is looked at."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta or tensor.is_nested:
        return True
    if tensor.layout is not torch.strided or not tensor.numel():
        return True
    numbers = tensor.detach()
    numbers = numbers.float() if numbers.itemsize == 1 else numbers  # float8 has no sum
    return bool(numbers.sum().isfinite()) or bool(numbers.isfinite().all())
