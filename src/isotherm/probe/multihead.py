"""`nn.MultiheadAttention`, `F.multi_head_attention_forward` and the fused path of `nn.TransformerEncoderLayer`.

These never show q and k. PyTorch leaves their fused paths as soon as a hook or a mode could see inside, and the result then has
other bits. So the modules run unwatched, and the probe projects q and k once more from their inputs.
"""

import inspect
from collections.abc import Mapping
from math import sqrt
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isotherm.probe import nested
from isotherm.probe.call import Call
from isotherm.probe.capture import Capture, Factor, HeadLayout
from isotherm.probe.masks import Terms, padded_positions
from isotherm.probe.parts import named_parameters, parts_among
from isotherm.probe.session import Session
from isotherm.record import Kind


class Inputs(NamedTuple):
    """The inputs of one call: query [B, T, E], key [B, S, E], and masks in which True, or −inf, hides a key. `padded` [B, T] is
    True where the query is known to be padding."""

    query: Tensor
    key: Tensor
    heads: int
    q_weight: Tensor
    k_weight: Tensor
    q_bias: Tensor | None
    k_bias: Tensor | None
    extra_key: Tensor | None
    zero_key: bool
    attn_mask: Tensor | None
    key_padding_mask: Tensor | None
    padded: Tensor | None = None


def look_at_module(session: Session, module: nn.MultiheadAttention, args: Any, kwargs: Any) -> None:
    """Capture a call of `nn.MultiheadAttention` that has run."""
    given = inspect.signature(nn.MultiheadAttention.forward).bind(module, *args, **kwargs).arguments
    query, key = given["query"], given["key"]
    same = query is key
    padding, padded = given.get("key_padding_mask"), None
    if query.is_nested:
        query, padded = nested.padded(query)
        key, padding = (query, padded) if same else nested.padded(key)
    elif query.dim() == 2:
        query, key = query.unsqueeze(0), key.unsqueeze(0)
        padding = None if padding is None else padding.unsqueeze(0)
    elif not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    weights = _weights(module.in_proj_weight, module.q_proj_weight, module.k_proj_weight)
    inputs = Inputs(
        query, key, module.num_heads, *weights, *_biases(module.in_proj_bias),
        module.bias_k, module.add_zero_attn, given.get("attn_mask"), padding, padded,
    )  # fmt: skip
    name = session.frames.name_of(module)
    _capture(
        session, inputs, (name, type(module).__name__), named_parameters(module, name), "self" if same else "cross"
    )


def look_at_layer(session: Session, layer: nn.TransformerEncoderLayer, args: Any, kwargs: Any) -> None:
    """Capture the attention of an encoder layer that took its fused path, which does not call the attention module."""
    given = inspect.signature(nn.TransformerEncoderLayer.forward).bind(layer, *args, **kwargs).arguments
    src, padding, attention = given["src"], given.get("src_key_padding_mask"), layer.self_attn
    if src.is_nested:
        src, padding = nested.padded(src)
    if layer.norm_first:
        src = F.layer_norm(src, layer.norm1.normalized_shape, layer.norm1.weight, layer.norm1.bias, layer.norm1.eps)
    options = {"attn_mask": given.get("src_mask"), "key_padding_mask": padding}
    look_at_module(session, attention, (src, src, src), options)


def look_at_function(session: Session, args: Any, kwargs: Any) -> None:
    """Capture a call of `F.multi_head_attention_forward` that no module made."""
    given = inspect.signature(F.multi_head_attention_forward).bind(*args, **kwargs).arguments
    query, key, padding = given["query"], given["key"], given.get("key_padding_mask")
    same = query is key
    if query.dim() == 2:
        query, key = query.unsqueeze(1), key.unsqueeze(1)
        padding = None if padding is None else padding.unsqueeze(0)
    weights = _weights(given["in_proj_weight"], given.get("q_proj_weight"), given.get("k_proj_weight"))
    inputs = Inputs(
        query.transpose(0, 1), key.transpose(0, 1), given["num_heads"], *weights, *_biases(given["in_proj_bias"]),
        given["bias_k"], given["add_zero_attn"], given.get("attn_mask"), padding,
    )  # fmt: skip
    top = session.frames.top
    subject, known = (("", ""), {}) if top is None else ((top.name, top.kind), named_parameters(top.module, top.name))
    _capture(session, inputs, subject, known, "self" if same else "cross")


def _weights(packed: Tensor | None, q: Tensor | None, k: Tensor | None) -> tuple[Tensor, Tensor]:
    if q is not None and k is not None:
        return q, k
    assert packed is not None
    parts = packed.chunk(3)
    return parts[0], parts[1]


def _biases(packed: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if packed is None else packed.chunk(3)[:2]  # type: ignore[return-value]


def _capture(
    session: Session, inputs: Inputs, subject: tuple[str, str], known: Mapping[str, nn.Parameter], what: Kind
) -> None:
    """Capture a call by a module of this name and class. `known` are its parameters by their names."""
    batch, heads = inputs.query.shape[0], inputs.heads
    q = F.linear(inputs.query, inputs.q_weight, inputs.q_bias).unflatten(-1, (heads, -1)).transpose(1, 2)
    k = F.linear(inputs.key, inputs.k_weight, inputs.k_bias)
    beyond = 0
    if inputs.extra_key is not None:
        k, beyond = torch.cat([k, inputs.extra_key.transpose(0, 1).expand(batch, -1, -1)], 1), 1
    k = k.unflatten(-1, (heads, -1)).transpose(1, 2)
    if inputs.zero_key:
        k, beyond = torch.cat([k, k.new_zeros(batch, heads, 1, k.shape[-1])], 2), beyond + 1
    terms = Terms()
    if inputs.attn_mask is not None:
        terms &= _term(session, inputs.attn_mask, (-1, heads) if inputs.attn_mask.dim() == 3 else (1, 1), beyond)
    if inputs.key_padding_mask is not None:
        terms &= _term(session, inputs.key_padding_mask.unsqueeze(1), (batch, 1), beyond)
    scale = 1 / sqrt(q.shape[-1])
    problem = Call("multi-head", q, k, scale, None, terms).problem()
    padded = inputs.padded
    if padded is None and what == "self":
        padded = padded_positions(problem.visibility)
    q_factor = _factor(known, heads, inputs.q_weight, inputs.q_bias)
    k_factor = _factor(known, heads, inputs.k_weight, inputs.k_bias)
    session.add(Capture(*subject, what, "multi-head", problem, None, None, q_factor, k_factor, padded=padded))


def _factor(known: Mapping[str, nn.Parameter], heads: int, weight: Tensor, bias: Tensor | None) -> Factor:
    parts = parts_among(known, [(weight, 0), *([] if bias is None else [(bias, 0)])])
    width, dim = weight.shape[0], weight.shape[0] // heads
    layout = HeadLayout(width, dim, tuple(range(0, width, dim)))
    return Factor(1.0, "constant", parts[0].name if parts else "in_proj_weight", layout=layout, parts=parts)


def _term(session: Session, mask: Tensor, lead: tuple[int, int], beyond: int) -> Terms:
    """A mask as [B, H, T, S]. The `beyond` keys that PyTorch appends to the sequence are visible."""
    terms = session.masks.hidden(mask) if mask.dtype is torch.bool else session.masks.added(mask)

    def shaped(tensor: Tensor | None, fill: float) -> Tensor | None:
        if tensor is None:
            return None
        return F.pad(tensor.reshape(*lead, *tensor.shape[-2:]), (0, beyond), value=fill)

    return Terms(shaped(terms.mask, True), shaped(terms.bias, 0.0))
