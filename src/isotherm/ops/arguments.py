"""Checks of `attention`'s arguments. Each error names the argument and what was expected."""

from typing import Literal

import torch
from torch import Tensor

from isotherm.errors import ArgumentError
from isotherm.language import Text

Alignment = Literal["top-left", "bottom-right"]
Causal = bool | Alignment
GOLDEN = 0.6180339887498949


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Check rank, batch, heads, dimensions, dtype and device of q, k and v."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise ArgumentError(name, Text("a tensor", "张量"), got=type(tensor).__name__)
        if tensor.dim() != 4:
            raise ArgumentError(
                name, Text("[batch, heads, length, dimension]", "[批, 头, 长度, 维度] 四维"), got=list(tensor.shape)
            )
        if not tensor.dtype.is_floating_point:
            raise ArgumentError(name, Text("a floating-point tensor", "浮点张量"), got=tensor.dtype)
        for what, mine, other in (("dtype", tensor.dtype, q.dtype), ("device", tensor.device, q.device)):
            if mine != other:
                raise ArgumentError(name, Text(f"the {what} of q, {other}", f"与 q 相同的 {what}：{other}"), got=mine)
    _same("k", "batch", k, q, 0)
    _same("v", "batch", v, q, 0)
    _same("k", "head dimension", k, q, 3)
    _same("v", "number of heads", v, k, 1, like="k")
    _same("v", "length", v, k, 2, like="k")
    if q.shape[1] and (not k.shape[1] or q.shape[1] % k.shape[1]):
        raise ArgumentError(
            "k",
            Text(f"a number of heads that divides q's {q.shape[1]}", f"能整除 q 的头数 {q.shape[1]} 的头数"),
            got=k.shape[1],
        )
    if not q.shape[3]:
        raise ArgumentError("q", Text("a head dimension of at least 1", "至少为 1 的头维度"), got=list(q.shape))


def _same(name: str, what: str, tensor: Tensor, other: Tensor, axis: int, like: str = "q") -> None:
    if tensor.shape[axis] != other.shape[axis]:
        chinese = {"batch": "批大小", "head dimension": "头维度", "number of heads": "头数", "length": "长度"}[what]
        raise ArgumentError(
            name,
            Text(f"the {what} of {like}, {other.shape[axis]}", f"与 {like} 相同的{chinese} {other.shape[axis]}"),
            got=f"{tensor.shape[axis]} in {list(tensor.shape)}",
        )


def check_broadcast(name: str, tensor: Tensor | None, shape: tuple[int, int, int, int], like: Tensor) -> Tensor | None:
    """Return a mask (bool) or bias (float) as [B, Hq, T, S], with size 1 where it broadcasts."""
    if tensor is None:
        return None
    if not isinstance(tensor, Tensor):
        raise ArgumentError(name, Text("a tensor", "张量"), got=type(tensor).__name__)
    if name == "mask" and tensor.dtype is not torch.bool:
        hint = Text("bool, True where a key is visible (pass numbers as bias)", "bool，True 表示可见（数值请用 bias）")
        raise ArgumentError(name, hint, got=tensor.dtype)
    if name == "bias" and not tensor.dtype.is_floating_point:
        raise ArgumentError(name, Text("a floating-point tensor", "浮点张量"), got=tensor.dtype)
    if tensor.device != like.device:
        raise ArgumentError(
            name, Text(f"the device of q, {like.device}", f"与 q 相同的设备 {like.device}"), got=tensor.device
        )
    full = tensor.view((1,) * (4 - tensor.dim()) + tuple(tensor.shape)) if tensor.dim() in (2, 4) else None
    if full is None or any(have not in (1, want) for have, want in zip(full.shape, shape, strict=True)):
        what = f"[T, S] or [B, Hq, T, S] = {list(shape)}, any of them 1"
        chinese = f"[T, S] 或 [B, Hq, T, S] = {list(shape)}，各维可为 1"
        raise ArgumentError(name, Text(what, chinese), got=list(tensor.shape))
    return full


def check_window(window: int | None) -> int | None:
    """Check a sliding window's width in keys."""
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ArgumentError(
            "window", Text("a whole number of keys, at least 1", "至少为 1 的整数（键数）"), got=repr(window)
        )
    return window


def check_causal(causal: Causal) -> Alignment | None:
    """How queries line up with keys when T ≠ S, or None without a causal mask. True means bottom-right."""
    if causal is False:
        return None
    if causal is True:
        return "bottom-right"
    if causal in ("top-left", "bottom-right"):
        return causal
    raise ArgumentError(
        "causal",
        Text("True, False, 'top-left' or 'bottom-right'", "True、False、'top-left' 或 'bottom-right'"),
        got=repr(causal),
    )


def check_rows(rows: int | Tensor | None, total: int, device: torch.device) -> Tensor | None:
    """The indices of the query rows to measure, ascending, or None for all rows."""
    if rows is None:
        return None
    if isinstance(rows, Tensor):
        whole = rows.dim() == 1 and not rows.dtype.is_floating_point and rows.dtype is not torch.bool and len(rows)
        if not whole or int(rows.min()) < 0 or int(rows.max()) >= total:
            raise ArgumentError(
                "rows", Text(f"indices from 0 to {total - 1}", f"0 到 {total - 1} 之间的下标"), got=rows.tolist()
            )
        return rows.to(device).unique()
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise ArgumentError("rows", Text("a number of rows, at least 1", "至少为 1 的行数"), got=repr(rows))
    if rows >= total:
        return None
    # Take one row from each of `rows` equal stretches, so that short and long causal rows are both covered. The place
    # within a stretch moves on by the golden ratio, so it follows no pattern in the data. This uses no random numbers,
    # and a CUDA graph can hold it.
    edges = torch.arange(rows + 1, device=device) * total // rows
    turns = torch.arange(rows, device=device, dtype=torch.float64) * GOLDEN % 1
    return edges[:-1] + (turns * edges.diff()).long()
