"""Checks of `attention`'s arguments. Each error names the argument and what was expected."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from isotherm.errors import ArgumentError, shown
from isotherm.language import Text
from isotherm.ops import kept
from isotherm.ops.problem import UNLIMITED
from isotherm.scale import Resolved

Alignment = Literal["top-left", "bottom-right"]
Causal = bool | Alignment
WHOLE_NUMBERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ON_META = Text("a tensor on the meta device", "meta 设备上的张量")


def check_tensors(q: Tensor, k: Tensor, v: Tensor, impl: str) -> None:
    """Check layout, rank, batch, heads, dimensions, dtype and device of q, k and v.

    Tensors on the meta device hold no numbers; only the reference reads none.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_numbers(name, tensor)
        if tensor.dim() != 4:
            raise ArgumentError(
                name, Text("[batch, heads, length, dimension]", "[批, 头, 长度, 维度] 四维"), got=list(tensor.shape)
            )
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
    if q.is_meta and impl != "reference":
        raise ArgumentError("q", Text("a tensor that holds numbers", "含有数值的张量"), got=ON_META)
    if not q.shape[1] or not q.shape[3]:
        expected = Text("at least one head, and a head dimension of at least 1", "至少一个头，且头维度至少为 1")
        raise ArgumentError("q", expected, got=list(q.shape))


def check_numbers(name: str, tensor: Tensor) -> None:
    """Check that this is a dense tensor of a floating-point type that every implementation takes."""
    _check_dense(name, tensor)
    if not tensor.dtype.is_floating_point:
        raise ArgumentError(name, Text("a floating-point tensor", "浮点张量"), got=tensor.dtype)
    if tensor.dtype not in DTYPES:
        expected = Text("float16, bfloat16, float32 or float64", "float16、bfloat16、float32 或 float64")
        raise ArgumentError(name, expected, got=tensor.dtype)


def _check_dense(name: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor):
        raise ArgumentError(name, Text("a tensor", "张量"), got=type(tensor).__name__)
    if (odd := _odd_layout(tensor)) is not None:
        raise ArgumentError(name, Text("a dense tensor", "稠密张量"), got=odd)


def _odd_layout(tensor: Tensor) -> object:
    if tensor.is_nested:
        return Text("a nested tensor", "嵌套张量")
    return None if tensor.layout is torch.strided else tensor.layout


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
    _check_dense(name, tensor)
    if name == "mask" and tensor.dtype is not torch.bool:
        hint = Text("bool, True where a key is visible (pass numbers as bias)", "bool，True 表示可见（数值请用 bias）")
        raise ArgumentError(name, hint, got=tensor.dtype)
    if name == "bias":
        check_numbers(name, tensor)
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


def check_device(resolved: Resolved, device: torch.device) -> None:
    """Check that the tensors of a rule are where q is."""
    for tensor in (resolved.multiplier, resolved.sink):
        if isinstance(tensor, Tensor) and tensor.device != device:
            expected = Text(f"tensors on the device of q, {device}", f"与 q 同在 {device} 上的张量")
            raise ArgumentError("scale", expected, got=tensor.device)


def check_local(*tensors: Tensor) -> None:
    """Check that q, k and v are no DTensors, of which only PyTorch's own kernel knows how they are distributed."""
    for name, tensor in zip("qkv", tensors, strict=True):
        if type(tensor) is not Tensor and hasattr(tensor, "to_local"):
            expected = Text("a tensor of this process (its to_local())", "本进程的张量（用其 to_local()）")
            raise ArgumentError(name, expected, got=type(tensor).__name__)


def check_window(window: int | None) -> int | None:
    """Check a sliding window's width in keys."""
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ArgumentError(
            "window", Text("a whole number of keys, at least 1", "至少为 1 的整数（键数）"), got=shown(window)
        )
    if window is not None and window > UNLIMITED:
        expected = Text("at most 2^30 keys (None: every key)", "至多 2^30 个键（None 表示不限）")
        raise ArgumentError("window", expected, got=shown(window))
    return window


def check_documents(documents: Tensor | Sequence[int] | None, q: Tensor, k: Tensor, *, readable: bool) -> Tensor | None:
    """Return the first key of each key's document and the one after its last, [2, B or 1, S]."""
    if documents is None:
        return None
    keys = k.shape[2]
    expected = Text(
        f"the places where documents begin and, last, {keys}, or an id for each key, [B, S] = {[k.shape[0], keys]}",
        f"各文档的起始位置、末项为 {keys}，或每个键的文档编号 [B, S] = {[k.shape[0], keys]}",
    )
    if isinstance(documents, (list, tuple)) and all(type(each) is int and 0 <= each <= keys for each in documents):
        documents = torch.tensor(documents, dtype=torch.int64, device="cpu")
    if not isinstance(documents, Tensor) or documents.dtype not in WHOLE_NUMBERS:
        got = documents.dtype if isinstance(documents, Tensor) else shown(documents)
        raise ArgumentError("documents", expected, got=got)
    _check_dense("documents", documents)
    if documents.is_meta and not q.is_meta:
        raise ArgumentError("documents", expected, got=ON_META)
    by_place = documents.dim() == 1 and len(documents) > 1
    # One size after the other: a graph that leaves sizes open would not find a tuple of them among others.
    by_id = documents.dim() == 2 and documents.shape[0] in (1, k.shape[0]) and documents.shape[1] == keys
    if not (by_place or by_id):
        raise ArgumentError("documents", expected, got=list(documents.shape))
    if q.shape[2] > keys:
        raise ArgumentError("documents", Text("at most as many queries as keys", "查询数不多于键数"), got=q.shape[2])
    if by_place and readable and not documents.is_cuda:
        ascending = bool((documents.long().diff() >= 0).all())  # of bytes no difference is below 0
        if not ascending or int(documents[0]) != 0 or int(documents[-1]) != keys:
            raise ArgumentError("documents", expected, got=documents.tolist())
    documents = documents.to(q.device)
    return _spans_by_place(documents, keys) if by_place else _spans_by_id(documents)


def _spans_by_place(places: Tensor, keys: int) -> Tensor:
    """Spans [2, 1, S] from the places where documents begin and end."""
    places = places.to(torch.int64).contiguous()
    each = torch.arange(keys, device=places.device)
    after = torch.searchsorted(places, each, right=True).clamp(1, len(places) - 1)
    return torch.stack([places[after - 1], places[after]]).unsqueeze(1)


def _spans_by_id(ids: Tensor) -> Tensor:
    """Spans [2, B, S] from ids [B, S]: a document is a run of equal ids."""
    keys = ids.shape[1]
    each, border = torch.arange(keys, device=ids.device), ids.diff(dim=1) != 0
    begins = torch.nn.functional.pad(border, (1, 0), value=True)
    ends = torch.nn.functional.pad(border, (0, 1), value=True)
    first = torch.where(begins, each, 0).cummax(1).values
    end = torch.where(ends, each + 1, keys).flip(1).cummin(1).values.flip(1)
    return torch.stack([first, end])


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
        got = _odd_layout(rows) or (ON_META if rows.is_meta else None)
        if got is None and (rows.dim() != 1 or rows.dtype not in WHOLE_NUMBERS or not len(rows)):
            got = f"{rows.dtype} {list(rows.shape)}"
        if got is None and (int(rows.min()) < 0 or int(rows.max()) >= total):
            got = rows.tolist()
        if got is not None:
            expected = Text(f"indices from 0 to {total - 1}", f"0 到 {total - 1} 之间的下标")
            raise ArgumentError("rows", expected, got=got)
        return rows.to(device, torch.int64).unique()  # PyTorch takes bytes for a mask
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise ArgumentError("rows", Text("a number of rows, at least 1", "至少为 1 的行数"), got=repr(rows))
    if rows >= total:
        return None
    return kept.even_sample(rows, total, device)
