"""Where Dynamo is entered: between a graph that it has made and the backend that compiles it."""

import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from torch import nn


class GraphListener(Protocol):
    """Who is shown the graphs."""

    others: bool

    def wants(self, inputs: Sequence[Any]) -> bool: ...
    def owns(self, one: Any) -> bool: ...
    def annotate(self, graph: Any, names: dict[str, Any], inputs: Sequence[Any], backend: str) -> bool: ...


_lock = threading.Lock()
_listeners: list[GraphListener] = []
_original: list[Any] = []
"""What ours stands in for. It stays when the last listener has left: another thread may be compiling."""
_installed: list[bool] = []


def is_shown_to(notes: GraphListener) -> bool:
    """Whether these notes are shown what is compiled."""
    return notes in _listeners


def listen(notes: GraphListener) -> None:
    """Show these notes what is compiled from now on."""
    from torch._dynamo.output_graph import OutputGraph

    with _lock:
        _listeners.append(notes)
        if not _installed:
            _installed.append(True)
            _original[:] = [OutputGraph.call_user_compiler]
            OutputGraph.call_user_compiler = _compile  # type: ignore[method-assign, assignment]


def leave(notes: GraphListener) -> None:
    """Show them no more. The last one leaves the compiler as it was."""
    from torch._dynamo.output_graph import OutputGraph

    with _lock:
        _listeners.remove(notes)
        if not _listeners and OutputGraph.call_user_compiler is _compile:
            OutputGraph.call_user_compiler = _original[0]  # type: ignore[method-assign]
            _installed.clear()


def _keep_apart(dynamo: Any, graph: Any, inputs: Sequence[Any], notes: GraphListener) -> None:
    """Have a graph serve either our model or others of its class: parameters are inputs of a graph, so each would run what was
    compiled for the other, with notes or without."""
    from torch._dynamo.guards import GuardBuilder

    ours = any(map(notes.owns, inputs))
    guard = GuardBuilder.ID_MATCH if ours else partial(_belongs_to_others, weakref.ref(notes))
    for node, given in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=False):
        if isinstance(given, nn.Parameter) and notes.owns(given) == ours and "grapharg" in node.meta:
            dynamo.guards.add(node.meta["grapharg"].source.make_guard(guard))
            return


def _belongs_to_others(notes: "weakref.ref[GraphListener]", builder: Any, guard: Any) -> None:
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
