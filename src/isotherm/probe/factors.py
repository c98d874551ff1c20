"""What happened to q and k between their projection and the kernel, read off the lengths of their vectors.

A rotation keeps every length, a pre-scaling multiplies all lengths by one number, a temperature by one number per position,
and a normalisation changes each length differently. So the ratio of the lengths that the kernel received to the lengths that
the projection gave tells these apart. It also identifies the projection: no other has these lengths. Costs O(tokens · d).
"""

from typing import Literal

import torch
from torch import Tensor

from isotherm.probe.capture import Factor
from isotherm.probe.frames import Frame, Record
from isotherm.probe.keep import storage_of
from isotherm.probe.layouts import viewed, without_head_axis
from isotherm.probe.lengths import (
    ENOUGH,
    TOKENS,
    Match,
    by_position,
    is_monotonic,
    lengths,
    matches,
    one_number,
    same_length,
)

UNTRACED = Factor(None, "untraced")


def trace(used: Tensor, frames: list[Frame]) -> tuple[Factor, Record | None]:
    """Find the factor on `used` [B, H, T, D] and the projection it came from, searching the innermost frame first."""
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
    projections = [record for record in records if record.kind == "projection"]
    here = storage_of(used)
    for record in projections:
        if (
            storage_of(record.output) == here
        ):  # `used` is a view of it. If the model had written there, the record would be a copy.
            layout = viewed(used, record.output)
            return Factor(1.0, "constant", record.name, layout=layout, parts=record.parts), record
    norms = [record for record in records if record.kind == "norm"]
    found = min(matches(used, projections, one_number, tolerance / 10), key=lambda m: m.spread, default=None)
    if found is not None and found.spread < tolerance:
        return _found(found, found.value, "constant"), found.record
    return (
        _assembled(used, projections, tolerance)
        or _normalised(used, norms, projections, tolerance)
        or _per_query(used, projections, tolerance)
        or ((Factor(None, "normalised"), None) if projections and _equal_lengths(used, tolerance) else None)
    )


def _found(match: Match, value: float | None, kind: Literal["constant", "per-query"]) -> Factor:
    return Factor(value, kind, match.record.name, layout=match.layout, parts=match.record.parts)


def _normalised(
    used: Tensor, norms: list[Record], projections: list[Record], tolerance: float
) -> tuple[Factor, Record | None] | None:
    """`used` is the output of a recorded normalisation, possibly times one number or one number per position."""

    def order(match: Match) -> tuple[bool, float]:
        # The outputs of two norms may have equal lengths (unit vectors), so the one that shares memory with `used` wins.
        return match.record.made != storage_of(used), match.spread

    for measure in (same_length, by_position):
        match = min((m for m in matches(used, norms, measure) if m.spread < tolerance), key=order, default=None)
        if match is not None:
            source = next((record for record in projections if record.made == match.record.given), None)
            after = match.value if measure is same_length else None
            return Factor(None, "normalised", (source or match.record).name, after, match.record.name), source
    return None


def _per_query(used: Tensor, projections: list[Record], tolerance: float) -> tuple[Factor, Record | None] | None:
    """`used` is a projection times one number per position. A normalisation over all heads together also gives one number
    per token, but these numbers do not all rise, or all fall, along the sequence."""
    found = min(matches(used, projections, by_position), key=lambda match: match.spread, default=None)
    if found is None or found.spread >= tolerance or not is_monotonic(found.ratio, tolerance):
        return None
    return _found(found, None, "per-query"), found.record


def _equal_lengths(used: Tensor, tolerance: float) -> bool:
    """Whether all vectors of a head have one length: they were normalised, but by no module or function that was recorded."""
    own = lengths(used[:, :, :TOKENS])
    spread = own.std((0, 2)) / own.mean((0, 2)) if own.shape[0] * own.shape[2] > ENOUGH else None
    return spread is not None and bool((spread < tolerance).all())


def _assembled(used: Tensor, records: list[Record], tolerance: float) -> tuple[Factor, Record | None] | None:
    """Keys concatenated from two projections, as in latent attention (DeepSeek): the first dimensions of each head are the
    first of its block, and the others are the last of a projection that all heads share."""
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
    """Projections whose output is [B, at most `length` tokens, F], with that output."""
    shaped = [(record, without_head_axis(record.output)) for record in records]
    return [(r, out) for r, out in shaped if out.dim() == 3 and out.shape[0] == batch and 0 < out.shape[1] <= length]


def _shared_tail(rest: Tensor, outputs: list[Tensor], value: float, tolerance: float) -> bool:
    """Whether `rest` [B, H, S, R] has the lengths of the last R dimensions of some output, times `value`."""
    width, own = rest.shape[-1], lengths(rest)
    for output in outputs:
        if output.shape[-1] >= width:
            tail = lengths(output[:, -TOKENS:, -width:]).unsqueeze(1) * value
            if bool(((own[:, :, -tail.shape[2] :] / tail - 1).abs() < tolerance).all()):
                return True
    return False


def _shared_prefix(own: Tensor, block: Tensor, tolerance: float) -> tuple[int, float]:
    """How many leading dimensions of `own` are those of `block` times one number, and that number."""
    value = float((own[..., 0] / block[..., 0]).median())
    width = min(own.shape[-1], block.shape[-1])
    scale = own.abs().amax((0, 1, 2))[:width].clamp(min=1e-30)
    far = (own[..., :width] - value * block[..., :width]).abs().amax((0, 1, 2)) / scale > tolerance
    return int(far.int().argmax()) if bool(far.any()) else width, value
