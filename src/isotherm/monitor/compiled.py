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
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.monitor import noting
from isotherm.monitor.totals import SUMS, Key
from isotherm.probe.frames import plain_name

ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


SIZE = 2**16
"""Numbers in a pool: enough for 600 layers of 12 heads."""


@dataclass(frozen=True)
class Note:
    """Where in the pools one layer's calls are added up, and how many heads it has."""

    number: int
    offset: int
    heads: int


class Pools:
    """What all notes add up to, on one device: a few tensors, so that a step begins and ends with a few operations."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.armed = torch.zeros(1, dtype=torch.int32, device=device)
        self.sums = torch.zeros(SIZE, dtype=torch.float64, device=device)
        self.squares = torch.zeros(SIZE // 64, dtype=torch.float64, device=device)
        self._empty = torch.zeros_like(self.sums)
        """What the sums begin with: −inf for the largest logit."""
        self.used = 0
        self.number = noting.hold(self)

    def take(self, heads: int) -> int | None:
        """Room for a layer's state; None if there is none left."""
        offset, end = self.used, self.used + heads * (len(SUMS) + 1)
        if end > SIZE:
            return None
        for whole in (self._empty, self.sums.data):
            whole[end - heads : end] = -torch.inf
        self.used = end
        return offset

    def switch(self, *, on: bool) -> None:
        """Say on the device whether notes are taken. Autograd must not count it as a change, here and below: code that was
        compiled in parts keeps these tensors for its backward pass, while later parts are still compiled."""
        self.armed.data.fill_(int(on))

    def clear(self) -> None:
        """Begin again from nothing."""
        self.sums.data[: self.used].copy_(self._empty[: self.used])
        self.squares.data.zero_()


class NoteBook:
    """The notes in the compiled code of one model."""

    @classmethod
    def of(cls, model: nn.Module, rows: int | None) -> "NoteBook":
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
        self._pools: Pools | None = None
        self._on = False
        self._names = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
        classes = Counter(map(type, model.modules()))
        self._repeated = {
            f"{plain_name(name)}." for name, one in model.named_modules() if classes[type(one)] > 1 and name
        }
        """The names of modules of whose class there are others, as they begin the names of what is inside."""

    @property
    def heads(self) -> list[int]:
        """The heads of each layer, in the order in which they were compiled, which is that of the calls."""
        return [note.heads for note in self._notes.values()]

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
        return {key: note.heads for key, note in self._notes.items()}

    def cover(self, table: dict[Key, int]) -> bool:
        """Whether every layer of a table has a note."""
        return bool(table) and not self.silent and self.heads == list(table.values())

    def lacks(self, model: nn.Module) -> bool:
        """Whether modules of a class that has notes have none: they did not run, or were kept from the compiler."""
        classes = {plain_name(name): type(one) for name, one in model.named_modules()}
        noted = {name for name, _ in self._notes}
        known = {classes[name] for name in noted & classes.keys()}
        return any(one in known and name not in noted for name, one in classes.items())

    def packed(self) -> list[Tensor]:
        """What the notes have added up to: the states one after another, and two squares for each."""
        assert self._pools is not None
        return [self._pools.sums[: self._pools.used], self._pools.squares[: 2 * len(self._notes)]]

    def reached(self) -> bool:
        """Whether compiled code has run since the notes were armed, as far as can be known without waiting for a device."""
        pools = self._pools
        if pools is None or pools.device.type != "cpu":
            return True
        return bool((pools.sums[: pools.used] > 0).any())

    def arm(self) -> None:
        """Begin to add up from nothing."""
        self._on = True
        if self._pools is not None:
            self._pools.clear()
            self._pools.switch(on=True)

    def disarm(self) -> None:
        """Add up no longer."""
        self._on = False
        if self._pools is not None:
            self._pools.switch(on=False)

    def wants(self, inputs: Sequence[Any]) -> bool:
        """Whether a graph with these inputs trains the model."""
        return torch.is_grad_enabled() and any(map(self.owns, inputs))

    def owns(self, one: Any) -> bool:
        """Whether this is a parameter of the model."""
        return id(one) in self._names

    def annotate(self, graph: Any, names: dict[str, Any], inputs: Sequence[Any], backend: str = "inductor") -> bool:
        """Put notes into a graph of Dynamo's. `names` says where its tensors come from, `backend` what compiles it.

        False if it is to serve several modules, such as the layers of a model that are compiled one by one: with notes, each
        would need code of its own.
        """
        where = self._place(graph, inputs)
        if where in self._repeated:
            self.others = True
            return False
        nodes = [node for part in graph.modules() if hasattr(part, "graph") for node in part.graph.nodes]
        calls = [NotedCall.of(node, backend) for node in graph.graph.nodes if _is_attention(node)]
        found = [call for call in calls if call is not None]
        self.others |= sum(map(_may_attend, nodes)) > len(found)
        seen: Counter[str] = Counter()
        for call in found:
            note = self._note((where + _name(call.path), seen[call.path]), call.heads, call.device)
            seen[call.path] += 1
            if note is None or self._pools is None:
                self.others = True
                continue
            tensors = {"armed": self._pools.armed, "sums": self._pools.sums, "squares": self._pools.squares}
            with graph.graph.inserting_before(call.node):
                held = [_hold(graph, names, f"{what}_{id(it):x}", it) for what, it in tensors.items()]
                call.put(graph, held, (note.offset, 2 * note.number, self._pools.number), self.rows or 0)
        graph.recompile()
        return True

    def _place(self, graph: Any, inputs: Sequence[Any]) -> str:
        """What the names of the graph's modules lack to be those of the model, where a part of it is compiled by itself."""
        for node, given in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=False):
            whole, known = self._names.get(id(given)), node.meta.get("grapharg")
            source = getattr(known, "source", None)
            if whole is not None and source is not None:
                name = source.name if isinstance(source.name, str) else source.name()
                own = _name(name)
                if whole.endswith(f".{own}"):
                    return whole[: -len(own)]
                if whole == own:
                    return ""
        return ""

    def _note(self, key: tuple[str, int], heads: int, device: torch.device) -> Note | None:
        self._pools = self._pools or Pools(device)
        if self._on:
            self._pools.switch(on=True)
        known = self._notes.get(key)
        if self._pools.device != device or (known is not None and known.heads != heads):
            return None
        if known is None:
            offset = self._pools.take(heads)
            if offset is None or 2 * len(self._notes) + 2 > len(self._pools.squares):
                return None
            known = self._notes[key] = Note(len(self._notes), offset, heads)
        return known


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


def _is_attention(node: Any) -> bool:
    return node.op == "call_function" and node.target is torch._C._nn.scaled_dot_product_attention


def _may_attend(node: Any) -> bool:
    """Whether a node of a graph may be attention, or a part of it."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    calls = node.op in ("call_function", "call_method")
    return calls and ("attention" in name or "attn" in name or name in ("softmax", "_softmax"))


def _name(path: str) -> str:
    """The name of a module from where Dynamo found it: L['self'].layers[0] is layers.0."""
    parts = r"\._(?:modules|parameters)\['([^']+)'\]|\['([^']+)'\]|\[(\d+)\]"
    return plain_name(re.sub(parts, r".\1\2\3", path.partition("]")[2]).strip("."))


def _hold(graph: Any, names: dict[str, Any], what: str, tensor: Tensor) -> Any:
    """A node that is a tensor of ours, as a buffer of the graph."""
    from torch._dynamo.source import ConstantSource

    name = f"isotherm_{what}"
    if not hasattr(graph, name):
        graph.register_buffer(name, tensor)
        names[name] = ConstantSource(name)
    return graph.graph.get_attr(name)


_kept: "weakref.WeakKeyDictionary[nn.Module, dict[int | None, NoteBook]]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_listeners: list[NoteBook] = []
_original: list[Any] = []


def _listen(notes: NoteBook) -> None:
    from torch._dynamo.output_graph import OutputGraph

    with _lock:
        _listeners.append(notes)
        if not _original:
            _original.append(OutputGraph.call_user_compiler)
            OutputGraph.call_user_compiler = _compile  # type: ignore[method-assign, assignment]


def _leave(notes: NoteBook) -> None:
    from torch._dynamo.output_graph import OutputGraph

    with _lock:
        _listeners.remove(notes)
        if not _listeners and OutputGraph.call_user_compiler is _compile:
            OutputGraph.call_user_compiler = _original.pop()  # type: ignore[method-assign]


def _keep_apart(dynamo: Any, graph: Any, inputs: Sequence[Any], notes: NoteBook) -> None:
    """Have a graph serve either our model or others of its class: parameters are inputs of a graph, so each would run what was
    compiled for the other, with notes or without."""
    from torch._dynamo.guards import GuardBuilder

    ours = any(map(notes.owns, inputs))
    guard = GuardBuilder.ID_MATCH if ours else partial(_belongs_to_others, weakref.ref(notes))
    for node, given in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=False):
        if isinstance(given, nn.Parameter) and notes.owns(given) == ours and "grapharg" in node.meta:
            dynamo.guards.add(node.meta["grapharg"].source.make_guard(guard))
            return


def _belongs_to_others(notes: "weakref.ref[NoteBook]", builder: Any, guard: Any) -> None:
    """A guard that parameters of the model do not pass."""

    def passes(value: Any) -> bool:
        known = notes()
        return known is None or not known.owns(value)

    with suppress(Exception):  # another version of PyTorch: at worst the model is looked at uncompiled
        builder.get_guard_manager(guard).add_lambda_guard(
            passes, ["no parameter of the watched model"], guard.user_stack
        )


def _compile(dynamo: Any, graph: Any, *given: Any) -> Any:
    """Put notes into a graph, and compile it. PyTorch passes the graph's inputs from 2.8 on."""
    backend = getattr(dynamo.compiler_fn, "_compiler_name", "inductor")
    for notes in list(_listeners):
        wanted = False
        try:
            inputs = given[0] if given else dynamo.example_inputs()
            wanted = notes.wants(inputs)
            noted = wanted and notes.annotate(graph, dynamo.param_name_to_source, inputs, backend)
            if noted or not any(map(notes.owns, inputs)):
                _keep_apart(dynamo, graph, inputs, notes)
        except Exception:  # compiling goes on, and steps are looked at uncompiled
            notes.others |= wanted
    return _original[0](dynamo, graph, *given)
