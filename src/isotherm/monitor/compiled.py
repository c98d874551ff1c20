"""Compiled code that is watched while it runs compiled.

`torch.compile` calls Dynamo, which hands each graph that it has made to a backend. Between the two (`dynamo`), a note is put at
every call of `F.scaled_dot_product_attention` in a graph that trains the model (`graphs`): an operator that looks at q and k,
and one that looks at their gradients (`noting`). What was compiled before the monitor began has no notes, nor have calls inside
checkpoints, flex attention, or attention by hand; then steps are looked at uncompiled (`looking`).
"""

import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.monitor import dynamo, noting
from isotherm.monitor.graphs import NotedCall, as_buffer, is_attention, may_attend, name_at
from isotherm.monitor.totals import SUMS, Key
from isotherm.probe.frames import plain_name

SIZE = 2**16
"""Numbers in a pool: enough for 600 layers of 12 heads."""
NO_GRADIENT = -0.0
"""What the squares begin with. Any square that is added, 0 too, makes it positive."""


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
        self.squares = torch.full((SIZE // 64,), NO_GRADIENT, dtype=torch.float64, device=device)
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
        self.squares.data.fill_(NO_GRADIENT)


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
        return dynamo.is_shown_to(self)

    def listen(self) -> None:
        """Begin to note what is compiled from now on, if the compiler has been loaded."""
        if not self.listening and "torch._dynamo.output_graph" in sys.modules:
            dynamo.listen(self)

    def stop(self) -> None:
        """Note no more. Compiled code keeps its notes, which do nothing."""
        self.disarm()
        if self.listening:
            dynamo.leave(self)

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
        calls = [NotedCall.of(node, backend) for node in graph.graph.nodes if is_attention(node)]
        found = [call for call in calls if call is not None]
        self.others |= sum(map(may_attend, nodes)) > len(found)
        seen: Counter[str] = Counter()
        for call in found:
            note = self._note((where + name_at(call.path), seen[call.path]), call.heads, call.device)
            seen[call.path] += 1
            if note is None or self._pools is None:
                self.others = True
                continue
            tensors = {"armed": self._pools.armed, "sums": self._pools.sums, "squares": self._pools.squares}
            with graph.graph.inserting_before(call.node):
                held = [as_buffer(graph, names, f"{what}_{id(it):x}", it) for what, it in tensors.items()]
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
                own = name_at(name)
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


_kept: "weakref.WeakKeyDictionary[nn.Module, dict[int | None, NoteBook]]" = weakref.WeakKeyDictionary()
