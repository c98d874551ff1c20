# mypy: disable-error-code="import-untyped, import-not-found, unused-ignore"
"""Operators that note attention inside compiled code, in the forward and in the backward pass.

They add to pools that stay on the device, and do nothing unless a flag there says that the step is looked at. So the graph is
the same in every step: nothing is compiled again, and CUDA graphs can replay it. On a GPU they are kernels, which the compiler
launches as it does its own; elsewhere `statistics` measures.
"""

import weakref
from collections import deque
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from isotherm.checkup.rows import statistics
from isotherm.checkup.thresholds import SATURATED
from isotherm.monitor.totals import SUMS, LayerTotals, squared_length
from isotherm.ops import Problem, Visibility
from isotherm.ops import triton as kernels
from isotherm.probe.masks import Masks, Terms

_errors: deque[str] = deque(maxlen=1)
"""What went wrong in the operators. The code that they are in must never hear of it."""
ROWS = len(SUMS) + 1
"""Rows of a layer's state [ROWS, heads] in a pool: the sums, and the largest logit."""


def can_note(q: Tensor, mask: torch.dtype | None, backend: str = "inductor") -> bool:
    """Whether the operators can be used for such queries and masks without waiting for the device. On a GPU, Inductor's code
    alone writes to pools unseen by autograd, which refuses a tensor that was changed after the forward pass."""
    if q.device.type == "cpu":
        return True
    if backend != "inductor":
        return False
    plain = q.dtype in (torch.float16, torch.bfloat16, torch.float32) and mask in (None, torch.bool)
    return q.device.type == "cuda" and plain and q.shape[-1] <= kernels.WIDEST and kernels.lacking(q.device) is None


def note(
    q: Tensor, k: Tensor, mask: Tensor | None, armed: Tensor, pool: Tensor, offset: int,
    scale: float, causal: bool, rows: int,
) -> None:  # fmt: skip
    """Add what q [B, Hq, T, D] and k [B, Hkv, S, D] say to the state at `offset` of the pool, over about `rows` rows of each
    head (0: all)."""
    one = _on_gpu().note if q.device.type == "cuda" else _note
    one(q, k, mask, armed, pool, offset, scale, causal, rows)


def note_gradient(g_q: Tensor, g_k: Tensor, armed: Tensor, pool: Tensor, offset: int) -> None:
    """Add the squared lengths of two gradients on a GPU to two numbers at `offset` of the pool."""
    _on_gpu().note_gradient(g_q, g_k, armed, pool, offset)


class NotePools(Protocol):
    """Where gradients outside a GPU are noted."""

    armed: Tensor
    squares: Tensor


_held: "weakref.WeakValueDictionary[int, NotePools]" = weakref.WeakValueDictionary()


def hold(pools: NotePools) -> int:
    """A number by which `note_gradient_here` finds these pools."""
    number = len(_held) + 1
    while number in _held:
        number += 1
    _held[number] = pools
    return number


def note_now(q: Tensor, k: Tensor, armed: Tensor, pool: Tensor, *, scale: float, causal: bool, rows: int) -> None:
    """The same on a GPU, outside a graph and without a mask."""
    from isotherm.monitor.noting_kernel import note_rows

    with torch.cuda.device(q.device):
        launch(note_rows, q, k, None, armed, pool, offset=0, scale=scale, causal=causal, rows=rows)


def taken_errors() -> list[str]:
    """What went wrong since this was asked."""
    taken = list(_errors)
    _errors.clear()
    return taken


@cache
def _on_gpu() -> Any:
    from isotherm.monitor import noting_gpu

    return noting_gpu


@torch.library.custom_op("isotherm::note", mutates_args=("pool",))
def _note(
    q: Tensor, k: Tensor, mask: Tensor | None, armed: Tensor, pool: Tensor, offset: int,
    scale: float, causal: bool, rows: int,
) -> None:  # fmt: skip
    if armed.item():
        state = pool[offset : offset + ROWS * q.shape[1]].view(ROWS, -1)
        try:
            totals = _totals(q, k, mask, scale, causal, rows)
        except Exception as error:
            _errors.append(f"{type(error).__name__}: {error}")
            return
        state[:-1] += totals.sums
        state[-1] = torch.maximum(state[-1], totals.largest)


def _totals(q: Tensor, k: Tensor, mask: Tensor | None, scale: float, causal: bool, rows: int) -> LayerTotals:
    terms = Terms() if mask is None else Masks().visible(mask)
    visibility = Visibility(torch.arange(q.shape[2]), k.shape[2], causal, None, four_axes(terms.mask))
    problem = Problem(q, k, k, visibility, scale, four_axes(terms.bias))
    return LayerTotals.of(statistics(problem, None, rows_of_each(q, rows), [scale], padded=None)[0])


@torch.library.custom_op("isotherm::note_gradient_here", mutates_args=())
def note_gradient_here(g_q: Tensor, g_k: Tensor, held: int, offset: int) -> tuple[Tensor, Tensor]:
    """The gradients as they are, their squared lengths added to two numbers at `offset` of the pools that are `held`.

    A graph that runs twice before its backward pass, or whose parts are compiled one by one, keeps the tensors that this pass
    needs, and autograd refuses those that another part of the pass has changed meanwhile. So the pools are none of them, and
    the operator is kept in the graph by what it returns.
    """
    pools = _held.get(held)
    if pools is not None and pools.armed.item():
        for place, gradient in enumerate((g_q, g_k)):
            try:
                pools.squares[offset + place] += squared_length(gradient)
            except Exception as error:
                pools.squares[offset + place] = torch.nan
                _errors.append(f"{type(error).__name__}: {error}")
    return g_q.clone(), g_k.clone()


@_note.register_fake
def _(*_: Any) -> None:
    return None


@note_gradient_here.register_fake
def _(g_q: Tensor, g_k: Tensor, held: int, offset: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return torch.empty_like(g_q), torch.empty_like(g_k)


class Through(torch.autograd.Function):
    """Hands q and k on as they are, and notes their gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, armed: Tensor, squares: Tensor, place: int) -> tuple[Tensor, Tensor]:
        # Not saved: every layer writes to the pool, and autograd would call it changed.
        ctx.held = armed, squares, place
        return q.view_as(q), k.view_as(k)

    @staticmethod
    def backward(ctx: Any, g_q: Tensor, g_k: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        note_gradient(g_q, g_k, *ctx.held)
        return g_q, g_k, None, None, None


class ThroughHere(torch.autograd.Function):
    """The same outside a GPU."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, held: int, place: int) -> tuple[Tensor, Tensor]:
        ctx.held = held, place
        return q.view_as(q), k.view_as(k)

    @staticmethod
    def backward(ctx: Any, g_q: Tensor, g_k: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return *note_gradient_here(g_q, g_k, *ctx.held), None, None


def noted(
    q: Tensor, k: Tensor, mask: Tensor | None, pools: tuple[Tensor, Tensor, Tensor],
    places: tuple[int, int, int], rows: int, scale: float, causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q and k, noted: in the flag's, the sums' and the squares' pools of a number, at these places of the last two."""
    (armed, sums, squares), (offset, place, number) = pools, places
    seen = None if mask is None else mask.detach()
    note(q.detach(), k.detach(), seen, armed, sums, offset, scale, causal, rows)
    if q.device.type == "cpu":
        return ThroughHere.apply(q, k, number, place)  # type: ignore[no-untyped-call]
    return Through.apply(q, k, armed, squares, place)  # type: ignore[no-untyped-call]


def rows_of_each(q: Tensor, rows: int) -> int:
    """How many rows of each sequence of the batch are measured."""
    return q.shape[2] if rows == 0 else min(q.shape[2], max(1, -(-rows // max(1, q.shape[0]))))


def four_axes(mask: Tensor | None) -> Tensor | None:
    """A mask as [B, Hq, T, S], with size 1 where it broadcasts."""
    return None if mask is None else mask.view((1,) * (4 - mask.dim()) + tuple(mask.shape))


def launch(kernel: Any, q: Tensor, k: Tensor, mask: Tensor | None, armed: Tensor, pool: Tensor, **about: Any) -> None:
    """Run the kernel `note_rows`, or a wrapper of it, on a GPU."""
    b, heads, queries, d = q.shape
    keys, rows = k.shape[2], rows_of_each(q, about["rows"])
    block, width = (64 if rows > 32 else 16), 64
    seen, strides = armed, (0, 0, 0, 0)
    if mask is not None:
        seen = four_axes(mask).expand(b, heads, queries, keys)  # type: ignore[union-attr]
        strides = seen.stride()  # type: ignore[assignment]
    kernel[(-(-rows // block), b * heads)](
        q, k, seen, armed, pool, about["offset"], about["scale"], heads, heads // k.shape[1], queries, keys, rows,
        *q.stride(), *k.stride(), *strides,
        D=d, BD=_power(d), BM=block, BN=width, CAUSAL=about["causal"], MASK=mask is not None, EXACT=about["rows"] == 0,
        GATE=SATURATED, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
    )  # fmt: skip


def launch_squares(kernel: Any, g_q: Tensor, g_k: Tensor, armed: Tensor, pool: Tensor, offset: int) -> None:
    """Run the kernel `note_squares`, or a wrapper of it, on a GPU."""
    b, heads_q, queries, d = g_q.shape
    heads_k, keys = g_k.shape[1], g_k.shape[2]
    block = 128
    kernel[(-(-max(queries, keys) // block), b * max(heads_q, heads_k), 2)](
        g_q, g_k, armed, pool, offset, b, heads_q, heads_k, queries, keys, *g_q.stride(), *g_k.stride(),
        D=d, BD=_power(d), BT=block,
    )  # fmt: skip


def _power(d: int) -> int:
    return max(16, 1 << (int(d) - 1).bit_length())
