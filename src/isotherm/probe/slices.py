"""Put together what one module computed in slices: attention in a loop over heads, sequences or blocks of queries."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from isotherm.ops import Problem, Visibility
from isotherm.probe.capture import Capture
from isotherm.probe.keep import storage_of
from isotherm.probe.masks import padded_positions


def merge_slices(captures: Sequence[Capture], heads: dict[str, int | None]) -> tuple[list[Capture], list[int]]:
    """The captures with slices put together, and for each old capture the index of the new one that holds it.

    Slices are calls of one module that follow one another and whose q are disjoint slices of one tensor. Their k are the same
    slices of another one, or the whole of it each time (blocks of queries). `heads` are the numbers of heads that modules
    declare, by name.
    """
    merged: list[Capture] = []
    place: list[int] = []
    start = 0
    while start < len(captures):
        end = start + 1
        while end < len(captures) and _continues(captures[start], captures[end - 1], captures[end]):
            end += 1
        run = captures[start:end]
        whole = _whole(run, heads.get(run[0].name)) if len(run) > 1 else None
        found = list(run) if whole is None else [whole]
        place += [len(merged) + (i if whole is None else 0) for i in range(len(run))]
        merged += found
        start = end
    return merged, place


def _continues(first: Capture, before: Capture, other: Capture) -> bool:
    """Whether a call goes on where `before` ended, as a further slice of what `first` began."""
    one, two = before.problem, other.problem
    same = all(getattr(before, name) == getattr(other, name) for name in ("name", "module", "implementation", "passed"))
    if not same or one.scale != two.scale or one.softcap != two.softcap or before.sink is not None:
        return False
    if one.visibility.causal or two.visibility.causal or one.visibility.window is not None:
        return False
    if one.q.shape[3] != two.q.shape[3] or one.k.shape[2] != two.k.shape[2]:
        return False
    if storage_of(one.q) != storage_of(two.q) or storage_of(one.k) != storage_of(two.k):
        return False
    return two.q.storage_offset() > one.q.storage_offset() and _strides(first.problem.q) == _strides(two.q)


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """The steps between rows and between the numbers of a vector."""
    return tensor.stride()[-2:]


def _whole(run: Sequence[Capture], heads: int | None) -> Capture | None:
    """The call that the slices make up; None if they overlap or do not fit together."""
    problems = [capture.problem for capture in run]
    if len({problem.k.data_ptr() for problem in problems}) == 1:
        return _of_blocks(run, problems)
    if any(one.q.shape[2] != two.q.shape[2] for one, two in pairwise(problems)):
        return None
    if len({problem.k.data_ptr() for problem in problems}) < len(problems):
        return None
    if any(problem.q.shape[:2] != problem.k.shape[:2] for problem in problems):
        return None
    if not _are_disjoint([problem.q for problem in problems]):
        return None
    outer = all(_end(one.q) <= two.q.storage_offset() for one, two in pairwise(problems))
    if not outer and len({problem.q.shape for problem in problems}) > 1:
        return None

    def put(tensors: Sequence[Tensor]) -> Tensor:
        flat = [tensor.flatten(0, 1) for tensor in tensors]
        if not outer:  # the slices lie between one another in memory: each is one head of all sequences
            return torch.stack(flat, 1)
        whole = torch.cat(flat)
        return whole.unflatten(0, (-1, heads if heads is not None and len(whole) % heads == 0 else 1))

    q, k = put([problem.q for problem in problems]), put([problem.k for problem in problems])
    mask = _terms([problem.visibility.mask for problem in problems], problems, put, visible=True)
    bias = _terms([problem.bias for problem in problems], problems, put, visible=False)
    seen = replace(problems[0].visibility, mask=mask)
    return _replaced(run, replace(problems[0], q=q, k=k, v=k, bias=bias, visibility=seen))


def _terms(
    terms: Sequence[Tensor | None],
    problems: Sequence[Problem],
    put: Callable[[Sequence[Tensor]], Tensor],
    *,
    visible: bool,
) -> Tensor | None:
    """Masks (all visible where a slice has none) or biases [B, H, T, S] of the slices, put together as q is."""
    if all(term is None for term in terms):
        return None
    none = torch.ones((), dtype=torch.bool) if visible else torch.zeros(())
    return put(
        [
            (none.to(problem.q.device) if term is None else term).expand(*problem.q.shape[:3], problem.k.shape[2])
            for term, problem in zip(terms, problems, strict=True)
        ]
    )


def _of_blocks(run: Sequence[Capture], problems: Sequence[Problem]) -> Capture | None:
    """Blocks of queries that see the same keys, one after another along the sequence."""
    first = problems[0]
    step = first.q.stride(2)
    follows = all(
        two.q.storage_offset() == one.q.storage_offset() + one.q.shape[2] * step for one, two in pairwise(problems)
    )
    if not follows or len({(*problem.q.shape[:2], *problem.q.stride()[:2]) for problem in problems}) > 1:
        return None
    terms = [(problem.visibility.mask, problem.bias) for problem in problems]
    if any(term is not None for pair in terms for term in pair):
        return None
    q = torch.cat([problem.q for problem in problems], 2)
    positions = torch.arange(q.shape[2], device=q.device)
    return _replaced(run, replace(first, q=q, visibility=Visibility(positions, first.k.shape[2])))


def _are_disjoint(slices: Sequence[Tensor]) -> bool:
    """Whether no vector is in two slices of one tensor."""
    begins = torch.cat([_begins(part) for part in slices])
    return len(begins.unique()) == len(begins)


def _begins(part: Tensor) -> Tensor:
    """Where in memory the vectors [B, H, T, D] begin."""
    batch, head, row = (torch.arange(part.shape[axis]) * int(part.stride(axis)) for axis in range(3))
    return (batch[:, None, None] + head[:, None] + row).flatten() + int(part.storage_offset())


def _end(tensor: Tensor) -> int:
    """Where the tensor's last number lies in its memory, and one more."""
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + sum(steps) + 1)


def _replaced(run: Sequence[Capture], problem: Problem) -> Capture:
    known = any(capture.padded is not None for capture in run)
    return replace(run[0], problem=problem, padded=padded_positions(problem.visibility) if known else None)
