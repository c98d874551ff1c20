"""Fused GPU kernels: output and every row statistic in one pass over the keys.

README.md in this folder is the map: what each file is for, and one call from here to the fields of `RowStats`. Triton is
imported when a kernel is first used.
"""

import os
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from isotherm.language import Text
from isotherm.ops.observers import unwatched
from isotherm.ops.problem import Problem, Solution
from isotherm.stats import RowStats

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDEST = 256
OLDEST = 3, 6
"""The oldest Triton that compiles all kernels. 3.5 fails at the backward ones. PyTorch brings 3.6 or newer from 2.10 on."""
NAMES = "triton", "pytorch-triton", "triton-windows"
"""What distributions of Triton are called."""
AMPERE = 8
"""The first generation of GPUs whose shared memory holds the tiles of every kernel."""


def _lacking() -> Text | None:
    """Return what this machine lacks for any kernel, or None."""
    if torch.version.hip is not None:
        return Text("GPUs other than NVIDIA's", "NVIDIA 以外的 GPU")
    if find_spec("triton") is None:
        return Text("a machine without triton (pip install triton)", "未安装 triton 的机器（pip install triton）")
    for name in NAMES:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST:
            needed = ".".join(map(str, OLDEST))
            return Text(f"Triton {found} ({needed} or newer is needed)", f"Triton {found}（需要 {needed} 或更新版本）")
    return None


LACKING = _lacking()
"""Determined at import, since Dynamo of PyTorch 2.11 does not trace such questions."""


def lacking(device: torch.device) -> Text | None:
    """Return what a device lacks for any kernel, or None."""
    if LACKING is None and device.type == "cuda" and torch.cuda.get_device_properties(device).major < AMPERE:
        return Text("GPUs before Ampere", "早于 Ampere 的 GPU")
    return LACKING


def unsupported(problem: Problem) -> Text | None:
    """Return what the kernels do not support about this problem, or None."""
    missing = lacking(problem.q.device)
    if missing is not None:
        return missing
    if problem.q.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return Text(f"tensors on {problem.q.device.type}", f"{problem.q.device.type} 上的张量")
    if problem.v.dtype not in DTYPES:
        return Text(f"{problem.v.dtype}", f"{problem.v.dtype}")
    if max(problem.q.shape[3], problem.v.shape[3]) > WIDEST:
        return Text(f"head dimensions above {WIDEST}", f"大于 {WIDEST} 的头维度")
    bias = problem.bias
    if bias is not None and bias.requires_grad and torch.are_deterministic_algorithms_enabled():
        shape = (*problem.q.shape[:3], problem.k.shape[2])
        if tuple(bias.shape) != shape:
            return Text("the gradient of a shared bias, deterministically", "共享 bias 的确定性梯度")
    return None


def solve(problem: Problem, *, stats: bool) -> Solution:
    """Compute output, lse and, if asked for, statistics. Output and lse are differentiable."""
    from isotherm.ops.triton import registration
    from isotherm.ops.triton.fields import Fields

    way: Any = registration.attend_op
    if unwatched(problem.q, problem.k, problem.v):
        way = registration.Attend.apply if problem.needs_gradient else registration.attend
    out, lse, *fields = way(*_arguments(problem), stats)
    return Solution(out, lse, Fields(*fields).stats() if stats else None)


def statistics(problem: Problem, rows: Tensor | None = None) -> RowStats:
    """Compute the statistics alone, without weights · v, of every row or of some."""
    return statistics_at(problem, [problem.scale], rows)[0]


def statistics_at(problem: Problem, scales: Sequence[float], rows: Tensor | None = None) -> list[RowStats]:
    """Compute the statistics at each of `scales` in place of the problem's own, from one pass over q·kᵀ."""
    from isotherm.ops.triton import registration
    from isotherm.ops.triton.fields import Fields

    wanted = [float(scale) for scale in scales]
    ascending = sorted(wanted)
    given = *_arguments(problem), None if rows is None else _indices(rows)
    if unwatched(problem.q, problem.k, problem.v):
        fields = registration.measured(given, ascending, parts=None if len(wanted) == 1 else len(wanted))
        parts = [fields] if len(wanted) == 1 else fields.parts()
    else:
        with torch.no_grad():
            parts = Fields(*registration.measure_op(*given, ascending)).parts()
    found = {scale: fields.stats() for scale, fields in zip(ascending, parts, strict=True)}
    return [found[scale] for scale in wanted]


def _arguments(problem: Problem) -> tuple[Any, ...]:
    """Return the fields of an `AttentionCall`, in their order."""
    visibility = problem.visibility
    return (
        problem.q,
        problem.k,
        problem.v,
        _indices(visibility.positions),
        visibility.mask,
        problem.bias,
        visibility.causal,
        visibility.window or 0,
        problem.scale,
        problem.softcap or 0.0,
        None if visibility.documents is None else _indices(visibility.documents),
    )


def _indices(x: Tensor) -> Tensor:
    """Return whole numbers as the kernels read them."""
    return x.to(torch.int64).contiguous()
