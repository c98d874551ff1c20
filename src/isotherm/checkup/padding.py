"""Which queries of a captured call are padding.

The probe knows most of them from the masks that the kernels received. What it cannot know is added here: the queries of
cross-attention, and masks that a model takes but does not pass to its kernels. A query that may be real is kept.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from isotherm.checkup.wrappers import inner
from isotherm.probe import Capture
from isotherm.probe.masks import padded_keys


def with_padding(captures: Sequence[Capture], model: nn.Module, batch: Any) -> list[Capture]:
    """The captures, with the padded queries that only the whole forward and the batch tell."""
    masks = {name: value for name, value in named_inputs(model, batch) if isinstance(value, Tensor)}
    has_encoder = any("encoder" in capture.name.split(".") for capture in captures)
    found: list[Capture] = []
    for capture in captures:
        padded = capture.padded
        if padded is None and capture.kind == "cross":
            padded = _from_the_block(capture, found)
        if padded is None and capture.kind in ("self", "cross"):
            padded = _from_the_batch(capture, masks, has_encoder=has_encoder)
        found.append(capture if padded is None else replace(capture, padded=padded))
    return found


def named_inputs(model: nn.Module, batch: Any) -> Iterator[tuple[str, Any]]:
    """The values of a batch with their names: its keys, those of a dict within it, or the arguments of the model's forward."""
    if isinstance(batch, Mapping):
        for name, value in batch.items():
            yield from named_inputs(model, value) if isinstance(value, Mapping) else [(str(name), value)]
        return
    values = [batch] if isinstance(batch, Tensor) else list(batch)
    for value in values:
        if isinstance(value, Mapping):
            yield from named_inputs(model, value)
    try:
        yield from inspect.signature(inner(model).forward).bind(*values).arguments.items()
    except (TypeError, ValueError):  # another number of arguments, or no signature at all
        return


def _from_the_block(cross: Capture, before: Sequence[Capture]) -> Tensor | None:
    """Cross-attention has the queries of the self-attention that its own block computed before it.

    That the two belong together is certain if they share a block, and if the keys of the cross-attention are not padded in the
    same way: otherwise that self-attention may be the one of the other sequence.
    """
    shape = cross.problem.q.shape[0], cross.queries
    alike = (c for c in reversed(before) if c.kind == "self" and (c.problem.q.shape[0], c.queries) == shape)
    own = next(alike, None)
    if own is None or own.padded is None:
        return None
    shared, depth = _shared(own.name, cross.name), len(cross.name.split("."))
    keys = padded_keys(cross.problem.visibility)
    if shared < depth - 2 or (keys is None and not shared):
        return None
    if keys is not None and keys.shape[1] == shape[1] and bool((keys == own.padded).all()):
        return None
    return own.padded


def _shared(one: str, other: str) -> int:
    """How many modules around both of these two there are, the model itself not counted."""
    pairs = list(zip(one.split("."), other.split("."), strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


def _from_the_batch(capture: Capture, masks: Mapping[str, Tensor], *, has_encoder: bool) -> Tensor | None:
    """What the model was given as `attention_mask`, or as `decoder_attention_mask` where there is an encoder too."""
    two_inputs = has_encoder or "decoder_input_ids" in masks or "decoder_attention_mask" in masks
    in_decoder = "decoder" in capture.name and two_inputs
    if capture.kind == "cross" and not in_decoder:
        return None
    mask = masks.get("decoder_attention_mask" if in_decoder else "attention_mask")
    shape = capture.problem.q.shape[0], capture.queries
    if mask is None or mask.is_nested or mask.shape != shape:
        return None
    padded = mask == 0 if bool((mask >= 0).all()) else mask < 0  # numbers below 0 are added to the logits
    return padded if bool(padded.any()) else None
