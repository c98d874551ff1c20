# mypy: disable-error-code="import-untyped, import-not-found, unused-ignore"
"""Two operators that note attention inside compiled code, in the forward and in the backward pass.

They add to tensors that stay on the device, and do nothing unless a flag there says that the step is looked at. So the graph
is the same in every step: nothing is compiled again, and CUDA graphs can replay it.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from isotherm.checkup.measure import statistics
from isotherm.checkup.thresholds import SATURATED
from isotherm.monitor.looking import SUMS, LayerTotals
from isotherm.ops import Problem, Visibility

ROWS = len(SUMS) + 1
"""Rows of a state [ROWS, heads]: the sums, and the largest logit."""


def can_note(q: Tensor, mask: torch.dtype | None) -> bool:
    """Whether the operators can be used for such queries and masks without waiting for the device."""
    if q.device.type == "cpu":
        return True
    plain = q.dtype in (torch.float16, torch.bfloat16, torch.float32) and mask in (None, torch.bool)
    return q.device.type == "cuda" and plain and q.shape[-1] <= 256 and find_spec("triton") is not None


@torch.library.custom_op("isotherm::note", mutates_args=("state",))
def note(
    q: Tensor, k: Tensor, mask: Tensor | None, armed: Tensor, state: Tensor, scale: float, causal: bool, rows: int
) -> None:
    """Add what q [B, Hq, T, D] and k [B, Hkv, S, D] say to `state`, over about `rows` rows of each head (0: all)."""
    each = q.shape[2] if rows == 0 else min(q.shape[2], max(1, -(-rows // max(1, q.shape[0]))))
    if q.device.type == "cuda":
        _launch(q, k, mask, armed, state, scale, causal, each)
    elif armed.item():
        positions = torch.arange(q.shape[2])
        boolean = mask is None or mask.dtype == torch.bool
        visibility = Visibility(positions, k.shape[2], causal, None, _four(mask) if boolean else None)
        problem = Problem(q, k, k, visibility, scale, None if boolean else _four(mask), None)
        totals = LayerTotals.of(statistics(problem, None, each, [scale], padded=None)[0])
        state[:-1] += totals.sums
        state[-1] = torch.maximum(state[-1], totals.largest)


@note.register_fake
def _(*_: Any) -> None:
    return None


@torch.library.custom_op("isotherm::note_gradient", mutates_args=("squares",))
def note_gradient(g_q: Tensor, g_k: Tensor, armed: Tensor, squares: Tensor) -> None:
    """Add the squared lengths of two gradients to `squares` [2]."""
    if g_q.device.type == "cuda":
        _launch_squares(g_q, g_k, armed, squares)
    elif armed.item():
        for place, gradient in enumerate((g_q, g_k)):
            squares[place] += torch.linalg.vector_norm(gradient, dtype=torch.float32).square()


@note_gradient.register_fake
def _(*_: Any) -> None:
    return None


def _four(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.view((1,) * (4 - mask.dim()) + tuple(mask.shape))


def _launch(
    q: Tensor, k: Tensor, mask: Tensor | None, armed: Tensor, state: Tensor, scale: float, causal: bool, rows: int
) -> None:
    import triton

    from isotherm.monitor.noting_kernel import note_rows

    b, heads, queries, d = q.shape
    exact = rows == queries
    block = 64 if rows > 32 else 16
    seen = armed if mask is None else _four(mask).expand(b, heads, queries, k.shape[2])  # type: ignore[union-attr]
    strides = (0, 0, 0, 0) if mask is None else seen.stride()
    with torch.cuda.device(q.device):
        note_rows[(triton.cdiv(rows, block), b * heads)](
            q, k, seen, armed, state, scale, heads, heads // k.shape[1], queries, k.shape[2], rows,
            *q.stride(), *k.stride(), *strides,
            D=d, BD=max(16, triton.next_power_of_2(d)), BM=block, BN=64, CAUSAL=causal, MASK=mask is not None,
            EXACT=exact, GATE=SATURATED, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        )  # fmt: skip


def _launch_squares(g_q: Tensor, g_k: Tensor, armed: Tensor, squares: Tensor) -> None:
    import triton

    from isotherm.monitor.noting_kernel import note_squares

    b, heads_q, queries, d = g_q.shape
    heads_k, keys = g_k.shape[1:3]
    block = 128
    with torch.cuda.device(g_q.device):
        note_squares[(triton.cdiv(max(queries, keys), block), b * max(heads_q, heads_k), 2)](
            g_q, g_k, armed, squares, b, heads_q, heads_k, queries, keys, *g_q.stride(), *g_k.stride(),
            D=d, BD=max(16, triton.next_power_of_2(d)), BT=block,
        )  # fmt: skip
