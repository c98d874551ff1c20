"""Isotherm's own `attention`, seen where every call of it passes: between the rule's answer and the kernel."""

import functools
from typing import Any

from torch import Tensor

from isotherm.ops import Problem, api
from isotherm.probe.masks import Terms
from isotherm.probe.patches import Patches
from isotherm.probe.session import Call, Session


def attach(session: Session, patches: Patches) -> None:
    """Wrap the two steps that every call takes, whatever name `attention` was imported under."""
    solve, with_sink = api._solve, api._with_sink
    pending: list[Problem] = []

    @functools.wraps(solve)
    def solve_seen(name: str, problem: Problem, **options: Any) -> Any:
        if not session.awake:
            return solve(name, problem, **options)
        pending[:] = [problem]
        with session.inside():
            return solve(name, problem, **options)

    @functools.wraps(with_sink)
    def with_sink_seen(result: Any, sink: Tensor | None) -> Any:
        if session.awake and pending:
            with session.aside():
                session.capture(_call(pending.pop(), sink))
        return with_sink(result, sink)

    patches.attribute(api, "_solve", solve_seen)
    patches.attribute(api, "_with_sink", with_sink_seen)


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
        first=seen.places[0] if seen.places else 0,
        window=seen.window,
        softcap=problem.softcap,
        sink=sink,
    )
