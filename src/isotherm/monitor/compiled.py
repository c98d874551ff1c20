# mypy: disable-error-code="attr-defined"
"""Compiled code that is watched while it runs compiled.

`torch.compile` calls Dynamo, which hands each graph that it has made to a backend. Between the two, a note is put at every call
of `F.scaled_dot_product_attention` in a graph that trains the model: an operator that looks at q and k, and one that looks at
their gradients (`noting`). What was compiled before the monitor began has no notes, nor have calls inside checkpoints, flex
attention, or attention by hand; then steps are looked at uncompiled (`looking`).
"""

import operator
import re
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.monitor import noting
from isotherm.monitor.looking import SUMS, Key, LayerTotals

ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


@dataclass
class Note:
    """What one layer's calls have added up to in compiled code, on its device."""

    state: Tensor
    squares: Tensor

    @property
    def totals(self) -> LayerTotals:
        """As an eager look would have found it."""
        sums = self.state.clone()
        squares = self.squares.clone()
        return LayerTotals(sums[: len(SUMS)], sums[-1], {"q": [squares[0]], "k": [squares[1]]})


class Notes:
    """The notes in the compiled code of one model."""

    @classmethod
    def of(cls, model: nn.Module, rows: int | None) -> "Notes":
        """The notes of a model. Those that its compiled code has got from an earlier monitor of as many rows are used again."""
        core = getattr(model, "_orig_mod", model)
        return _kept.setdefault(core, {}).setdefault(rows, cls(core, rows))

    def __init__(self, model: nn.Module, rows: int | None) -> None:
        self.rows = rows
        self.others = False
        """Whether the compiled code may hold attention without a note."""
        self.silent = False
        """Whether a step was looked at and no note was reached."""
        self._notes: dict[tuple[str, int], Note] = {}
        self._flags: dict[torch.device, Tensor] = {}
        self._on = False
        self._ours = {id(parameter) for parameter in model.parameters()}

    @property
    def all(self) -> list[Note]:
        """In the order in which they were compiled, which is that of the calls."""
        return list(self._notes.values())

    @property
    def listening(self) -> bool:
        """Whether what is compiled now gets notes."""
        return self in _listeners

    def listen(self) -> None:
        """Begin to note what is compiled from now on, if the compiler has been loaded."""
        if not self.listening and "torch._dynamo.output_graph" in sys.modules:
            _listen(self)

    def stop(self) -> None:
        """Note no more. Compiled code keeps its notes, which do nothing."""
        self.disarm()
        if self.listening:
            _leave(self)

    def table(self) -> dict[Key, int]:
        """The layers by the names of their modules, with their numbers of heads."""
        return {(_name(path), call): note.state.shape[1] for (path, call), note in self._notes.items()}

    def cover(self, table: dict[Key, int]) -> bool:
        """Whether every layer of a table has a note."""
        return bool(table) and not self.silent and [note.state.shape[1] for note in self.all] == list(table.values())

    def reached(self) -> bool:
        """Whether compiled code has run since the notes were armed, as far as can be known without waiting for a device."""
        states = [note.state for note in self.all]
        return not states or any(state.device.type != "cpu" or bool(state[0].any()) for state in states)

    def arm(self) -> None:
        """Begin to add up from nothing."""
        self._switch(True)
        if self._notes:
            states = [note.state for note in self.all]
            torch._foreach_zero_([*states, *(note.squares for note in self.all)])
            torch._foreach_sub_([state[-1] for state in states], torch.inf)

    def disarm(self) -> None:
        """Add up no longer."""
        self._switch(False)

    def _switch(self, on: bool) -> None:
        self._on = on
        for flag in self._flags.values():
            flag.fill_(on)

    def wants(self, inputs: Sequence[Any]) -> bool:
        """Whether a graph with these inputs trains the model."""
        return torch.is_grad_enabled() and any(id(one) in self._ours for one in inputs)

    def annotate(self, graph: Any, names: dict[str, Any]) -> None:
        """Put notes into a graph of Dynamo's. `names` says where its tensors come from."""
        nodes = [node for part in graph.modules() if hasattr(part, "graph") for node in part.graph.nodes]
        calls = [NotedCall.of(node) for node in graph.graph.nodes if _is_attention(node)]
        found = [call for call in calls if call is not None]
        self.others |= sum(map(_may_attend, nodes)) > len(found)
        seen: Counter[str] = Counter()
        for call in found:
            note = self._note((call.path, seen[call.path]), call.heads, call.device)
            seen[call.path] += 1
            held = {"armed": self._flag(call.device), "state": note.state, "squares": note.squares}
            with graph.graph.inserting_before(call.node):
                call.put(graph, [_hold(graph, names, f"{what}_{id(it):x}", it) for what, it in held.items()], self.rows)
        graph.recompile()

    def _note(self, key: tuple[str, int], heads: int, device: torch.device) -> Note:
        note = self._notes.get(key)
        if note is None or note.state.shape[1] != heads or note.state.device != device:
            state = torch.zeros(len(SUMS) + 1, heads, dtype=torch.float64, device=device)
            note = self._notes[key] = Note(state, torch.zeros(2, dtype=torch.float64, device=device))
        return note

    def _flag(self, device: torch.device) -> Tensor:
        if device not in self._flags:
            self._flags[device] = torch.full((1,), int(self._on), dtype=torch.int32, device=device)
        return self._flags[device]


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
    def of(cls, node: Any) -> "NotedCall | None":
        """The call of a node; None if it cannot be noted."""
        given = dict(zip(ARGUMENTS, node.args, strict=False)) | node.kwargs
        operands = given["query"], given["key"], given.get("attn_mask")
        q, k, mask = (None if one is None else one.meta.get("example_value") for one in operands)
        if not (isinstance(q, Tensor) and isinstance(k, Tensor) and q.dim() == 4 and not q.is_nested):
            return None
        if operands[2] is not None and not isinstance(mask, Tensor):
            return None
        if not noting.can_note(q, None if mask is None else mask.dtype):
            return None
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        scale = given.get("scale")
        scale = 1 / sqrt(q.shape[-1]) if scale is None else float(scale)
        path = stack[-1][0] if stack else ""
        return cls(node, path, int(q.shape[1]), q.device, operands, scale, bool(given.get("is_causal", False)))

    def put(self, graph: Any, held: list[Any], rows: int | None) -> None:
        """Have q and k pass through a note on their way to the call."""
        both = graph.graph.call_function(noted, (*self.operands, *held, self.scale, self.causal, rows or 0))
        fresh = [graph.graph.call_function(operator.getitem, (both, place)) for place in (0, 1)]
        for new, old in zip(fresh, self.operands, strict=False):
            new.meta["example_value"] = old.meta["example_value"]
        named = dict(zip(ARGUMENTS, fresh, strict=False))
        self.node.args = (*fresh, *self.node.args[2:])[: len(self.node.args)]
        self.node.kwargs = self.node.kwargs | {name: named[name] for name in named if name in self.node.kwargs}


class Through(torch.autograd.Function):
    """Hands q and k on as they are, and notes their gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, armed: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(armed, squares)
        return q.view_as(q), k.view_as(k)

    @staticmethod
    def backward(ctx: Any, g_q: Tensor, g_k: Tensor) -> tuple[Tensor, Tensor, None, None]:
        torch.ops.isotherm.note_gradient(g_q, g_k, *ctx.saved_tensors)
        return g_q, g_k, None, None


def noted(
    q: Tensor, k: Tensor, mask: Tensor | None, armed: Tensor, state: Tensor, squares: Tensor,
    scale: float, causal: bool, rows: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q and k, noted."""
    seen = None if mask is None else mask.detach()
    torch.ops.isotherm.note(q.detach(), k.detach(), seen, armed, state, scale, causal, rows)
    return Through.apply(q, k, armed, squares)  # type: ignore[no-untyped-call]


def _is_attention(node: Any) -> bool:
    return node.op == "call_function" and node.target is torch._C._nn.scaled_dot_product_attention


def _may_attend(node: Any) -> bool:
    """Whether a node of a graph may be attention, or a part of it."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    calls = node.op in ("call_function", "call_method")
    return calls and ("attention" in name or "attn" in name or name in ("softmax", "_softmax"))


def _name(path: str) -> str:
    """The name of a module from where Dynamo found it: L['self'].layers[0] is layers.0."""
    plain = re.sub(r"\._modules\['([^']+)'\]|\['([^']+)'\]|\[(\d+)\]", r".\1\2\3", path.partition("]")[2])
    return plain.strip(".").removeprefix("_orig_mod.")


def _hold(graph: Any, names: dict[str, Any], what: str, tensor: Tensor) -> Any:
    """A node that is a tensor of ours, as a buffer of the graph."""
    from torch._dynamo.source import ConstantSource

    name = f"isotherm_{what}"
    if not hasattr(graph, name):
        graph.register_buffer(name, tensor)
        names[name] = ConstantSource(name)
    return graph.graph.get_attr(name)


_kept: "weakref.WeakKeyDictionary[nn.Module, dict[int | None, Notes]]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_listeners: list[Notes] = []
_original: list[Any] = []


def _listen(notes: Notes) -> None:
    from torch._dynamo.output_graph import OutputGraph

    with _lock:
        _listeners.append(notes)
        if not _original:
            _original.append(OutputGraph.call_user_compiler)
            OutputGraph.call_user_compiler = _compile  # type: ignore[method-assign, assignment]


def _leave(notes: Notes) -> None:
    from torch._dynamo.output_graph import OutputGraph

    with _lock:
        _listeners.remove(notes)
        if not _listeners and OutputGraph.call_user_compiler is _compile:
            OutputGraph.call_user_compiler = _original.pop()  # type: ignore[method-assign]


def _compile(dynamo: Any, graph: Any, inputs: list[Any]) -> Any:
    for notes in list(_listeners):
        if notes.wants(inputs):
            try:
                notes.annotate(graph, dynamo.param_name_to_source)
            except Exception:  # compiling goes on, and steps are looked at uncompiled
                notes.others = True
    return _original[0](dynamo, graph, inputs)
