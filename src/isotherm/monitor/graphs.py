"""What a graph of Dynamo's says about attention, and how a note is put into one."""

import operator
import re
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from isotherm.monitor import noting
from isotherm.probe.frames import plain_name

ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


@dataclass(frozen=True)
class NotedCall:
    """A call of attention in a graph: its node, its module's path, its heads and device, the operands and numbers of a note."""

    node: Any
    path: str
    heads: int
    device: torch.device
    operands: tuple[Any, Any, Any]
    scale: float
    causal: bool

    @classmethod
    def of(cls, node: Any, backend: str) -> "NotedCall | None":
        """The call of a node; None if it cannot be noted."""
        given = dict(zip(ARGUMENTS, node.args, strict=False)) | node.kwargs
        operands = given["query"], given["key"], given.get("attn_mask")
        q, k, mask = (None if one is None else one.meta.get("example_value") for one in operands)
        if not (isinstance(q, Tensor) and isinstance(k, Tensor) and q.dim() == 4 and not q.is_nested):
            return None
        if operands[2] is not None and not isinstance(mask, Tensor):
            return None
        if not noting.can_note(q, None if mask is None else mask.dtype, backend):
            return None
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        scale = given.get("scale")
        scale = 1 / sqrt(q.shape[-1]) if scale is None else float(scale)
        path = stack[-1][0] if stack else ""
        return cls(node, path, int(q.shape[1]), q.device, operands, scale, bool(given.get("is_causal", False)))

    def put(self, graph: Any, held: list[Any], places: tuple[int, int, int], rows: int) -> None:
        """Have q and k pass through a note on their way to the call."""
        both = graph.graph.call_function(
            noting.noted, (*self.operands, tuple(held), places, rows, self.scale, self.causal)
        )
        fresh = [graph.graph.call_function(operator.getitem, (both, place)) for place in (0, 1)]
        for new, old in zip(fresh, self.operands, strict=False):
            new.meta["example_value"] = old.meta["example_value"]
        named = dict(zip(ARGUMENTS, fresh, strict=False))
        self.node.args = (*fresh, *self.node.args[2:])[: len(self.node.args)]
        self.node.kwargs = self.node.kwargs | {name: named[name] for name in named if name in self.node.kwargs}


def is_attention(node: Any) -> bool:
    """Whether a node of a graph is a call of PyTorch's attention."""
    return node.op == "call_function" and node.target is torch._C._nn.scaled_dot_product_attention


def may_attend(node: Any) -> bool:
    """Whether a node of a graph may be attention, or a part of it."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    calls = node.op in ("call_function", "call_method")
    return calls and ("attention" in name or "attn" in name or name in ("softmax", "_softmax"))


def name_at(path: str) -> str:
    """The name of a module from where Dynamo found it: L['self'].layers[0] is layers.0."""
    parts = r"\._(?:modules|parameters)\['([^']+)'\]|\['([^']+)'\]|\[(\d+)\]"
    return plain_name(re.sub(parts, r".\1\2\3", path.partition("]")[2]).strip("."))


def as_buffer(graph: Any, names: dict[str, Any], what: str, tensor: Tensor) -> Any:
    """A node that is a tensor of ours, as a buffer of the graph."""
    from torch._dynamo.source import ConstantSource

    name = f"isotherm_{what}"
    if not hasattr(graph, name):
        graph.register_buffer(name, tensor)
        names[name] = ConstantSource(name)
    return graph.graph.get_attr(name)
