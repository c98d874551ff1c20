"""Operators of other libraries, into which nothing sees: try whether they compute attention, by comparing with it.

A call with q, k and v among its arguments is taken for attention if attention gives the same result, for one of the layouts and
scales in use. Otherwise the module that made the call keeps the operator's name, and is listed as unseen if it has projections
like those of attention.
"""

from itertools import product
from math import sqrt
from typing import Any

from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from isotherm.probe import replay
from isotherm.probe.call import Call
from isotherm.probe.session import Session

NAME = "an operator of another library"
KNOWN = frozenset(
    {"aten", "prims", "prim", "isotherm", "profiler", "inductor", "c10d", "_c10d_functional", "higher_order"}
)
"""Namespaces whose operators are followed by name, or have nothing to do with attention."""


def operator_name(func: OpOverload | OpOverloadPacket) -> str:
    """The operator's name with its namespace, "flash_attn::forward"."""
    packet = func.overloadpacket if isinstance(func, OpOverload) else func
    return str(packet._qualified_op_name)


def is_foreign(func: OpOverload | OpOverloadPacket) -> bool:
    """Whether the operator is neither PyTorch's nor ours."""
    return operator_name(func).split("::", 1)[0] not in KNOWN


def look(session: Session, func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Capture one call of an operator, if it is attention."""
    output = result[0] if isinstance(result, (tuple, list)) and result else result
    given = [*args, *kwargs.values()]
    tensors = [x.detach() for x in given if isinstance(x, Tensor) and x.dtype.is_floating_point and x.dim() in (3, 4)]
    if not isinstance(output, Tensor) or len(tensors) < 3:
        return
    name = operator_name(func)
    if session.frames.top is not None:
        session.frames.top.met = name
    numbers = [x for x in given if isinstance(x, float) and x > 0]
    q, k, v = tensors[:3]
    if q.shape[-1] != k.shape[-1] or k.dim() != q.dim() or v.dim() != q.dim() or output.dim() != q.dim():
        return
    scales = dict.fromkeys([1 / sqrt(q.shape[-1]), *numbers, 1.0])
    for heads_first, scale, causal in product((True, False), scales, (False, True)):
        call = _call(q, k, v, output.detach(), scale, name, heads_first=heads_first, causal=causal)
        if call is not None and session.capture(*call):
            return


def _call(
    q: Tensor, k: Tensor, v: Tensor, output: Tensor, scale: float, name: str, *, heads_first: bool, causal: bool
) -> tuple[Call, None, Any] | None:
    """The call under one hypothesis, with the test of it."""
    q, k, v, output = (_laid_out(x, heads_first=heads_first) for x in (q, k, v, output))
    if q.shape[1] % max(1, k.shape[1]) or k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0]:
        return None
    if output.shape != (*q.shape[:3], v.shape[-1]):
        return None
    first = k.shape[2] - q.shape[2] if causal else 0
    call = Call(implementation=name, q=q, k=k, scale=scale, passed=None, causal=causal, first=max(0, first))
    return call, None, lambda problem: replay.gives_output(problem, None, v, output)


def _laid_out(tensor: Tensor, *, heads_first: bool) -> Tensor:
    """[B, H, T, D] of [B, T, H, D], [B, T, D] or itself."""
    if tensor.dim() == 3:
        return tensor.unsqueeze(1)
    return tensor if heads_first else tensor.transpose(1, 2)
