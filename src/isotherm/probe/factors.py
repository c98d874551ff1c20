"""What happened to q and k between their projection and the kernel, read off the lengths of their vectors.

A rotation keeps every length, a pre-scaling multiplies them all by one number, a temperature by one number per position,
a normalisation changes each. So the ratio of the lengths the kernel got to the lengths the projection gave tells them
apart, and names the projection on the way: no other one has these lengths. Costs O(tokens · d).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from isotherm.probe.capture import Factor
from isotherm.probe.frames import Frame, Record
from isotherm.probe.keep import storage_of
from isotherm.probe.layouts import assignments, tokens

TOKENS = 48
"""Tokens looked at, spread over the sequence."""
ENOUGH = 4
"""Vectors of different lengths that must agree before «one ratio» means anything."""
UNTRACED = Factor(None, "untraced")


@dataclass(frozen=True)
class Match:
    """Lengths used / lengths projected, [B, T, H]. `spread` is how far they are from being one number."""

    record: Record
    ratio: Tensor
    spread: float

    @property
    def value(self) -> float:
        """The one number, where it is one."""
        return float(self.ratio.nanmedian())


def trace(used: Tensor, frames: list[Frame]) -> tuple[Factor, Record | None]:
    """The factor on `used` [B, H, T, D], and the projection it came from; the innermost frame is asked first."""
    used = used.detach()
    if not used.numel():
        return UNTRACED, None
    for frame in reversed(frames):
        precise = {used.dtype, *(record.output.dtype for record in frame.records)} <= {torch.float32, torch.float64}
        tolerance = 1e-3 if precise else 1e-2
        found = _in_frame(used, frame.records, tolerance)
        if found is not None:
            return found
        if frame.attends and any(record.kind == "projection" for record in frame.records):
            break
    return UNTRACED, None


def _in_frame(used: Tensor, records: list[Record], tolerance: float) -> tuple[Factor, Record | None] | None:
    projected = _matches(used, [record for record in records if record.kind == "projection"])
    best = min(projected, key=lambda match: match.spread, default=None)
    if best is not None and best.spread < tolerance:
        return Factor(best.value, "constant", best.record.name), best.record
    assembled = _assembled(used, records, tolerance)
    if assembled is not None:
        return assembled
    memory = storage_of(used)  # unit vectors all have one length: what tells them apart is where they are
    norms = _matches(used, [record for record in records if record.kind == "norm"])
    for match in sorted(norms, key=lambda match: (match.record.made != memory, match.spread)):
        constant = match.spread < tolerance
        if constant or _by_position(match.ratio, tolerance):
            source = next((r for r in records if r.kind == "projection" and r.made == match.record.given), None)
            name = (source or match.record).name
            return Factor(None, "normalised", name, match.value if constant else None), source
    for match in projected:
        if _by_position(match.ratio, tolerance):
            return Factor(None, "per-query", match.record.name), match.record
    if projected and _equal_lengths(used, tolerance):
        return Factor(None, "normalised"), None
    return None


def _matches(used: Tensor, records: list[Record]) -> list[Match]:
    """For each record the assignment of its blocks to heads that comes closest to one ratio, latest record first."""
    batch, heads, length, dim = used.shape
    found = []
    for record in reversed(records):
        for output in tokens(record.output, batch, length, dim):
            if output.shape[2] * heads and not (output.shape[2] < heads and heads % output.shape[2]):
                found += [_closest(record, *pair) for pair in _aligned(used, output)]
    return found


def _aligned(used: Tensor, output: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Lengths [B, T, H] and [B, T, G] at the same tokens. A cache holds keys of earlier calls before the new ones, or
    room for later ones after them."""
    new, length = output.shape[1], used.shape[2]
    chosen = torch.linspace(0, new - 1, min(new, TOKENS), device=used.device).round().long().unique()
    projected = _lengths(output.index_select(1, chosen))
    starts = [0] if new == length else [length - new, 0]
    return [(_lengths(used.index_select(2, chosen + start)).transpose(1, 2), projected) for start in starts]


def _lengths(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vectors.double(), dim=-1)


def _closest(record: Record, used: Tensor, projected: Tensor) -> Match:
    ways = assignments(projected.shape[-1], used.shape[-1]).to(used.device)
    best: Match | None = None
    for some in ways.split(64):
        base = projected[..., some]  # [B, T, ways, H]
        ratio = used.unsqueeze(2) / base
        usable = (base > 1e-6 * projected.median()) & ratio.isfinite() & (ratio > 0)
        ratio = torch.where(usable, ratio, torch.nan)
        spread = _spread(*(numbers.movedim(2, 0).flatten(1) for numbers in (ratio, base)))
        at = int(spread.argmin())
        if best is None or float(spread[at]) < best.spread:
            best = Match(record, ratio[:, :, at], float(spread[at]))
    assert best is not None
    return best


def _spread(ratio: Tensor, base: Tensor) -> Tensor:
    """Relative deviation over the last dimension. Where too few different lengths were compared to rule out chance, the
    ratios must be the closer for it: ten times for each that is missing."""
    lengths = torch.where(ratio.isnan(), torch.nan, base).sort(-1).values
    count = (lengths.diff(dim=-1) > 1e-3 * lengths[:, 1:]).sum(-1) + 1
    missing = 10.0 ** (ENOUGH - count).clamp(min=0)
    mean = ratio.nanmean(-1, keepdim=True)
    spread = (ratio - mean).square().nanmean(-1).sqrt() / mean.squeeze(-1)
    return torch.where(count >= 2, spread.nan_to_num(torch.inf) * missing, torch.inf)


def _by_position(ratio: Tensor, tolerance: float) -> bool:
    """Whether the ratio is a(head)·f(position) with f going one way along the sequence. [B, T, H]

    A normalisation over all heads together also gives one number per token, but not one that grows with the position.
    """
    if ratio.shape[1] < ENOUGH or ratio.shape[0] * ratio.shape[2] < 2:
        return False
    logs = ratio.log()
    logs = logs - logs.nanmean((0, 1), keepdim=True)
    at_token = logs.nanmean(-1, keepdim=True)
    if not bool(((logs - at_token).abs().nan_to_num(0.0) < tolerance).all()):
        return False
    steps = at_token.squeeze(-1).diff(dim=1).nan_to_num(0.0)
    return bool((steps > -tolerance).all() or (steps < tolerance).all())


def _equal_lengths(used: Tensor, tolerance: float) -> bool:
    """Whether each head's vectors all have one length: a normalisation that no module did."""
    lengths = _lengths(used[:, :, :TOKENS])
    spread = lengths.std((0, 2)) / lengths.mean((0, 2)) if lengths.shape[0] * lengths.shape[2] > ENOUGH else None
    return spread is not None and bool((spread < tolerance).all())


def _assembled(used: Tensor, records: list[Record], tolerance: float) -> tuple[Factor, Record | None] | None:
    """Keys put together from two projections, as latent attention (DeepSeek) does: the first dimensions of each head are
    the first of its block, the others are the last of a projection all heads share."""
    batch, heads, length, dim = used.shape
    sequences = _sequences(records, batch, length)
    own = used[:, :, -TOKENS:].double()
    for record, output in sequences:
        if output.shape[1] != length or output.shape[-1] % heads or length * batch * heads < ENOUGH:
            continue
        block = output[:, -TOKENS:].unflatten(-1, (heads, -1)).transpose(1, 2).double()
        width, value = _shared_prefix(own, block, tolerance)
        if 2 <= width < dim and _shared_tail(own[..., width:], [out for _, out in sequences], value, tolerance):
            return Factor(value, "constant", record.name), record
    return None


def _sequences(records: list[Record], batch: int, length: int) -> list[tuple[Record, Tensor]]:
    """Projections that are [B, at most `length` tokens, F]."""
    shaped = [
        (
            record,
            record.output.squeeze(1) if record.output.dim() == 4 and record.output.shape[1] == 1 else record.output,
        )
        for record in records
        if record.kind == "projection"
    ]
    return [(r, out) for r, out in shaped if out.dim() == 3 and out.shape[0] == batch and 0 < out.shape[1] <= length]


def _shared_tail(rest: Tensor, outputs: list[Tensor], value: float, tolerance: float) -> bool:
    """Whether the remaining dimensions [B, H, S, R] have the lengths of some projection's last ones, times `value`."""
    width, lengths = rest.shape[-1], _lengths(rest)
    for output in outputs:
        if output.shape[-1] > width:
            tail = _lengths(output[:, -TOKENS:, -width:]).unsqueeze(1) * value
            if bool(((lengths[:, :, -tail.shape[2] :] / tail - 1).abs() < tolerance).all()):
                return True
    return False


def _shared_prefix(own: Tensor, block: Tensor, tolerance: float) -> tuple[int, float]:
    """How many leading dimensions are the block's times one number, and that number."""
    value = float((own[..., 0] / block[..., 0]).median())
    width = min(own.shape[-1], block.shape[-1])
    scale = own.abs().amax((0, 1, 2))[:width].clamp(min=1e-30)
    far = (own[..., :width] - value * block[..., :width]).abs().amax((0, 1, 2)) / scale > tolerance
    return int(far.int().argmax()) if bool(far.any()) else width, value
