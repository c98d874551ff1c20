"""`F.scaled_dot_product_attention`, wherever it is called from."""

from math import sqrt
from typing import Any

from torch import Tensor

from isotherm.probe import heads, replay
from isotherm.probe.masks import Terms
from isotherm.probe.session import Call, Handed, Session

ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


def handed(args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Handed:
    """What a call was handed, and what it gave."""
    given = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
    q, k, v = (given[name] for name in ARGUMENTS[:3])
    scale = given.get("scale")
    scale = 1 / sqrt(q.shape[-1]) if scale is None else float(scale)
    return Handed(scale, q, k, v, given.get("attn_mask"), bool(given.get("is_causal", False)), output)


def look(session: Session, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
    """Capture one call that has run."""
    given = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
    query, key, value = given["query"], given["key"], given["value"]
    mask, scale = given.get("attn_mask"), given.get("scale")
    top = session.frames.top
    fold = heads.Fold.of(tuple(query.shape[:-2]), tuple(key.shape[:-2]), None if top is None else top.module)
    terms = Terms()
    if mask is not None:
        terms = heads.fold_terms(fold, session.masks.visible(mask))
    call = Call(
        implementation="sdpa",
        q=fold.queries(query),
        k=fold.keys(key),
        scale=1 / sqrt(query.shape[-1]) if scale is None else float(scale),
        passed=None if scale is None else float(scale),
        terms=terms,
        causal=bool(given.get("is_causal", False)),
    )
    values, out = fold.keys(value), fold.queries(output)
    sure = None if given.get("dropout_p") else lambda problem: replay.gives(problem, None, values, out)
    if not session.capture(call, agrees=sure):
        session.mismatch(call)
