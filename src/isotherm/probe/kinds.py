"""What a call attends over: its own sequence, another one, channels, the batch, or a few landmarks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from torch import Tensor, nn

from isotherm.ops import Problem
from isotherm.probe.capture import Capture
from isotherm.probe.frames import Frame, Recorded
from isotherm.probe.keep import storage_of
from isotherm.record import Kind

CROSS = re.compile(r"cross|enc_?dec|encoder_att|multihead_attn|src_att", re.IGNORECASE)
CHANNEL = re.compile(r"XCA|cross_?covariance|channel_?att", re.IGNORECASE)
Sources = tuple[Recorded | None, Recorded | None]
"""The projections that q and k came from."""


def kind_of(problem: Problem, name: str, frames: list[Frame], module: nn.Module | None) -> Kind | None:
    """Decide by the axes of the projection that q's vectors run along, then by the module's `is_cross_attention`, then by its
    name. None if what q and k were projected from decides.

    The number of keys decides nothing, because a cache makes S larger than T in self-attention.
    """
    subject = module if module is not None else (frames[-1].module if frames else None)
    square = problem.q.shape[2] == problem.k.shape[2]
    if square and (along := _other_axes(problem.q, frames)) is not None:
        return along
    words = (".".join(name.split(".")[-2:]), type(subject).__name__)
    if square and any(CHANNEL.search(word) for word in words):
        return "channel"
    said = getattr(subject, "is_cross_attention", None)
    if (isinstance(said, bool) and said) or any(CROSS.search(word) for word in words):
        return "cross"
    return "self" if problem.visibility.causal else None


class Ancestry:
    """What the projections and norms that the frames have recorded were given."""

    def __init__(self, frames: list[Frame]) -> None:
        self._made_by = {record.made: record.about for frame in frames for record in frame.records}

    def are_one(self, sources: Sources) -> bool:
        """Whether q and k are known to be projections of one tensor."""
        q, k = sources
        if q is None or k is None:
            return False
        if q == k or (q.given is not None and q.given == k.given):
            return True
        q_root, k_root = _root(q, self._made_by)[0], _root(k, self._made_by)[0]
        return q_root is not None and q_root == k_root

    def kind(self, sources: Sources, queries: int) -> Kind:
        """Whether q and k come from one sequence. A single query (decoding) counts as self-attention: its keys usually come
        from a cache."""
        q, k = sources
        if q is None or k is None or q == k or q.given is None or q.given == k.given:
            return "self"
        (q_root, q_latent), (k_root, k_latent) = _root(q, self._made_by), _root(k, self._made_by)
        return "self" if queries == 1 or q_latent or k_latent or q_root == k_root else "cross"


def _root(record: Recorded, made_by: dict[int, Recorded]) -> tuple[int | None, bool]:
    """The memory that a projection's input came from, looking through norms; and whether another projection made that input
    (latent attention, which caches what lies between the two)."""
    given = record.given
    for _ in range(len(made_by)):
        before = made_by.get(given) if given is not None else None
        if before is None or before.given == given:
            break
        if before.kind == "projection":
            return given, True
        given = before.given
    return given, False


def _other_axes(q: Tensor, frames: list[Frame]) -> Kind | None:
    """Channel or batch attention, where q is a view of a projection's output whose vectors run along the tokens.

    In ordinary attention a vector runs along the features of one token. Strides tell: they say along which axes of the
    output the vectors of q and its rows lie. A norm copies q, so what a norm was given is looked at too.
    """
    for frame in reversed(frames):
        outputs = {record.made: record for record in frame.records if record.kind == "projection"}
        views = [q, *(r.source for r in frame.records if r.kind == "norm" and r.source is not None)]
        for view in views:
            output = outputs.get(storage_of(view))
            if output is not None and view.shape[-2:] == q.shape[-2:]:
                return _axis_kind(view, output.output, output.features)
        if frame.role.attends:
            break
    return None


def _axis_kind(view: Tensor, output: Tensor, features: int) -> Kind | None:
    """The kind by the axes of `output`: [B, tokens, features] or, of a convolution, [B, features, tokens] or
    [B, features, height, width]. `features` is that axis."""
    (rows, dim), (row_step, step) = view.shape[-2:], view.stride()[-2:]
    if output.dim() == 3:
        tokens = 2 if features == 1 else 1
        along_tokens = dim == output.shape[tokens] and step == output.stride(tokens) != output.stride(features)
        if not along_tokens or dim == 1:
            return None
        return "batch" if rows == output.shape[0] and row_step == output.stride(0) else "channel"
    if output.dim() == 4 and output.is_contiguous():
        pixels = output.shape[2] * output.shape[3]
        return "channel" if dim == pixels > 1 and step == 1 and row_step == pixels else None
    return None


def with_landmarks(captures: Sequence[Capture]) -> Iterator[Capture]:
    """The captures, with those called landmark that attend by way of a few landmarks (Nyström, agents).

    Among the calls of one module that follow one another, some have n queries and m < n keys, others m queries and n keys. The
    m are no output of a projection: they were pooled from the tokens. (A module that attends from one sequence to another and
    back has such shapes too, but both sides are projections.)
    """
    for _, run in groupby(captures, key=lambda capture: (capture.name, capture.module)):
        calls = list(run)
        shapes = {_shape(call) for call in calls if _is_pooled(call)}
        landmarks = any(rows < keys and (keys, rows) in shapes for rows, keys in shapes)
        yield from (replace(call, kind="landmark") if landmarks else call for call in calls)


def _shape(call: Capture) -> tuple[int, int]:
    return call.queries, call.problem.k.shape[2]


def _is_pooled(call: Capture) -> bool:
    """Whether the shorter of q and k came from no projection."""
    rows, keys = _shape(call)
    return (call.q_factor if rows < keys else call.k_factor).kind == "untraced"
