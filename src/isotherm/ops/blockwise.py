"""Attention and its exact statistics, one tile at a time, in memory that grows with n. Written for the CPU.

Tiles of a row are merged as `RowStats.merge` does. Three choices make a tile cheap and exact:

- e^(s−max) is computed as exp2((s − max)·log₂e), which is faster than exp. Subtracting first keeps the digits of large logits.
- The largest entry of a row is exactly 1. `frac` turns the ones into 0, and what remains sums to `rest`.
- Mean and spread are plain float64 sums, which hold Σs² of logits up to 1e6 without a shift. Over many keys they come from
  the moments of the keys instead, so the tile needs no float64 copy.
"""

from dataclasses import dataclass, replace
from math import e, log, log2
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isotherm.language import Text
from isotherm.ops import derivatives
from isotherm.ops.graphs import untraced
from isotherm.ops.moments import KeyMoments
from isotherm.ops.observers import numberless
from isotherm.ops.problem import Problem, Solution
from isotherm.ops.tiles import KEYS, Chunk, chunks
from isotherm.stats import NO_KEY, NOTHING, Moments, RowStats

HIDDEN = -4096.0
"""Replaces (s − max)·log₂e where a key is not visible: its exp2 is 0 in every dtype."""


def unsupported(problem: Problem) -> Text | None:
    """Where tiles cannot be computed, or None. Which of them are left out is read from positions, documents and masks."""
    if numberless(problem.q):
        return Text(
            "tensors without numbers (torch.export, FakeTensorMode)", "没有数值的张量（torch.export、FakeTensorMode）"
        )
    return derivatives.transform(compiled=True)


@untraced
def solve(problem: Problem, *, stats: bool) -> Solution:
    """Output, lse and, if asked for, statistics; output and lse are differentiable."""
    measured: list[RowStats] = []
    output, lse = _Attention.apply(  # type: ignore[no-untyped-call]
        problem.q, problem.k, problem.v, problem.bias, problem, measured if stats else None
    )
    return Solution(output, lse, measured[0] if stats else None)


@untraced
@torch.no_grad()
def statistics(problem: Problem) -> RowStats:
    """The statistics alone, without weights · v."""
    return _forward(problem, output=False, stats=True).stats


class _Rows(NamedTuple):
    """Output [P, G, R, Dv], largest logit and Σe^(s−peak) [P, G, R] of some rows."""

    output: Tensor
    peak: Tensor
    total: Tensor
    stats: RowStats


def _forward(problem: Problem, *, output: bool, stats: bool) -> _Rows:
    """All rows, in the shapes of the problem: [B, Hq, T, …]."""
    shape, pairs = tuple(problem.q.shape[:3]), problem.k.shape[0] * problem.k.shape[1]
    out, peak, total = (
        problem.q.new_zeros(pairs, problem.groups, shape[2], *width, dtype=problem.dtype)
        for width in ((problem.v.shape[3] if output else 0,), (), ())
    )
    measured: list[RowStats] = []
    for chunk in chunks(problem):
        moments = KeyMoments(chunk.k, KEYS) if stats and _key_moments_pay(problem) else None
        blocks: list[RowStats] = []
        for rows in chunk.row_blocks():
            here = (chunk.pairs, slice(None), rows)
            block = _rows(chunk, rows, out[here], moments, output=output, stats=stats)
            peak[here], total[here] = block.peak, block.total
            blocks.append(block.stats)
        if stats and blocks:
            measured.append(RowStats.cat(blocks, 2))
    whole = RowStats.none(shape, problem.q.device)
    if measured:
        whole = RowStats.cat(measured, 0).map(lambda tensor: tensor.reshape(shape))
    return _Rows(out.view(*shape, out.shape[-1]), peak.view(shape), total.view(shape), whole)


def _key_moments_pay(problem: Problem) -> bool:
    """Whether logits are plain q·k over so many keys that d² per row is less work than passes over n."""
    return (
        problem.softcap is None
        and problem.bias is None
        and problem.visibility.mask is None
        and problem.k.shape[2] > max(KEYS, problem.k.shape[3] ** 2 // 8)
    )


def _rows(
    chunk: Chunk, rows: slice, out: Tensor, key_moments: KeyMoments | None, *, output: bool, stats: bool
) -> _Rows:
    """One block of queries against every key it sees. Writes the output, if wanted, to `out` [P, G, R, Dv]."""
    q = chunk.queries(rows)
    peak = q.new_full(q.shape[:3], torch.finfo(q.dtype).min)
    total = torch.zeros_like(peak)
    measured: RowStats | None = None
    whole_blocks: list[int] = []
    for columns, seen in chunk.tiles(rows):
        s = chunk.logits(q, rows, columns)
        by_keys = key_moments is not None and seen is None
        whole_blocks += [columns.start // KEYS] if by_keys else []
        before = _before_softmax(chunk, s, seen, measured, columns.start, moments=not by_keys) if stats else None
        tile = _softmax(chunk, s, seen)
        if output:
            new = torch.maximum(peak, tile.peak)
            keep, take = (peak - new).exp(), (tile.peak - new).exp()
            peak, total = new, total * keep + tile.mass * take
            add = torch.bmm(tile.weights.flatten(1, 2), chunk.v[:, columns]).view_as(out)
            out.mul_(keep.unsqueeze(-1)).addcmul_(add, take.unsqueeze(-1))
        if before is not None:
            part = _measure(tile, before)
            measured = part if measured is None else measured.merge(part)
    measured = RowStats.none(tuple(q.shape[:3]), q.device) if measured is None else measured
    if key_moments is not None and whole_blocks:
        blocks = range(whole_blocks[0], whole_blocks[-1] + 1)
        over = key_moments.over(q.flatten(1, 2), blocks).reshape(q.shape[:3])
        measured = replace(measured, moments=measured.moments.merge(over))
    if output:
        out.div_(torch.where(total == 0, 1.0, total).unsqueeze(-1))
    return _Rows(out, peak, total, measured)


@dataclass(frozen=True)
class _Tile:
    """weights = e^(s−peak) and gap = (s − peak)·log₂e, both [P, G, R, K] in scratch memory; mass = Σ weights [P, G, R]."""

    peak: Tensor
    weights: Tensor
    gap: Tensor
    mass: Tensor


def _softmax(chunk: Chunk, s: Tensor, seen: Tensor | None) -> _Tile:
    """Turn the logits into weights relative to each row's largest, in place."""
    if seen is not None:
        s = s.masked_fill_(~seen, torch.finfo(s.dtype).min)
    peak = s.amax(-1)
    gap = s.sub_(peak.unsqueeze(-1)).mul_(log2(e))
    if seen is not None:
        gap = gap.masked_fill_(~seen, HIDDEN)
    weights = torch.exp2(gap, out=chunk.scratch(1, tuple(gap.shape)))
    return _Tile(peak, weights, gap, weights.sum(-1))


class _BeforeSoftmax(NamedTuple):
    """What is read from a tile's logits before the softmax overwrites them, each [P, G, R]."""

    moments: Moments
    first_key: Tensor
    first_logit: Tensor


def _before_softmax(
    chunk: Chunk, s: Tensor, seen: Tensor | None, so_far: RowStats | None, start: int, *, moments: bool
) -> _BeforeSoftmax:
    zero = torch.zeros(s.shape[:3], dtype=torch.float64, device=s.device)
    first_key = torch.full(s.shape[:3], NO_KEY, device=s.device)
    first_logit = zero
    # Tiles come in the order of their keys, so once every row has a first key, later tiles hold none.
    if so_far is None or bool((so_far.first_key == NO_KEY).any()):
        if seen is None:
            first_key, first_logit = torch.full_like(first_key, start), s[..., 0].to(torch.float64, copy=True)
        else:
            column = seen.to(torch.uint8).argmax(-1).expand(s.shape[:3])
            first_key = torch.where(seen.any(-1), column + start, NO_KEY)
            first_logit = s.gather(-1, column.unsqueeze(-1)).squeeze(-1).double()
    if not moments:
        return _BeforeSoftmax(Moments(zero, zero, zero), first_key, first_logit)
    count = torch.full_like(zero, s.shape[-1])
    if seen is not None:
        count = seen.sum(-1).double().expand(s.shape[:3])
        s = torch.where(seen, s, s.new_zeros(()), out=chunk.scratch(1, tuple(s.shape)))
    wide = chunk.scratch(2, tuple(s.shape), torch.float64).copy_(s)
    mean = wide.sum(-1) / count.clamp(min=1)
    square = torch.linalg.vector_norm(wide, dim=-1).square()
    return _BeforeSoftmax(Moments(count, mean, (square - mean.square() * count).clamp(min=0)), first_key, first_logit)


def _measure(tile: _Tile, before: _BeforeSoftmax) -> RowStats:
    """The tile's statistics. Overwrites its gaps."""
    cross = torch.mul(tile.weights, tile.gap, out=tile.gap).sum(-1).double() * log(2)
    others = torch.frac(tile.weights, out=tile.gap)
    below = others.sum(-1).double()
    ones = (tile.mass.double() - below).round()
    empty = tile.peak == torch.finfo(tile.peak.dtype).min
    peak = torch.where(empty, NOTHING, tile.peak.double())
    more_ones = torch.where(empty, 0.0, ones - 1)
    return RowStats(
        moments=before.moments,
        max_key_logit=peak,
        peak=peak,
        rest=below + more_ones,
        rest2=torch.linalg.vector_norm(others, dim=-1).double().square() + more_ones,
        cross=cross,
        first_key=before.first_key,
        first_logit=before.first_logit,
        broken=~(cross.isfinite() & peak.isfinite()),
    )


class _Attention(torch.autograd.Function):
    """Forward saves the largest logit and the sum of each row; backward recomputes the weights from these."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        problem: Problem,
        measured: list[RowStats] | None,
    ) -> tuple[Tensor, Tensor]:
        rows = _forward(problem, output=True, stats=measured is not None)
        if measured is not None:
            measured.append(rows.stats)
        ctx.save_for_backward(q, k, v, bias, rows.output, rows.peak, rows.total)
        ctx.visibility, ctx.scale, ctx.softcap = problem.visibility, problem.scale, problem.softcap
        lse = torch.where(rows.total == 0, -torch.inf, rows.peak + rows.total.log())
        return rows.output.to(v.dtype), lse

    @staticmethod
    def backward(ctx: Any, d_output: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, output, peak, total = ctx.saved_tensors
        problem = Problem(q, k, v, ctx.visibility, ctx.scale, bias, ctx.softcap)
        wants_bias = bias is not None and ctx.needs_input_grad[3]

        def first() -> tuple[Tensor | None, ...]:
            # d_s = p·(dp − Σ p·dp + d_lse): the last two terms are the same for every key of a row.
            wide = d_output.to(problem.dtype)
            shared = (wide * output).sum(-1) - torch.where(total == 0, 0.0, d_lse)
            given = _RowGradients(wide, shared, peak, torch.where(total == 0, 0.0, 1 / total))
            return _gradients(problem, given, wants_bias=wants_bias)

        return *derivatives.backward(problem, d_output, d_lse, first), None, None


def _gradients(problem: Problem, given: "_RowGradients", *, wants_bias: bool) -> tuple[Tensor | None, ...]:
    """d_q, d_k, d_v and, if wanted, d_bias."""
    bias = problem.bias if wants_bias else None
    d_bias = None if bias is None else torch.zeros_like(bias, dtype=problem.dtype)
    parts = [_backward(chunk, given, d_bias) for chunk in chunks(problem)]
    d_q, d_k, d_v = (
        torch.cat([part[i] for part in parts]).view(like.shape).to(like.dtype) if parts else torch.zeros_like(like)
        for i, like in enumerate((problem.q, problem.k, problem.v))
    )
    return d_q, d_k, d_v, None if bias is None or d_bias is None else d_bias.to(bias.dtype)


class _RowGradients(NamedTuple):
    """What the backward pass knows of each row: d_output [B, Hq, T, Dv]; the others [B, Hq, T], `share` being 1/Σe^(s−peak)."""

    d_output: Tensor
    shared: Tensor
    peak: Tensor
    share: Tensor


def _backward(chunk: Chunk, given: _RowGradients, d_bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of one chunk: d_q [P, G, T, D], d_k [P, S, D], d_v [P, S, Dv]."""
    d_k, d_v = torch.zeros_like(chunk.k), torch.zeros_like(chunk.v)
    d_q = []
    for rows in chunk.row_blocks():
        q, (d_output, shared, peak, share) = (
            chunk.queries(rows),
            (chunk.take(tensor, rows) for tensor in given),
        )
        flat, d_flat = q.flatten(1, 2), d_output.flatten(1, 2)
        d_rows = torch.zeros_like(flat)
        for columns, seen in chunk.tiles(rows):
            s = chunk.logits(q, rows, columns)
            slope = None
            if chunk.problem.softcap is not None:
                bare = s if chunk.problem.bias is None else s - chunk.part(chunk.problem.bias, rows, columns)
                slope = 1 - (bare / chunk.problem.softcap).square()
            s = s.sub_(peak.unsqueeze(-1)).mul_(log2(e))
            s = s if seen is None else s.masked_fill_(~seen, HIDDEN)
            p = torch.exp2(s, out=chunk.scratch(1, tuple(s.shape))).mul_(share.unsqueeze(-1))
            d_v[:, columns] += p.flatten(1, 2).mT @ d_flat
            d_s = torch.bmm(d_flat, chunk.v[:, columns].mT, out=s.flatten(1, 2)).view_as(s)
            d_s = d_s.sub_(shared.unsqueeze(-1)).mul_(p)
            if d_bias is not None:
                chunk.add_to(d_bias, rows, columns, d_s)
            if slope is not None:  # a key that a bias of −inf hides has no slope
                d_s = torch.where(p == 0, 0.0, d_s.mul_(slope))
            d_rows.baddbmm_(d_s.flatten(1, 2), chunk.k[:, columns])
            d_k[:, columns] += d_s.flatten(1, 2).mT @ flat
        d_q.append(d_rows.mul_(chunk.problem.scale).view_as(q))
    return torch.cat(d_q, 2) if d_q else chunk.k.new_zeros(0), d_k, d_v
