"""Closed forms of softmax along the last axis: the function, its Jacobian, the cross-entropy gradient.

Every function takes a NumPy array or a torch tensor and returns the same kind; torch is never imported here, only
recognised when the caller has it. `y` is always an output of `softmax`, `[..., n]`.
"""

import sys
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from isotherm.errors import ArgumentError
from isotherm.language import Text

if TYPE_CHECKING:
    import torch

Array = TypeVar("Array", NDArray[Any], "torch.Tensor")

__all__ = [
    "cross_entropy_gradient",
    "jacobian",
    "jacobian_entry",
    "jacobian_max",
    "jacobian_product",
    "jacobian_trace",
    "log_softmax",
    "softmax",
]


def _namespace(x: object) -> Any:
    """The module whose functions take `x`; torch and numpy agree on every name and keyword used below."""
    torch_module = sys.modules.get("torch")
    if torch_module is not None and isinstance(x, torch_module.Tensor):
        return torch_module
    if isinstance(x, np.ndarray | np.generic):
        return np
    raise ArgumentError(
        "x",
        Text("a NumPy array or a torch tensor", "NumPy 数组或 torch 张量"),
        got=f"{type(x).__module__}.{type(x).__name__}",
    )


def _is_real(xp: Any, x: Any) -> bool:
    if xp is np:
        return bool(np.issubdtype(x.dtype, np.floating))
    return bool(x.is_floating_point())


def _logits(x: Any) -> tuple[Any, Any]:
    """The namespace and `x` in a floating dtype, with at least one entry on the last axis."""
    xp = _namespace(x)
    if x.ndim == 0 or x.shape[-1] == 0:
        expected = Text("at least one entry on the last axis", "最后一维至少有一个元素")
        raise ArgumentError("x", expected, got=tuple(x.shape))
    if not _is_real(xp, x):
        x = x.astype(np.float64) if xp is np else x.to(xp.get_default_dtype())
    return xp, x


def _shifted(x: Any) -> tuple[Any, Any, Any]:
    """(namespace, x − max, Σ exp(x − max)); a row of −inf keeps its −inf and gets the sum 1."""
    xp, x = _logits(x)
    top = xp.amax(x if xp is np else x.detach(), axis=-1, keepdims=True)
    # Differences beyond the float range become −inf, whose exponential is the right 0; +inf and NaN become NaN.
    with np.errstate(over="ignore", invalid="ignore"):
        below = x - xp.where(xp.isneginf(top), xp.zeros_like(top), top)
    total = xp.exp(below).sum(axis=-1, keepdims=True)
    return xp, below, xp.where(total == 0, xp.ones_like(total), total)


def _positions(y: Any) -> Any:
    """0 … n − 1, where y lives."""
    xp = _namespace(y)
    return xp.arange(y.shape[-1]) if xp is np else xp.arange(y.shape[-1], device=y.device)


def _one_hot(y: Any, index: Any) -> Any:
    """[..., n] in y's dtype: 1 where the last axis equals `index` [...], else 0."""
    positions = _positions(y)
    hot = positions == index[..., None]
    return hot.astype(y.dtype) if isinstance(positions, np.ndarray) else hot.to(y.dtype)


def softmax(x: Array) -> Array:
    """exp(xᵢ)/Σ exp(xⱼ), computed on x − max x so that nothing overflows.

    An entry −inf gets probability 0. A row of nothing but −inf (no visible key) gives zeros, not NaN; a row with
    +inf or NaN gives NaN.

    >>> softmax(np.array([1.0, 1.0, 2.0]))
    array([0.21194156, 0.21194156, 0.57611688])
    """
    xp, below, total = _shifted(x)
    y: Array = xp.exp(below) / total
    return y


def log_softmax(x: Array) -> Array:
    """xᵢ − ln Σ exp(xⱼ), finite wherever xᵢ is; a row of nothing but −inf stays −inf."""
    xp, below, total = _shifted(x)
    log_y: Array = below - xp.log(total)
    return log_y


def jacobian_entry(y: Array, i: int, j: int) -> Array:
    """∂yᵢ/∂xⱼ for each row: yᵢ(1 − yᵢ) where i = j, −yᵢyⱼ elsewhere."""
    n = y.shape[-1]
    for name, index in (("i", i), ("j", j)):
        if not -n <= index < n:
            expected = Text("an index of one of {n} entries", "{n} 个元素之一的下标").format(n=n)
            raise ArgumentError(name, expected, got=index)
    entry: Array = y[..., i] * (1 - y[..., i]) if i % n == j % n else -y[..., i] * y[..., j]
    return entry


def jacobian(y: Array) -> Array:
    """J = diag(y) − y yᵀ, `[..., n, n]`: symmetric, positive semi-definite, J·1 = 0, ‖J‖₂ ≤ ½."""
    diagonal = _one_hot(y, _positions(y)) * y[..., None, :]
    matrix: Array = diagonal - y[..., :, None] * y[..., None, :]
    return matrix


def jacobian_product(y: Array, t: Array) -> Array:
    """J t = y ⊙ (t − ⟨y, t⟩) without forming J; J is symmetric, so this is the jvp and the vjp alike."""
    product: Array = y * (t - (y * t).sum(-1)[..., None])
    return product


def jacobian_trace(y: Array) -> Array:
    """tr J = Σ yᵢ(1 − yᵢ) = 1 − Σ yᵢ²: the gradient gate, 1 − 1/n for a uniform row, 0 for a one-hot or empty one."""
    trace: Array = (y * (1 - y)).sum(-1)
    return trace


def jacobian_max(y: Array) -> Array:
    """max |Jᵢⱼ| = max yᵢ(1 − yᵢ) = top1·(1 − top1), since yᵢyⱼ ≤ yᵢ(1 − yᵢ) and Σ y = 1; at most ¼."""
    largest: Array = _namespace(y).amax(y * (1 - y), axis=-1)
    return largest


def cross_entropy_gradient(logits: Array, target: Array) -> Array:
    """∂(−Σ tᵢ ln ŷᵢ)/∂logits for each row: ŷ − t, where ŷ = softmax(logits).

    `target` holds class indices `[...]` (t is then one-hot) or probabilities `[..., n]`. For t that do not sum to 1
    the gradient is ŷ·Σt − t, which is what is returned. Nothing is averaged over rows.
    """
    xp, x = _logits(logits)
    probabilities = _is_real(xp, target)
    wanted = tuple(x.shape) if probabilities else tuple(x.shape[:-1])
    if tuple(target.shape) != wanted:
        raise ArgumentError("target", Text("shape {s}", "形状 {s}").format(s=wanted), got=tuple(target.shape))
    if not probabilities and bool(((target < 0) | (target >= x.shape[-1])).any()):
        expected = Text("class indices from 0 to {last}", "0 到 {last} 的类别下标").format(last=x.shape[-1] - 1)
        raise ArgumentError("target", expected, got=f"{int(target.min())}…{int(target.max())}")
    t: Array = target if probabilities else _one_hot(x, target)
    gradient: Array = softmax(x) * t.sum(-1)[..., None] - t
    return gradient
