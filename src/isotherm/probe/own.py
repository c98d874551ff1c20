"""Isotherm's own `attention`, seen through its list of observers."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from isotherm.ops import Problem
from isotherm.ops.observers import observers
from isotherm.probe.masks import Terms
from isotherm.probe.session import Call, Session


@contextmanager
def attach(session: Session) -> Iterator[None]:
    """Capture every call of `attention` in this block."""

    @contextmanager
    def observe(problem: Problem, sink: Tensor | None) -> Iterator[None]:
        if not session.awake:
            yield
            return
        with session.inside():
            yield
        with session.aside():
            session.capture(_call(problem, sink))

    observers.append(observe)
    try:
        yield
    finally:
        observers.remove(observe)


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
