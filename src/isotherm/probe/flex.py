"""`flex_attention`: its block mask, and its score_mod, which may do anything to a logit.

The score_mod is tried on a few rows. If it adds the same to every score, or multiplies every score by the same number, or is a
soft cap, the call is described so. Otherwise its logits are kept themselves, and the scale in force is not known.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isotherm.probe import replay
from isotherm.probe.call import Call
from isotherm.probe.masks import NEVER, Terms
from isotherm.probe.session import Session

MOST = 1 << 22
"""How many logits are computed to look at them. Of more, some rows are, spread over the sequence."""
Modify = Callable[[Tensor], Tensor]


def look(session: Session, args: Any, result: Any) -> None:
    """Capture one call of the operator that has run: query, key, value, score_mod, the block mask's parts, scale."""
    q, k, v, score_mod, block_mask, scale = args[:6]
    q, k, v = q.detach(), k.detach(), v.detach()
    mask_mod = block_mask[-1]
    rows = _rows(q, k)
    some = q if rows is None else q.index_select(2, rows)
    at = torch.arange(q.shape[2], device=q.device) if rows is None else rows
    modify = _over(score_mod, q, k, at)
    visible = _over(lambda _, *where: mask_mod(*where), q, k, at)(torch.zeros((), device=q.device))
    terms = Terms(None if bool(visible.all()) else visible)
    passed, total = float(scale), q.shape[2]
    call = Call("flex_attention", some, k, passed, passed, terms, traced_q=q, rows=rows, total=total)
    output = result[0].detach()
    output = output if rows is None else output.index_select(2, rows)
    for one in (_capped(call, modify), _affine(call, modify), _bare(call, modify)):
        if one is not None and session.capture(
            one, None, lambda problem: replay.gives_output(problem, None, v, output)
        ):
            return
    session.mismatch(call)


def _rows(q: Tensor, k: Tensor) -> Tensor | None:
    batch, heads, rows, _ = q.shape
    most = max(1, MOST // max(1, batch * heads * k.shape[2]))
    return None if rows <= most else torch.linspace(0, rows - 1, most, device=q.device).long().unique()


def _over(function: Callable[..., Tensor], q: Tensor, k: Tensor, rows: Tensor) -> Modify:
    """A function of (score, batch, head, query, key) over all of them at once: it takes scores [B, H, R, S] or one number."""
    batch, heads = (torch.arange(size, device=q.device) for size in q.shape[:2])
    keys = torch.arange(k.shape[2], device=q.device)

    def apply(scores: Tensor) -> Tensor:
        full = scores.expand(len(batch), len(heads), len(rows), len(keys))
        mapped: Callable[..., Tensor] = function
        for axes in (
            (0, None, None, None, 0),
            (0, None, None, 0, None),
            (0, None, 0, None, None),
            (0, 0, None, None, None),
        ):
            mapped = torch.vmap(mapped, in_dims=axes)
        return mapped(full, batch, heads, rows, keys)

    return apply


def _at(call: Call, modify: Modify, value: float) -> Tensor:
    return modify(torch.full((), value, dtype=torch.float64, device=call.q.device)).double()


def _affine(call: Call, modify: Modify) -> Call | None:
    """score_mod(s) = factor·s + bias, with one factor for all. −inf in the bias hides a key."""
    low, zero, high = (_at(call, modify, value) for value in (-1.0, 0.0, 2.0))
    hidden = (zero < NEVER) | (high < NEVER)
    slopes = ((high - zero) / 2)[~hidden]
    if not slopes.numel():
        return None
    factor = float(slopes.flatten()[0])
    straight = ((high - zero) / 2 - factor).abs() + (zero - low - factor).abs() < 1e-6 * max(1.0, abs(factor))
    if not bool((straight | hidden).all()):
        return None
    visible = ~hidden if call.terms.mask is None else call.terms.mask & ~hidden
    bias = torch.where(hidden, 0.0, zero).float()
    return replace(
        call,
        scale=call.scale * factor,
        passed=call.scale,
        terms=Terms(None if bool(visible.all()) else visible, bias if bool(bias.any()) else None),
    )


def _capped(call: Call, modify: Modify) -> Call | None:
    """score_mod(s) = cap·tanh(s / cap)."""
    top = _at(call, modify, 1e12)
    cap = float(top.flatten()[0])
    if not 0 < cap < 1e9 or not bool((top == cap).all()):
        return None
    expected = cap * torch.tanh(torch.tensor(cap / 3, dtype=torch.float64) / cap)
    same = (_at(call, modify, cap / 3) - expected).abs() < 1e-6 * cap
    return replace(call, softcap=cap) if bool(same.all()) else None


def _bare(call: Call, modify: Modify) -> Call:
    """The logits themselves as a bias, beside q·k times 0."""
    keys = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
    logits = modify((call.q.float() @ keys.float().mT) * call.scale)
    hidden = logits < NEVER
    visible = ~hidden if call.terms.mask is None else call.terms.mask & ~hidden
    bias = torch.where(hidden, 0.0, logits).float()
    return replace(call, scale=0.0, passed=call.scale, terms=Terms(visible, bias), affine=False)
