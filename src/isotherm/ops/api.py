"""`attention`: any rule, any mask, one of several implementations, and the statistics of every softmax row."""

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from numbers import Real
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from isotherm.errors import ArgumentError, UnsupportedError
from isotherm.language import Text
from isotherm.ops import blockwise, derivatives, kept, reference, sdpa, sigmoid, triton
from isotherm.ops.arguments import (
    Causal,
    check_broadcast,
    check_causal,
    check_device,
    check_documents,
    check_local,
    check_rows,
    check_tensors,
    check_window,
)
from isotherm.ops.autocast import autocast_off, under_autocast
from isotherm.ops.observers import observed, observers, readable, unwatched, whole
from isotherm.ops.problem import Problem, Solution, Visibility
from isotherm.scale import Fixed, InverseSqrt, Resolved, Rule, Site
from isotherm.scale.rule import positive
from isotherm.stats import RowStats

NOTHING_AROUND = nullcontext()
Implementation = Literal["auto", "reference", "blockwise", "sdpa", "triton"]
IMPLEMENTATIONS = get_args(Implementation)


class CallPlan(NamedTuple):
    """What is decided of a call by sizes, types and options alone: the implementation, which keys are visible, the scale, and
    the rows to measure."""

    impl: str
    visibility: Visibility
    scale: float
    rows: Tensor | None


MOST_PLANS = 512
"""Plans kept at a time."""
TYPES = frozenset({type(None), bool, int, float, str})
"""Types of options that say what they mean by themselves."""

_plans: dict[Hashable, CallPlan] = {}


class AttentionResult(NamedTuple):
    """What `attention` returns.

    `output` is [B, Hq, T, Dv]. `lse` [B, Hq, T] (for z-loss) is None where the implementation does not return it. Both can be
    differentiated any number of times. `stats` are there if requested and carry no gradient. `impl` names the implementation
    that ran.
    """

    output: Tensor
    stats: RowStats | None
    lse: Tensor | None
    impl: str


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: Rule | float | None = None,
    causal: Causal = False,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    window: int | None = None,
    documents: Tensor | Sequence[int] | None = None,
    stats: bool = False,
    rows: int | Tensor | None = None,
    impl: Implementation = "auto",
) -> AttentionResult:
    """Compute softmax(scale·q·k + bias)·v over visible keys and, on request, the statistics of every row.

    q [B, Hq, T, D], k [B, Hkv, S, D], v [B, Hkv, S, Dv]; Hq is a multiple of Hkv (grouped queries).

    - `scale`: a rule, a number, or None for 1/√D.
    - `causal`: query i sees keys j ≤ i + S − T ("bottom-right", what True means: the last query sees every key) or
      j ≤ i ("top-left"). The two differ only when T ≠ S.
    - `mask`: True where visible; `bias`: added to the logits, −inf hides a key. [T, S] or [B, Hq, T, S], any of them 1.
    - `window`: a query sees keys less than this far from its own position.
    - `documents` packed one after another, T ≤ S: a query sees only keys of its own document. Either the places where
      documents begin and, last, S ([0, 5, 12, S]; a list or a tensor), or an id for each key, [B, S], where a run of equal
      ids is a document. Rules that depend on the position count from the start of the document. Numbers on a GPU are not
      checked, since reading them would wait for it.
    - `stats`: measure every row. `rows`: measure only this many rows, or the rows with these indices; the statistics are
      then labelled as sampled. A row that sees no key gives output 0 and counts as empty; a row that meets NaN or Inf
      counts as invalid.

    Inside `torch.func` transforms (vmap, grad, jvp …) `impl` must be auto, reference or sdpa, which then hold the n × n matrix.
    Under `torch.compile` the GPU kernels are part of the graph. The graph breaks at CPU tiles, and where `rows` is a tensor.
    Under `torch.export`, `torch.jit.trace` and in a `FakeTensorMode` the reference takes the place of CPU tiles.

    >>> q = k = v = torch.ones(1, 2, 3, 4)
    >>> out = attention(q, k, v, causal=True, stats=True)
    >>> out.output.shape, out.stats.n[0, 0].tolist(), out.impl
    (torch.Size([1, 2, 3, 4]), [1, 2, 3], 'blockwise')
    """
    q, k, v = under_autocast(q, k, v)
    bare = mask is None and bias is None and window is None and documents is None
    kind = _kind(q, k, v, (scale, causal, stats, rows, impl)) if bare else None
    plan = _plans.get(kind)
    if plan is not None:
        problem = Problem(q, k, v, plan.visibility, plan.scale)
        return _result(plan.impl, problem, plan.rows, measured=stats or rows is not None)
    check_tensors(q, k, v, impl)
    shape = (*q.shape[:3], k.shape[2])
    mask, bias = check_broadcast("mask", mask, shape, q), check_broadcast("bias", bias, shape, q)
    hidden = None if bias is None else bias.isneginf()
    numbers = readable(q) and derivatives.transform() is None
    if hidden is not None and (not numbers or hidden.any()):
        mask = ~hidden if mask is None else mask & ~hidden
    if impl not in IMPLEMENTATIONS:
        names = ", ".join(IMPLEMENTATIONS)
        raise ArgumentError("impl", Text(f"one of {names}", f"{names} 之一"), got=repr(impl))
    alignment = check_causal(causal)
    spans = check_documents(documents, q, k, readable=numbers)
    first = 0 if alignment == "top-left" else k.shape[2] - q.shape[2]
    positions = kept.positions(first, q.shape[2], q.device)
    spans = None if spans is None else spans[..., first : first + q.shape[2]]
    visibility = Visibility(positions, k.shape[2], alignment is not None, check_window(window), mask, spans, first)
    chosen = check_rows(rows, q.shape[2], q.device)
    resolved = _rule(scale).resolve(Site(whole(q.shape[3]), whole(q.shape[1]), visibility.places, visibility.counts))
    check_device(resolved, q.device)
    problem = _fold(q, k, v, visibility, bias, resolved)
    measured = stats or rows is not None
    if resolved.sigmoid_bias is not None:
        return _sigmoid(problem, resolved.sigmoid_bias, impl, measured=measured)
    name = _pick(problem, resolved, stats=stats and chosen is None) if impl == "auto" else impl
    if impl != "auto" and (reason := _refusal(name, problem, resolved)) is not None:
        raise UnsupportedError(name, reason)
    if name != "sdpa" or measured:
        check_local(q, k, v)
    if kind is not None and kept.holds(positions, chosen):
        kept.make_room(_plans, MOST_PLANS)
        _plans[kind] = CallPlan(name, visibility, problem.scale, chosen)
    return _with_sink(_result(name, problem, chosen, resolved.sink, measured=measured), resolved.sink)


def _kind(q: Tensor, k: Tensor, v: Tensor, options: tuple[object, ...]) -> Hashable:
    """What a plan depends on. None for a call that is checked and planned each time: one that something watches, and one with
    options of other types (a rule, indices of rows), which may be wrong or equal to others that mean something else."""
    usual = unwatched(q, k, v) and all(type(one) in TYPES for one in options) and derivatives.transform() is None
    if not usual or not q.layout is k.layout is v.layout is torch.strided or q.is_nested or k.is_nested or v.is_nested:
        return None
    backward = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    types = q.dtype, k.dtype, v.dtype, q.device, k.device, v.device
    return (q.shape, k.shape, v.shape, *types, backward, *map(type, options), *options)


def _result(
    name: str, problem: Problem, rows: Tensor | None, sink: Tensor | None = None, *, measured: bool
) -> AttentionResult:
    """Compute, seen by all observers."""
    around = observed(problem, sink) if observers else NOTHING_AROUND
    with around, autocast_off(problem.q.device.type):
        solution = _solve(name, problem, stats=measured and rows is None)
        stats = solution.stats
        if measured and stats is None:
            stats = _statistics(name, problem, rows)
    return AttentionResult(solution.output, stats, solution.lse, name)


def _rule(scale: Rule | float | None) -> Rule:
    if scale is None:
        return InverseSqrt()
    if isinstance(scale, Rule):
        return scale
    if isinstance(scale, int) and not isinstance(scale, bool):
        return Fixed(float(positive("scale", scale)))
    if isinstance(scale, Real) and not isinstance(scale, bool):
        return Fixed(float(scale))
    raise ArgumentError("scale", Text("a rule, a number or None", "规则、数或 None"), got=repr(scale))


def _fold(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, bias: Tensor | None, resolved: Resolved) -> Problem:
    """Put the resolved rule where kernels find it: one number as the problem's scale, several as a factor in q."""
    scale = resolved.multiplier
    if isinstance(scale, Tensor):
        q, k = resolved.apply(q.to(torch.promote_types(q.dtype, torch.float32)), k)
        scale = 1.0
    elif resolved.normalise is not None:
        q, k = resolved.normalise(q, k)
    return Problem(q, k, v, visibility, scale, bias, resolved.softcap)


def _refusal(name: str, problem: Problem, resolved: Resolved) -> Text | None:
    """Why this implementation cannot solve this problem, or None if it can."""
    if name == "blockwise":
        return blockwise.unsupported(problem)
    if name == "triton":
        return derivatives.transform() or triton.unsupported(problem)
    if name != "sdpa":
        return None
    if resolved.sink is not None:
        return Text("a sink (PyTorch returns no lse)", "sink（PyTorch 不返回 lse）")
    return sdpa.unsupported(problem)


def _pick(problem: Problem, resolved: Resolved, *, stats: bool) -> str:
    """The fastest implementation that can: PyTorch's kernel, or ours if statistics are wanted or that kernel cannot."""
    if derivatives.transform() is not None:
        return "reference" if stats or _refusal("sdpa", problem, resolved) is not None else "sdpa"
    if problem.q.is_cuda and triton.unsupported(problem) is None:
        return "triton" if stats or _refusal("sdpa", problem, resolved) is not None else "sdpa"
    tiles = "blockwise" if blockwise.unsupported(problem) is None else "reference"
    if _refusal("sdpa", problem, resolved) is not None:
        return tiles
    on_cpu = problem.q.device.type == "cpu"
    return tiles if stats and on_cpu and not problem.needs_gradient else "sdpa"


def _solve(name: str, problem: Problem, *, stats: bool) -> Solution:
    if name == "reference":
        return reference.solve(problem, stats=stats)
    if name == "triton":
        return triton.solve(problem, stats=stats)
    return blockwise.solve(problem, stats=stats) if name == "blockwise" else sdpa.solve(problem)


@torch.no_grad()
def _statistics(name: str, problem: Problem, rows: Tensor | None) -> RowStats:
    """A separate pass for the statistics of all rows or some."""
    on_gpu = name == "sdpa" and problem.q.is_cuda and derivatives.transform() is None
    if name == "triton" or (on_gpu and triton.unsupported(problem) is None):
        stats: RowStats | None = triton.statistics(problem, rows)
    else:
        part = problem if rows is None else problem.take(rows)
        plain = name == "reference" or blockwise.unsupported(problem) is not None
        stats = reference.solve(part, stats=True).stats if plain else blockwise.statistics(part)
    assert stats is not None
    # The sample is kept for later calls, and whoever gets the statistics may write into their rows.
    return stats if rows is None else replace(stats, rows=rows.clone(), total_rows=problem.q.shape[2])


def _sigmoid(problem: Problem, bias: Tensor, impl: str, *, measured: bool) -> AttentionResult:
    if measured:
        softmax_only = Text(
            "False with sigmoid attention, which has no softmax rows", "sigmoid 注意力没有 softmax 行，须为 False"
        )
        raise ArgumentError("stats", softmax_only, got=True)
    if impl not in ("auto", "reference"):
        raise UnsupportedError(impl, Text("sigmoid attention", "sigmoid 注意力"))
    return AttentionResult(sigmoid.solve(problem, bias), None, None, "reference")


def _with_sink(result: AttentionResult, sink: Tensor | None) -> AttentionResult:
    """Add the sink to the softmax: output·e^lse/(e^lse + e^sink)."""
    if sink is None or result.lse is None:
        return result
    alpha = sink.to(result.lse).view(-1, 1)
    share = torch.sigmoid(result.lse - alpha).unsqueeze(-1)
    # The second derivative of logaddexp at −inf is NaN, so rows without a key are left out of it.
    empty = result.lse.isneginf()
    lse = torch.where(empty, alpha, torch.logaddexp(result.lse.masked_fill(empty, 0), alpha))
    return AttentionResult(
        (result.output * share).to(result.output.dtype),
        result.stats and result.stats.with_sink(alpha.detach()),
        lse,
        result.impl,
    )
