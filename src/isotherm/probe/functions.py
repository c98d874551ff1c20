"""Names of PyTorch's functions, by what they mean for attention, and their arguments in a known order."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from isotherm.probe import opaque
from isotherm.probe.trail import UNCHANGED, VIEWS

MATRICES = {"matmul": 0, "bmm": 0, "mm": 0, "__matmul__": 0, "linear": 0, "baddbmm": 1, "addbmm": 1, "addmm": 1}
"""Products of matrices, and where their first factor stands."""
PRODUCTS = frozenset({*MATRICES, "__rmatmul__", "einsum", "tensordot", "inner"})
NORMS = frozenset({"normalize", "layer_norm", "rms_norm", "group_norm", "native_layer_norm"})
SOFTMAXES = frozenset({"softmax", "log_softmax", "special_softmax", "safe_softmax", "softmin", "gumbel_softmax"})
SUMS = frozenset({"sum", "mean"})
KERNELS = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention"})
COMPARISONS = frozenset({"cdist", "cosine_similarity", "mv", "dot", "vdot", "vecdot"})
"""Functions that compare two activations, of which no more is followed than that they do."""
ALWAYS = frozenset({*PRODUCTS, *NORMS, *SOFTMAXES, *KERNELS, *COMPARISONS, opaque.NAME})
"""Functions that are always looked at. Others matter only while a product is being followed."""
RENAMED = frozenset({"linalg_matmul", "linalg_vecdot", "_weight_norm"})
CONTAINERS = (Tensor, tuple, list)
OUTER = frozenset({"mul", "multiply", "__mul__"})
CASTS = frozenset({"to", "to_copy", "type", "float", "half", "bfloat16", "double", "clone"})
LENGTHS = frozenset({"norm", "linalg_norm", "linalg_vector_norm", "pow", "square", "sum", "sqrt", "rsqrt", "clamp_min"})
REMADE = frozenset({*OUTER, *CASTS, *LENGTHS, "div", "add", "exp", "normalize", "weight_norm"})
"""Functions that make another weight of weights and numbers."""
PASSED_ON = frozenset({*VIEWS, *UNCHANGED, "dropout"})
"""Functions after which weights that sum to one are still known as such."""
NAMES = {
    "binary": ("input", "other"),
    "masked_fill": ("input", "mask", "value"),
    "where": ("condition", "input", "other"),
    "baddbmm": ("input", "batch1", "batch2"),
    "addbmm": ("input", "batch1", "batch2"),
    "addmm": ("input", "mat1", "mat2"),
    "bmm": ("input", "mat2"),
    "mm": ("input", "mat2"),
    "linear": ("input", "weight", "bias"),
    "einsum": ("equation", "operands"),
    "tensordot": ("a", "b", "dims"),
}
"""Names of arguments, by which they may be passed; «binary» for every other function."""
Call = tuple[tuple[Any, ...], dict[str, Any]]


class Known(NamedTuple):
    """What is known of a function once and for all."""

    name: str
    writes: bool
    always: bool


@functools.cache
def known(func: Any) -> Known:
    """The function's name, whether it writes to its first argument, and whether it is always looked at."""
    name = _name(func)
    writing = writes(name)
    return Known(name, writing, writing or name in ALWAYS)


def _name(func: Any) -> str:
    """The function's name without its overload: "softmax" of `aten::_softmax.int`, "mT" of that attribute."""
    name = str(getattr(func, "__name__", ""))
    if isinstance(func, (OpOverload, OpOverloadPacket)):
        return opaque.NAME if opaque.is_foreign(func) else name.partition(".")[0].removeprefix("_")
    if isinstance(func, HigherOrderOperator):
        return str(func.name())
    if name == "__get__":
        return str(getattr(getattr(func, "__self__", None), "__name__", ""))
    return name.removeprefix("linalg").removeprefix("_") if name in RENAMED else name


def writes(name: str) -> bool:
    """Whether a function of that name writes to its first argument."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def positional(name: str, args: Any, kwargs: Any) -> Call:
    """The arguments with those that were passed by keyword in their places."""
    given, left = list(args), dict(kwargs)
    for name_of_argument in NAMES.get(name, NAMES["binary"])[len(given) :]:
        key = "self" if name_of_argument == "input" and "self" in left else name_of_argument
        if key not in left:
            break
        given.append(left.pop(key))
    return tuple(given), left


def factors_of(name: str, args: Any) -> tuple[tuple[Tensor, int], tuple[Tensor, int]] | None:
    """The two factors of a product, each with the axis that is summed over."""
    if name == "einsum":
        operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        left = str(args[0]).replace(" ", "").split("->")[0].split(",")
        if len(operands) != 2 or len(left) != 2:
            return None
        result = str(args[0]).replace(" ", "").partition("->")[2]
        summed = [x for x in left[0] if x.isalpha() and x in left[1] and x not in result]
        over = [0 if not summed else names.index(summed[-1]) - len(names) for names in left]
        pairs = tuple(zip(operands, over, strict=True))
    elif name in ("tensordot", "inner"):
        pairs = (args[0], -1), (args[1], -1)
    else:
        x, y = args[MATRICES.get(name, 0) :][:2]
        pairs = ((y, -1), (x, -2)) if name == "__rmatmul__" else ((x, -1), (y, -1 if name == "linear" else -2))
    usable = all(isinstance(x, Tensor) and x.dtype.is_floating_point and x.dim() >= -axis for x, axis in pairs)
    return pairs if usable else None  # type: ignore[return-value]


def flat(values: Iterable[Any]) -> Iterator[Any]:
    """The values, and those inside lists and tuples among them."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from value
        else:
            yield value
