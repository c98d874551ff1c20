"""Capture calls of Isotherm's own `attention`, through its list of observers."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor

from isotherm.ops import Problem
from isotherm.ops.observers import observers
from isotherm.probe.call import Call
from isotherm.probe.masks import Terms
from isotherm.probe.owner import Place, sessions_here
from isotherm.probe.session import Session


class Observed(Place):
    """The list of observers, with one observer for all probes while any is open."""

    def __init__(self) -> None:
        self.key = id(observers), "observers"

    def replace(self) -> None:
        """Add the observer."""
        if _observe not in observers:
            observers.append(_observe)

    def restore(self) -> None:
        """Remove the observer."""
        if _observe in observers:
            observers.remove(_observe)


@contextmanager
def _observe(problem: Problem, sink: Tensor | None) -> Iterator[None]:
    with ExitStack() as stack:
        for session in tuple(sessions_here()):
            stack.enter_context(_look(session, problem, sink))
        yield


@contextmanager
def _look(session: Session, problem: Problem, sink: Tensor | None) -> Iterator[None]:
    if not session.awake:
        yield
        return
    with session.captured_call():
        yield
    with session.own_work():
        session.capture(_call(problem, sink))


def _call(problem: Problem, sink: Tensor | None) -> Call:
    seen = problem.visibility
    return Call(
        implementation="isotherm",
        q=problem.q,
        k=problem.k,
        scale=problem.scale,
        passed=problem.scale,
        terms=Terms(seen.mask, None if problem.bias is None else problem.bias.detach()),
        causal=seen.causal,
        first=seen.position_list[0] if seen.position_list else 0,
        window=seen.window,
        softcap=problem.softcap,
        sink=sink,
    )
