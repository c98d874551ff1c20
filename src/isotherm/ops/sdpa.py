"""PyTorch's own kernel for the output. It returns no weights, so statistics take another pass."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from isotherm.language import Text
from isotherm.ops import derivatives
from isotherm.ops.problem import Problem, Solution, Visibility


def unsupported(problem: Problem) -> Text | None:
    """What PyTorch's kernel cannot be asked for without building an n × n mask."""
    visibility = problem.visibility
    if problem.v.shape[3] != problem.q.shape[3]:
        return Text("Dv ≠ D without holding the n × n matrix", "Dv ≠ D（否则须保存 n × n 矩阵）")
    if problem.bias is not None and problem.bias.requires_grad:
        return Text("the gradient of a bias without holding the n × n matrix", "bias 的梯度（否则须保存 n × n 矩阵）")
    if problem.softcap is not None:
        return Text("a soft cap", "软上限（soft cap）")
    if visibility.window is not None:
        return Text("a sliding window", "滑动窗口")
    if visibility.documents is not None:
        return Text("documents without holding the n × n matrix", "documents（否则须保存 n × n 矩阵）")
    if visibility.causal and (visibility.mask is not None or problem.bias is not None):
        return Text("causal=True together with a mask or bias", "causal=True 与 mask 或 bias 并用")
    if visibility.mask is not None and problem.bias is not None:
        return Text("a mask together with a bias", "mask 与 bias 并用")
    # With as many queries as keys both alignments are the same. (`len` would fix a size that a graph leaves open.)
    queries = visibility.positions.shape[0]
    if visibility.causal and queries not in (0, visibility.keys) and _first(visibility) != 0:
        return Text("bottom-right causal alignment with T ≠ S", "T ≠ S 时的右下对齐因果掩码")
    return None


def _first(visibility: Visibility) -> int:
    return int(visibility.positions[0]) if visibility.first is None else visibility.first


def solve(problem: Problem) -> Solution:
    """The output alone. PyTorch, too, returns 0 for rows that see no key.

    Inside a transform, such as vmap, PyTorch's kernel of plain operations runs; it holds the n × n matrix. Elsewhere
    PyTorch picks a kernel, of which only that one has second derivatives.
    """
    transformed = derivatives.transform() is not None
    mask = problem.visibility.mask
    if problem.bias is not None:
        mask = problem.bias.to(problem.v.dtype)
    # Where a graph leaves sizes open, the comparison itself would be passed as a symbol, which is no bool.
    grouped = {"enable_gqa": True} if problem.groups > 1 else {}
    with sdpa_kernel(SDPBackend.MATH) if transformed else nullcontext():
        output = F.scaled_dot_product_attention(
            problem.q.to(problem.v.dtype),
            problem.k,
            problem.v,
            attn_mask=mask,
            is_causal=problem.visibility.causal,
            scale=problem.scale,
            **grouped,
        )
    if problem.needs_gradient and not (transformed or torch.compiler.is_compiling()):
        derivatives.twice_differentiable(output, problem)
    return Solution(output, None, None)
