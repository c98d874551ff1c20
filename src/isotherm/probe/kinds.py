"""Whether a call is self-attention or cross-attention."""

import re

from torch import nn

from isotherm.ops import Problem
from isotherm.probe.frames import Frame, Record
from isotherm.record import Kind

CROSS = re.compile(r"cross|enc_?dec|encoder_att|multihead_attn|src_att", re.IGNORECASE)


def kind_of(
    problem: Problem,
    name: str,
    frames: list[Frame],
    module: nn.Module | None,
    sources: tuple[Record | None, Record | None],
) -> Kind:
    """Decide by the module's `is_cross_attention`, then by its name, then by what q and k were projected from.

    The number of keys decides nothing, because a cache makes S larger than T in self-attention. A single query (decoding)
    counts as self-attention: its keys usually come from a cache.
    """
    subject = module if module is not None else (frames[-1].module if frames else None)
    said = getattr(subject, "is_cross_attention", None)
    if isinstance(said, bool) and said:
        return "cross"
    if CROSS.search(".".join(name.split(".")[-2:])) or CROSS.search(type(subject).__name__):
        return "cross"
    q, k = sources
    if problem.visibility.causal or q is None or k is None or q is k or q.given is None or q.given == k.given:
        return "self"
    made_by = {record.made: record for frame in frames for record in frame.records}
    (q_root, q_latent), (k_root, k_latent) = _root(q, made_by), _root(k, made_by)
    return "self" if problem.q.shape[2] == 1 or q_latent or k_latent or q_root == k_root else "cross"


def _root(record: Record, made_by: dict[int, Record]) -> tuple[int | None, bool]:
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
