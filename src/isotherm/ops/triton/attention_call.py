"""What every launcher is given, and how it describes that to a kernel: sizes, strides, precision."""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from isotherm.ops.problem import UNLIMITED

HERE = nullcontext()


class AttentionCall(NamedTuple):
    """One call of the kernels: q [B, Hq, T, D], k [B, Hkv, S, D], v [B, Hkv, S, Dv], positions [T].

    A `window` or `softcap` of 0 means none. `documents` int64 [2, B or 1, T] are the first key of each query's document and the
    one after its last. `rows` [R] are the queries to compute; None means all of them.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    positions: Tensor
    mask: Tensor | None
    bias: Tensor | None
    causal: bool
    window: int
    scale: float
    softcap: float
    documents: Tensor | None = None
    rows: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All tensors of the call."""
        return self.q, self.k, self.v, self.positions, self.mask, self.bias, self.documents, self.rows

    @property
    def numbers(self) -> tuple[float, ...]:
        """All arguments of the call that are not tensors."""
        return self.causal, self.window, self.scale, self.softcap

    @property
    def groups(self) -> int:
        """Query heads per key head."""
        return self.q.shape[1] // max(1, self.k.shape[1])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Batch, query heads and rows to compute."""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2] if self.rows is None else len(self.rows)

    @property
    def plain(self) -> bool:
        """Whether there is no mask, bias, window, soft cap or documents."""
        return (
            self.mask is None
            and self.bias is None
            and self.window == 0
            and self.softcap == 0
            and self.documents is None
        )

    @property
    def geometry(self) -> int:
        """What tells which keys a query sees: 0 nothing, 1 causality and window, 2 documents, too."""
        return 2 if self.documents is not None else int(self.causal or self.window > 0)

    @property
    def behind(self) -> int:
        """How far back a query sees."""
        return UNLIMITED if self.window == 0 else min(self.window - 1, UNLIMITED)

    @property
    def ahead(self) -> int:
        """How far forward a query sees."""
        return 0 if self.causal else self.behind


def on_device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Make the tensor's GPU the current one: Triton launches on the current GPU, wherever the tensors are."""
    elsewhere = tensor.is_cuda and tensor.device.index != torch.cuda.current_device()
    return torch.cuda.device(tensor.device) if elsewhere else HERE


def ceil_div(size: int, piece: int) -> int:
    """Return how many pieces cover a size. (`triton.cdiv` costs microseconds, because it also serves kernels.)"""
    return -(-size // piece)


def power_of_2(size: int) -> int:
    """Return the next power of two."""
    return 1 << (size - 1).bit_length()


def padded_dim(size: int) -> int:
    """Return the head dimension that a kernel works with: a power of two, at least 16 (the matrix units' smallest)."""
    return max(16, power_of_2(size))


def precision(call: AttentionCall) -> str:
    """Return Triton's `input_precision`. float32 is multiplied as float32: TF32 would miss the error budget by three digits."""
    return "ieee" if call.k.dtype is torch.float32 else "tf32"


def broadcast_mode(tensor: Tensor | None) -> int:
    """Return how a kernel reads a mask or bias: 0 not at all, 1 once for all rows, 2 for each row."""
    return 0 if tensor is None else 1 if tensor.shape[2] == 1 else 2


def broadcast_strides(tensor: Tensor | None) -> tuple[int, int, int, int]:
    """Return the strides of a tensor [B, Hq, T, S], with 0 for every dimension of size 1."""
    if tensor is None:
        return 0, 0, 0, 0
    b, h, t, s = (0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return b, h, t, s


def document_strides(documents: Tensor | None) -> tuple[int, int]:
    """Return the strides of documents [2, B or 1, T] from first keys to last ones, and from batch to batch."""
    return (0, 0) if documents is None else (documents.stride(0), documents.stride(1) if documents.shape[1] > 1 else 0)
