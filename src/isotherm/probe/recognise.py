"""Decide what somebody's weights over keys are, from the logits or weights themselves and the trail that led to them.

There are three answers, tried in this order. The trail describes the logits, and replaying a few rows gives what the model
computed. Or the logits are a number times q·k, found by measuring one against the other; one number for each head or query will
do. Or they are no affine function of q·k: then the logits are kept themselves, and the scale in force is not known.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from isotherm.ops import statistics_at
from isotherm.probe import replay
from isotherm.probe.call import Call
from isotherm.probe.heads import HeadFold, fold_terms, head_count
from isotherm.probe.masks import NEVER, Terms
from isotherm.probe.scores import Scores
from isotherm.probe.session import Session
from isotherm.probe.trail import Trail

MOST = 1 << 22
"""How many logits of a call are kept. Of more, some rows are kept, spread over the sequence."""
SAMPLE = 8
"""How many rows are read in order to find a sink."""
SAME = 1e-3
"""Slopes that differ by less are one number."""
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}
"""How far logits may be from a straight line, as a part of their range."""


def recognise_logits(session: Session, trail: Trail, logits: Tensor, axis: int) -> None:
    """Capture a softmax of `logits` over `axis`."""
    _recognise(session, trail, logits.detach(), axis % logits.dim())


def recognise_weights(session: Session, trail: Trail, weights: Tensor, axis: int) -> bool:
    """Capture weights over the keys along `axis`, and return whether they are weights: none is negative, and each row sums to
    one, or has exponentials that will be divided by their sum."""
    weights, axis = weights.detach(), axis % weights.dim()
    if not weights.numel():
        return False
    sums = weights.sum(axis, keepdim=True, dtype=torch.promote_types(weights.dtype, torch.float32))
    near = TOLERANCE.get(weights.dtype, 6e-2)
    normalised = bool((((sums - 1).abs() < near) | (sums == 0)).all())
    if weights.shape[axis] < 2 and not (normalised and trail.exponential):
        return False
    if bool((weights < 0).any()) or not (normalised or trail.exponential) or not bool((sums > 0).any()):
        return False
    below_one = not normalised and trail.divided and not trail.noisy and bool((sums < 1 + near).all())
    rest = (1 - sums).clamp(min=0) if below_one else None
    before = len(session.seen.captures)
    _recognise(session, trail, weights.double().log(), axis, rest)
    whole = rest is not None and all(one.sink is not None for one in session.seen.captures[before:])
    if not (normalised or whole) and session.frames.attending is not None:
        session.frames.attending.blocks.add(before)
    return True


@dataclass(frozen=True)
class LaidOut:
    """Logits as [*lead, rows, keys], folded into batch and heads. `q` and `k` are the factors of the product, if known."""

    fold: HeadFold
    logits: Tensor
    q: Tensor | None
    k: Tensor | None
    module: nn.Module | None

    def rows(self) -> Tensor:
        """[B, H, T, S]."""
        return self.fold.queries(self.logits)


def _recognise(session: Session, trail: Trail, logits: Tensor, axis: int, rest: Tensor | None = None) -> None:
    """Capture weights over the keys along `axis`, the softmax of `logits`. `rest` is what each row's weights lack to one."""
    if _routes(trail, axis):
        return
    frame = session.frames.attending
    module = None if frame is None else frame.module
    scores = None if trail.scores is None else _oriented(trail.scores, axis)
    if scores is not None and scores.shape == tuple(logits.shape):
        call = _described(session, scores, module)
        rows = _fold(session, scores.lead, scores.b, module).queries(scores.canonical(logits))
        if call is not None and rest is not None:
            sink = _constant_sink(session, call, scores, rest, module)
            call = None if sink is None else call.with_sink(sink)
        check = None if trail.noisy else lambda problem: replay.gives_softmax_of(problem, None, rows)
        if call is not None and session.capture(call, module, check):
            return
    layout = _laid_out(session, trail, scores, logits, axis, module)
    if rest is None:
        call = _measured(layout, logits.dtype) or _with_extra_key(session, trail, logits, axis, module)
        if call is not None and session.capture(call, module):
            return
    session.capture(_bare(layout, None if rest is None else _moved_last(rest.log(), axis)), module)


def _fold(session: Session, lead: tuple[int, ...], k: Tensor, module: nn.Module | None) -> HeadFold:
    """How the leading axes become batch and heads. One axis that holds both is divided by what the module declares, or else by
    the batch of the module's projections."""
    fold = HeadFold.of(lead, tuple(k.shape[:-2]), module)
    if len(lead) != 1 or head_count(module) is not None:
        return fold
    records = [record for frame in reversed(session.frames.stack) for record in frame.records]
    batch = next((record.output.shape[0] for record in records if record.output.dim() == 3), lead[0])
    return replace(fold, split=lead[0] // batch) if lead[0] % batch == 0 else fold


def _oriented(scores: Scores, axis: int) -> Scores | None:
    """The scores with the keys as columns; None if the axis is neither rows nor columns."""
    if scores.view is not None:
        return None
    place = scores.order[axis] - len(scores.lead)
    return None if place < 0 else scores if place == 1 else scores.turned()


def _routes(trail: Trail, axis: int) -> bool:
    """Whether the axis belongs to a parameter of the model: a router or a classifier normalises over what it has learnt."""
    scores = trail.scores or trail.product
    learned = scores is not None and scores.learned and axis < len(scores.order)
    return learned and scores.order[axis] == len(scores.lead)  # type: ignore[union-attr]


def _described(session: Session, scores: Scores, module: nn.Module | None) -> Call | None:
    """The call that the scores describe. None if the description has a part that no call can have."""
    if any(one.shape[-1] != 1 for one in scores.multipliers):
        return None
    fold = _fold(session, scores.lead, scores.b, module)
    terms = Terms()
    for added in scores.added:
        if added.term.shape[-1] == 1 and scores.b.shape[-2] > 1:
            continue  # constant along each row: the softmax does not change
        if added.own:
            return None
        terms &= fold_terms(fold, session.masks.added(added.term, added.coefficient))
    for hidden in scores.hidden:
        terms &= fold_terms(fold, session.masks.hidden(hidden))
    for zeroed in scores.zeroed:
        visible = fold.term(zeroed) if terms.mask is None else fold.term(zeroed) & terms.mask
        if bool(visible.any()):
            return None
    plain = fold.queries(scores.a)
    scale = scores.factor * (1.0 if scores.cap is None else scores.cap)
    factor, by = _together([fold.term(one).double() for one in scores.multipliers])
    return Call(
        implementation="hand-written",
        q=plain if by is None else plain * by.to(plain.dtype),
        k=fold.keys(scores.b),
        scale=scale * factor,
        passed=scale * factor if by is None else None,
        terms=terms,
        softcap=scores.cap,
        traced_q=plain,
        multiplied=None if by is None else _varies(by),
    )


def _together(multipliers: list[Tensor]) -> tuple[float, Tensor | None]:
    """Multipliers [B, H, T, 1] as one number, and what they differ by from it; None if that is nothing."""
    if not multipliers:
        return 1.0, None
    product = prod(multipliers[1:], start=multipliers[0])
    first = float(product.flatten()[0])
    return (first, None) if bool((product == first).all()) else (1.0, product)


def _varies(by: Tensor) -> Literal["by-head", "by-query"]:
    """Whether the multipliers [B, H, T, 1] of a head differ between queries, or only those of different heads."""
    return "by-query" if bool(((by / by[:1, :, :1] - 1).abs() > SAME).any()) else "by-head"


def _laid_out(
    session: Session, trail: Trail, scores: Scores | None, logits: Tensor, axis: int, module: nn.Module | None
) -> LaidOut:
    """The logits in the layout of the scores or of the product that they began as, if their shapes agree."""
    if scores is None and trail.product is not None and len(trail.product.order) == logits.dim():
        scores = _oriented(trail.product, axis)
    if scores is not None and scores.shape == tuple(logits.shape):
        fold = _fold(session, scores.lead, scores.b, module)
        return LaidOut(fold, scores.canonical(logits), fold.queries(scores.a), fold.keys(scores.b), module)
    last = _moved_last(logits, axis)
    last = last.unsqueeze(0) if last.dim() == 1 else last
    lead = tuple(last.shape[:-2])
    return LaidOut(_fold(session, lead, last, module), last, None, None, module)


def _moved_last(tensor: Tensor, axis: int) -> Tensor:
    return tensor.movedim(axis, -1)


def _kept_rows(logits: Tensor) -> Tensor | None:
    """Which rows of [B, H, T, S] are kept; None means all."""
    batch, heads, rows, keys = logits.shape
    most = max(1, MOST // max(1, batch * heads * keys))
    return None if rows <= most else torch.linspace(0, rows - 1, most, device=logits.device).long().unique()


def _visible(logits: Tensor) -> Tensor:
    return logits.isnan() | (logits > NEVER)


def _measured(layout: LaidOut, dtype: torch.dtype) -> Call | None:
    """The call whose logits are a number times q·k, one number for all or for each query; None if there is no such number."""
    if layout.q is None or layout.k is None:
        return None
    logits = layout.rows()
    chosen = _kept_rows(logits)
    q = layout.q if chosen is None else layout.q.index_select(2, chosen)
    logits = logits if chosen is None else logits.index_select(2, chosen)
    slopes = _slopes(q, layout.k, logits, dtype)
    if slopes is None:
        return None
    middle = float(slopes.nanmedian())
    one = bool(((slopes / middle - 1).abs() < SAME).logical_or(slopes.isnan()).all()) if middle else False
    visible = _visible(logits)
    scale = middle if one else 1.0
    slopes = slopes if one else _filled(slopes, q, layout.k, logits)
    scaled = q if one else q * slopes.unsqueeze(-1).to(q.dtype)
    call = Call(
        implementation="hand-written",
        q=scaled,
        k=layout.k,
        scale=scale,
        passed=scale if one else None,
        terms=Terms(None if bool(visible.all()) else visible),
        traced_q=layout.q,
        rows=chosen,
        total=layout.logits.shape[-2],
        multiplied=None if one else _varies(slopes.unsqueeze(-1)),
    )
    return call if replay.gives_softmax_of(call.problem(), None, logits) else None


def _products(q: Tensor, k: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q·k and the logits [B, H, R, S] in float64, and which of them are visible."""
    keys = k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    heights = logits.double()
    return q.double() @ keys.mT, heights, _visible(heights) & heights.isfinite()


def _filled(slopes: Tensor, q: Tensor, k: Tensor, logits: Tensor) -> Tensor:
    """The slopes; a row with too few keys for a line of its own gets the line through the origin."""
    products, heights, seen = _products(q, k, logits)
    x, y = (torch.where(seen, one, 0.0) for one in (products, heights))
    through = ((x * y).sum(-1) / x.square().sum(-1)).nan_to_num(0.0)
    return torch.where(slopes.isnan(), through, slopes)


def _slopes(q: Tensor, k: Tensor, logits: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The slope of logits [B, H, R, S] over q·k for each row, NaN where a row has too few keys; None if a row is no line."""
    products, heights, seen = _products(q, k, logits)
    count = seen.sum(-1, keepdim=True)
    x, y = (
        torch.where(seen, one - torch.where(seen, one, 0.0).sum(-1, keepdim=True) / count, 0.0)
        for one in (products, heights)
    )
    slopes = (x * y).sum(-1) / x.square().sum(-1)
    off = (y - slopes.unsqueeze(-1) * x).abs().amax(-1)
    known = (count.squeeze(-1) >= 3) & slopes.isfinite()
    straight = off <= TOLERANCE.get(dtype, 6e-2) * y.abs().amax(-1).clamp(min=1e-12)
    if not bool(known.any()) or not bool(straight[known].all()):
        return None
    return torch.where(known, slopes, torch.nan)


def _with_extra_key(session: Session, trail: Trail, logits: Tensor, axis: int, module: nn.Module | None) -> Call | None:
    """Logits with one more key than the product has, which is no key but a sink: one number for each head."""
    product = trail.scores or trail.product
    scores = None if product is None or len(product.order) != logits.dim() else _oriented(product, axis)
    if scores is None or logits.shape[axis] != scores.b.shape[-2] + 1:
        return None
    for keys, extra in ((slice(0, -1), -1), (slice(1, None), 0)):
        some = logits.movedim(axis, -1)[..., keys].movedim(-1, axis)
        if tuple(some.shape) != scores.shape:
            return None
        call = _measured(_laid_out(session, trail, scores, some, axis, module), logits.dtype)
        last = logits.movedim(axis, -1)[..., extra].unsqueeze(-1).movedim(-1, axis)
        heads = _fold(session, scores.lead, scores.b, module).queries(scores.canonical(last))[..., 0]
        if call is not None and bool((heads == heads[:1, :, :1]).all()):
            return call.with_sink(heads[0, :, 0])
    return None


def _constant_sink(
    session: Session, call: Call, scores: Scores, rest: Tensor, module: nn.Module | None
) -> Tensor | None:
    """The logit [Hq] of an outcome without a key that takes `rest` of each row, if it is one number for each head."""
    fold = _fold(session, scores.lead, scores.b, module)
    missing = fold.queries(scores.canonical(rest)).squeeze(-1).double()
    problem = call.problem()
    rows = torch.linspace(0, missing.shape[2] - 1, SAMPLE, device=missing.device).long().unique()
    lse = statistics_at(problem, [problem.scale], rows)[0].lse
    some = missing.index_select(2, rows)
    sink = lse + (some / (1 - some)).log()
    level = sink.nanmedian(2, keepdim=True).values
    return level[0, :, 0] if bool(((sink - level).abs() < 1e-2).all()) else None


def _bare(layout: LaidOut, extra: Tensor | None) -> Call:
    """The logits themselves as a bias, beside q·k times 0. An extra key, for what a row's weights lack to one, comes last."""
    logits = layout.logits if extra is None else torch.cat([layout.logits, extra], -1)
    logits = layout.fold.queries(logits)
    chosen = _kept_rows(logits)
    logits = logits if chosen is None else logits.index_select(2, chosen)
    batch, heads, rows, keys = logits.shape
    visible = _visible(logits)
    known = layout.q is not None and layout.k is not None and layout.k.shape[2] == keys
    q, k = (layout.q, layout.k) if known else (None, None)
    if q is None or k is None:
        q, k = logits.new_zeros(batch, heads, rows, 1), logits.new_zeros(batch, heads, keys, 1)
    elif chosen is not None:
        q = q.index_select(2, chosen)
    bias = torch.where(visible, logits, 0.0).to(torch.promote_types(k.dtype, torch.float32))
    return Call(
        implementation="hand-written",
        q=q,
        k=k.to(q.dtype),
        scale=0.0,
        passed=None,
        terms=Terms(None if bool(visible.all()) else visible, bias),
        rows=chosen,
        total=layout.logits.shape[-2],
        affine=False if known else None,
    )
