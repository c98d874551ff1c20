"""Products of two activations, however they are written: matmul, einsum in any order, tensordot, or multiply and sum.

Attention begins with such a product: every query with every key. A product with a weight of the model is a projection, and no
such product. Axes are named by letters, as in einsum: those that the result has from one factor only are rows (of the first
factor) and columns (of the second), those that it has from both are leading axes, and the others are summed over.
"""

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor

from isotherm.probe.functions import MATRICES
from isotherm.probe.scores import Scores

SHORTEST = 2
"""How long the vectors of a dot product are at least. Shorter ones are an outer product, as in rotary embeddings."""


def of_call(name: str, args: Sequence[Any]) -> Scores | None:
    """The scores of a function from `functions.PRODUCTS`."""
    if name == "einsum":
        return of_einsum(args[0], args[1:])
    if name == "tensordot":
        return of_tensordot(args[0], args[1], args[2] if len(args) > 2 else 2)
    if name == "inner":
        return of_inner(args[0], args[1])
    x, y = args[MATRICES.get(name, 0) :][:2]
    if name == "__rmatmul__":
        x, y = y, x
    return of_matrices(x, y.mT if name == "linear" else y)


def of_matrices(x: Tensor, y: Tensor) -> Scores | None:
    """The scores x [*, R, D] @ y [*, D, C]."""
    if min(x.dim(), y.dim()) < 2 or x.shape[-1] < SHORTEST:
        return None
    lead = tuple(torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    return Scores.of(x.detach(), y.detach().transpose(-1, -2), lead, tuple(range(len(lead) + 2)))


def of_letters(x: Tensor, of_x: str, y: Tensor, of_y: str, result: str) -> Scores | None:
    """The scores einsum(f"{of_x},{of_y}->{result}", x, y), or None if that is no product of rows with columns."""
    summed = [letter for letter in of_x if letter in of_y and letter not in result]
    rows = [letter for letter in result if letter in of_x and letter not in of_y]
    columns = [letter for letter in result if letter in of_y and letter not in of_x]
    if not (summed and rows and columns) or set(of_x) - {*summed, *result} or set(of_y) - {*summed, *result}:
        return None
    if any(len(set(names)) < len(names) for names in (of_x, of_y, result)):
        return None
    row, column = rows[-1], columns[-1]
    lead = [letter for letter in result if letter not in (row, column)]
    a, b = _vectors(x, of_x, lead, row, summed), _vectors(y, of_y, lead, column, summed)
    if a.shape[-1] < SHORTEST:
        return None
    sizes = dict(zip(of_x, x.shape, strict=True)) | dict(zip(of_y, y.shape, strict=True))
    canonical = [*lead, row, column]
    return Scores.of(a, b, tuple(sizes[letter] for letter in lead), tuple(canonical.index(x) for x in result))


def _vectors(tensor: Tensor, names: str, lead: list[str], row: str, summed: list[str]) -> Tensor:
    """A factor as [*lead, rows, summed], with size 1 for leading axes that it does not have."""
    own = [letter for letter in lead if letter in names]
    moved = tensor.detach().permute([names.index(letter) for letter in (*own, row, *summed)])
    moved = moved.flatten(len(own) + 1)
    for axis, letter in enumerate(lead):
        moved = moved if letter in own else moved.unsqueeze(axis)
    return moved


def of_einsum(equation: Any, operands: Sequence[Any]) -> Scores | None:
    """The scores of an einsum over two factors."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or not all(isinstance(one, Tensor) for one in operands):
        return None
    named = _names(equation.replace(" ", ""), [one.dim() for one in operands])
    return None if named is None else of_letters(operands[0], named[0], operands[1], named[1], named[2])


def _names(equation: str, dims: list[int]) -> tuple[str, str, str] | None:
    """The letters of each factor and of the result, with letters of our own for what an ellipsis stands for."""
    left, arrow, result = equation.partition("->")
    factors = left.split(",")
    if len(factors) != 2:
        return None
    free = [letter for letter in ascii_letters if letter not in equation]
    missing = [
        dim - len(names.replace("...", "")) if "..." in names else 0 for names, dim in zip(factors, dims, strict=True)
    ]
    if min(missing) < 0 or max(missing) > len(free):
        return None
    shared = "".join(free[: max(missing)])
    one, other = (
        names.replace("...", shared[len(shared) - count :]) for names, count in zip(factors, missing, strict=True)
    )
    if not arrow:  # einsum's own rule: letters that occur once, in alphabetical order, after the ellipsis
        once = sorted(x for x in set(one + other) - set(shared) if (one + other).count(x) == 1)
        return one, other, shared + "".join(once)
    return one, other, result.replace("...", shared)


def of_tensordot(x: Tensor, y: Tensor, dims: Any) -> Scores | None:
    """The scores of `torch.tensordot`."""
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    over_x, over_y = (range(-dims, 0), range(dims)) if isinstance(dims, int) else dims
    over_x, over_y = [axis % x.dim() for axis in over_x], [axis % y.dim() for axis in over_y]
    of_x, rest = ascii_letters[: x.dim()], iter(ascii_letters[x.dim() :])
    of_y = "".join(of_x[over_x[over_y.index(axis)]] if axis in over_y else next(rest) for axis in range(y.dim()))
    left = "".join(letter for axis, letter in enumerate(of_x) if axis not in over_x)
    return of_letters(x, of_x, y, of_y, left + "".join(letter for letter in of_y if letter not in of_x))


def of_inner(x: Tensor, y: Tensor) -> Scores | None:
    """The scores of `torch.inner`."""
    return of_tensordot(x, y, ([-1], [-1])) if min(x.dim(), y.dim()) >= 1 else None


def of_outer(x: Tensor, y: Tensor, summed: Sequence[int], *, kept: bool) -> Scores | None:
    """The scores (x * y).sum(summed), for factors that broadcast against each other. `kept` axes stay with size 1."""
    dims = max(x.dim(), y.dim())
    shape = torch.broadcast_shapes(x.shape, y.shape)
    letters = ascii_letters[:dims]

    def named(one: Tensor) -> tuple[Tensor, str]:
        full = one.detach().reshape((1,) * (dims - one.dim()) + tuple(one.shape))
        own = [axis for axis in range(dims) if full.shape[axis] != 1 or shape[axis] == 1]
        return full.squeeze([axis for axis in range(dims) if axis not in own]), "".join(letters[axis] for axis in own)

    over = {axis % dims for axis in summed}
    result = "".join(letter for axis, letter in enumerate(letters) if axis not in over)
    scores = of_letters(*named(x), *named(y), result)
    if scores is None or not kept:
        return scores
    return scores.viewed(tuple(1 if axis in over else shape[axis] for axis in range(dims)))


def differ_along(x: Tensor, y: Tensor, axes: Sequence[int]) -> bool:
    """Whether both factors of x * y are vectors along some of these axes: then the sum over them is a dot product."""
    dims = max(x.dim(), y.dim())
    sizes = [(one.shape[axis - dims] if one.dim() >= dims - axis else 1) for axis in axes for one in (x, y)]
    return min(sizes) >= SHORTEST
