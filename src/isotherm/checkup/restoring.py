"""Give attention back the queries it had before they were halved, so that nothing else is halved shows in the outputs.

A half is exact in every precision. Where queries are halved before the call and restored at it, a model gives what it gave,
unless it uses what makes them for something else, too: it may add them to its output, or gate its values by them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from isotherm.probe.functions import MATRICES, known, positional
from isotherm.probe.sdpa import ARGUMENTS


class Restoring(TorchFunctionMode):
    """Puts these queries in the place of what equals them with some heads halved, where it meets keys. `met` says which were
    found."""

    def __init__(self, queries: Sequence[tuple[Tensor, Sequence[int]]]) -> None:
        super().__init__()
        self._queries = [(q, _halved(q, heads)) for q, heads in queries]
        self.met = [False for _ in queries]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass one call on."""
        kwargs = {} if kwargs is None else kwargs
        name = known(func).name
        if name == "scaled_dot_product_attention":
            given = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
            return func(**{**given, "query": self._restored(given["query"])})
        if name in MATRICES and name != "linear":
            args, kwargs = positional(name, args, kwargs)
            first = MATRICES[name]
            args = (*args[:first], self._restored(args[first]), *args[first + 1 :])
        return func(*args, **kwargs)

    def _restored(self, found: Tensor) -> Tensor:
        for place, (q, halved) in enumerate(self._queries):
            same = found.dtype is q.dtype and found.numel() == q.numel()
            if same and torch.equal(found.reshape(q.shape), halved):
                self.met[place] = True
                return q.reshape(found.shape)
        return found


def _halved(q: Tensor, heads: Sequence[int]) -> Tensor:
    halved = q.clone()
    halved[:, list(heads)] *= 0.5
    return halved
