# mypy: disable-error-code="import-untyped, import-not-found, unused-ignore"
"""The same operators for a GPU. The compiler sees the kernels inside them, and launches these as it does its own."""

from torch import Tensor
from torch.library import triton_op, wrap_triton

from isotherm.monitor.noting import launch, launch_squares
from isotherm.monitor.noting_kernel import note_rows, note_squares


@triton_op("isotherm::note_on_gpu", mutates_args={"pool"})
def note(
    q: Tensor, k: Tensor, mask: Tensor | None, armed: Tensor, pool: Tensor, offset: int,
    scale: float, causal: bool, rows: int,
) -> None:  # fmt: skip
    """Inside a graph."""
    launch(wrap_triton(note_rows), q, k, mask, armed, pool, offset=offset, scale=scale, causal=causal, rows=rows)


@triton_op("isotherm::note_gradient_on_gpu", mutates_args={"pool"})
def note_gradient(g_q: Tensor, g_k: Tensor, armed: Tensor, pool: Tensor, offset: int) -> None:
    """Inside a graph."""
    launch_squares(wrap_triton(note_squares), g_q, g_k, armed, pool, offset)
