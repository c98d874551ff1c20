"""Give attention back the queries that it had before they were halved: what else was halved then shows in the outputs.

A half is exact in every precision. Where queries are halved before the call and restored at it, a layer gives what it gave,
unless it uses what makes them for something else, too: it may add them to its output, or gate its values by them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from isotherm.probe.functions import MATRICES, known, positional
from isotherm.probe.sdpa import ARGUMENTS


class Queries(NamedTuple):
    """The queries [B, H, T, D] of one call, the heads of them that are halved, and the names of the modules around the call."""

    q: Tensor
    heads: Sequence[int]
    around: frozenset[str]


class Restoring(TorchFunctionMode):
    """Where halved queries meet keys, puts the whole ones in their place. `met` says which were found."""

    def __init__(self, queries: Sequence[Queries]) -> None:
        super().__init__()
        self._queries = [(one.q, _halved(one)) for one in queries]
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


def _halved(queries: Queries) -> Tensor:
    halved = queries.q.clone()
    halved[:, list(queries.heads)] *= 0.5
    return halved
