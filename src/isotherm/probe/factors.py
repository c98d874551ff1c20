"""What happened to q and k between their projection and the kernel, read off the lengths of their vectors.

A rotation keeps every length, a pre-scaling multiplies all lengths by one number, a temperature by one number per position,
and a normalisation changes each length differently. So the ratio of the lengths that the kernel received to the lengths that
the projection gave tells these apart. It also identifies the projection: no other has these lengths. Costs O(tokens · d).
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from isotherm.probe.capture import Factor
from isotherm.probe.frames import Recorded
from isotherm.probe.lengths import (
    ENOUGH,
    Match,
    by_position,
    is_monotonic,
    matches,
    measured,
    measured_alike,
    one_number,
    same_length,
)
from isotherm.probe.sampled import Beside, Candidate, Sample, lengths

UNTRACED = Factor(None, "untraced")
Traced = tuple[Factor, Recorded | None]
Shapes = tuple[tuple[torch.Size, torch.Size], ...]
"""Of each pair, the shapes of the lengths of both sides."""


class Tracer:
    """Finds the factor on a sample of q or k whose lengths were read, and the projection it came from.

    The layers of a model are alike, so what fitted the last sample of the same shapes is tried first.
    """

    def __init__(self) -> None:
        self._fitted: dict[Shapes, tuple[int, Tensor]] = {}
        self._waiting: dict[Shapes, list[Sequence[Candidate]]] = {}
        self._measured: dict[Candidate, Match] = {}

    def expect(self, samples: Iterable[Sample]) -> None:
        """Be told of samples that will be traced. Those of the same shapes are then measured at once, where the first of them
        fitted."""
        self._measured, self._waiting = {}, {}
        for sample in samples:
            for beside in sample.frames:
                pairs = beside.of_projections
                if pairs:
                    self._waiting.setdefault(_shapes(pairs), []).append(pairs)

    def trace(self, sample: Sample | None) -> Traced:
        """The factor, from the innermost frame that has one."""
        if sample is None:
            return UNTRACED, None
        found = (beside.view_of or self._in_frame(sample, beside) for beside in sample.frames)
        return next((one for one in found if one is not None), (UNTRACED, None))

    def _in_frame(self, sample: Sample, beside: Beside) -> Traced | None:
        tolerance = beside.tolerance
        projected = beside.of_projections
        norms = [pair for pair in beside.pairs if pair.record.kind == "norm"]
        match = self._constant(projected, tolerance / 10)
        if match is not None and match.spread < tolerance:
            return _found(match, match.value, "constant"), match.record
        return (
            _assembled(sample, beside)
            or _normalised(sample, norms, beside)
            or _per_query(projected, tolerance)
            or (
                (Factor(None, "normalised"), None) if beside.projections and _equal_lengths(sample, tolerance) else None
            )
        )

    def _constant(self, pairs: Sequence[Candidate], enough: float) -> Match | None:
        """The projection that `used` is nearest to, times one number. A spread below `enough` ends the search."""
        shapes = _shapes(pairs)
        before = [self._fitted[shapes]] if shapes in self._fitted else []
        if before:
            place, way = before[0]
            alike = [own[place] for own in self._waiting.pop(shapes, [])]
            self._measured |= zip(alike, measured_alike(alike, way, one_number), strict=True) if alike else ()
        heads = [
            (place, own[-1]) for place, (own, output) in enumerate(shapes) if own == output
        ]  # one block for each head
        for place, way in before or [(place, torch.arange(count).unsqueeze(0)) for place, count in heads]:
            match = self._measured.pop(pairs[place], None) or measured(pairs[place], way, one_number)
            if match.spread < enough:
                self._fitted[shapes] = place, way
                return match
        found = min(matches(pairs, one_number, enough), key=lambda match: match.spread, default=None)
        if found is not None and found.spread < enough:
            self._fitted[shapes] = pairs.index(found.pair), found.way.unsqueeze(0)
        return found


def _shapes(pairs: Sequence[Candidate]) -> Shapes:
    return tuple((pair.used.lengths[0].shape, pair.output.lengths[0].shape) for pair in pairs)


def _found(match: Match, value: float | None, kind: Literal["constant", "per-query"]) -> Factor:
    return Factor(value, kind, match.record.name, layout=match.layout, parts=match.record.parts)


def _normalised(sample: Sample, norms: Sequence[Candidate], beside: Beside) -> Traced | None:
    """q or k is the output of a recorded normalisation, possibly times one number or one number per position."""

    def order(match: Match) -> tuple[bool, float]:
        # The outputs of two norms may have equal lengths (unit vectors), so the one that shares memory with it wins.
        return match.record.made != sample.made, match.spread

    for measure in (same_length, by_position):
        match = min((m for m in matches(norms, measure) if m.spread < beside.tolerance), key=order, default=None)
        if match is not None:
            source = next((record for record in beside.projections if record.made == match.record.given), None)
            after = match.value if measure is same_length else None
            return Factor(None, "normalised", (source or match.record).name, after, match.record.name), source
    return None


def _per_query(pairs: Sequence[Candidate], tolerance: float) -> Traced | None:
    """q or k is a projection times one number per position. A normalisation over all heads together also gives one number
    per token, but these numbers do not all rise, or all fall, along the sequence."""
    found = min(matches(pairs, by_position), key=lambda match: match.spread, default=None)
    if found is None or found.spread >= tolerance or not is_monotonic(found.ratio, tolerance):
        return None
    return _found(found, None, "per-query"), found.record


def _equal_lengths(sample: Sample, tolerance: float) -> bool:
    """Whether all vectors of a head have one length: they were normalised, but by no module or function that was recorded."""
    own = sample.own.lengths[0]
    spread = own.std((0, 1)) / own.mean((0, 1)) if own.shape[0] * own.shape[1] > ENOUGH else None
    return spread is not None and bool((spread < tolerance).all())


def _assembled(sample: Sample, beside: Beside) -> Traced | None:
    """Keys concatenated from two projections, as in latent attention (DeepSeek): the first dimensions of each head are the
    first of its block, and the others are the last of a projection that all heads share."""
    batch, heads, length, dim = sample.shape
    several = length * batch * heads >= ENOUGH
    whole = [(one, one.used.cpu().double(), one.output.cpu().double()) for one in reversed(beside.whole)]
    for one, used, output in whole if several else ():
        if not one.all_tokens or output.shape[-1] % heads:
            continue
        width, value = _shared_prefix(used, output.unflatten(-1, (heads, -1)), beside.tolerance)
        if 2 <= width < dim and _shared_tail(width, [(own, out) for _, own, out in whole], value, beside.tolerance):
            return Factor(value, "constant", one.record.name), one.record
    return None


def _shared_tail(width: int, outputs: Sequence[tuple[Tensor, Tensor]], value: float, tolerance: float) -> bool:
    """Whether the vectors used [b, t, H, D] have from dimension `width` on the lengths of the last dimensions of some output
    [b, t, F], times `value`."""
    for used, output in outputs:
        rest = used[..., width:]
        if output.shape[-1] >= rest.shape[-1]:
            tail = lengths(output[..., -rest.shape[-1] :]).unsqueeze(2) * value
            if bool(((lengths(rest) / tail - 1).abs() < tolerance).all()):
                return True
    return False


def _shared_prefix(own: Tensor, block: Tensor, tolerance: float) -> tuple[int, float]:
    """How many leading dimensions of `own` [b, t, H, D] are those of `block` times one number, and that number."""
    value = float((own[..., 0] / block[..., 0]).median())
    width = min(own.shape[-1], block.shape[-1])
    scale = own.abs().amax((0, 1, 2))[:width].clamp(min=1e-30)
    far = (own[..., :width] - value * block[..., :width]).abs().amax((0, 1, 2)) / scale > tolerance
    return int(far.int().argmax()) if bool(far.any()) else width, value
