"""What to do to a model for a rule: it runs once under the probe, and each layer's queries are followed to what makes them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from isotherm.checkup.changes import Members
from isotherm.checkup.examine import without_gradients
from isotherm.checkup.measure import Batch, Look, look
from isotherm.errors import ArgumentError, IsothermError
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.probe.frames import plain_name
from isotherm.setting.alone import other_uses
from isotherm.setting.at_call import AtCall
from isotherm.setting.places import OTHER_USE, Held, at_call, place_name, places, refused, where_told
from isotherm.setting.wanted import Request, by_query, factor_of, requested

Result = TypeVar("Result")
RUNS = Text("an input that the model runs on", "模型能够运行的输入")
NOTHING_SEEN = Text("a model whose attention can be seen ({why})", "能看到其注意力的模型（{why}）")
NO_ATTENTION = Text("no attention ran", "没有运行任何注意力")
ONE_PLACE = Text(
    "one factor for {layer} and the other layers that share {source}", "{layer} 与其他共用 {source} 的层取同一个倍数"
)


@dataclass(frozen=True)
class Plan:
    """What to do to a model: where to multiply by what, and the factors by layer, of so many `layers`. `queries` are the q of
    modules whose calls kept every row, by name."""

    held: tuple[Held, ...]
    factors: Mapping[int, float | Tensor]
    layers: int
    queries: Mapping[str, tuple[Tensor, ...]]


def plan(model: nn.Module, batch: Batch, requests: Sequence[Request]) -> Plan:
    """What to do to a model for the requests. It runs once, or twice where heads of a norm are told apart, and a copy runs
    twice where queries are to be multiplied before the call."""
    looked = ran(lambda: without_gradients(lambda: look(model, batch)))
    _refuse_unseen(looked, requests)
    captures = looked.captures
    chosen = list(requested(requests, captures))
    factors = {index: factor_of(model, captures[index], index, one) for index, one in chosen}
    _agree_where_shared(captures, factors)
    held = [*_constant(model, batch, captures, factors), *_by_query(model, captures, chosen)]
    return Plan(tuple(held), factors, len(captures), _queries(captures, held))


def ran(work: Callable[[], Result]) -> Result:
    """Do some work that runs a model. What its own code raises, which may be anything, becomes an error about the batch."""
    try:
        return work()
    except IsothermError:
        raise
    except Exception as error:
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise ArgumentError("batch", RUNS, got=got) from error


def _constant(
    model: nn.Module, batch: Batch, captures: Sequence[Capture], factors: Mapping[int, float | Tensor]
) -> Iterator[Held]:
    wanted = {index: factor for index, factor in factors.items() if isinstance(factor, Tensor) or factor != 1}
    told_apart = {where_told(captures[index], factor) for index, factor in wanted.items()}
    outputs = _outputs(model, batch, {name for name in told_apart if name is not None})
    members, done = Members(model), set[str]()
    placed: dict[int, list[Held]] = {}
    left: dict[int, ArgumentError] = {}
    for index, factor in wanted.items():
        source = place_name(captures[index])
        if source not in done:
            done.add(source)
            try:
                placed[index] = places(members, captures[index], factor, outputs)
            except ArgumentError as why:
                left[index] = why
    left |= {index: refused(captures[index], OTHER_USE) for index in other_uses(model, batch, captures, placed)}
    for index, held in placed.items():
        if index not in left:
            yield from held
    acting: dict[str, float | Tensor] = {}
    for index in left:
        name, factor = captures[index].name, wanted[index]
        if name not in acting:
            acting[name] = factor
            yield _at_call_instead(members, captures, index, factor, left)
        elif not _same(acting[name], factor):
            raise left[index]


def _at_call_instead(
    members: Members,
    captures: Sequence[Capture],
    index: int,
    factor: float | Tensor,
    left: Mapping[int, ArgumentError],
) -> Held:
    """What nothing before the call can be multiplied by, at the call itself. That multiplies all calls of the module, so they
    must be alike."""
    mine = captures[index]
    for other, capture in enumerate(captures):
        own_place = any(place_name(captures[one]) == place_name(capture) for one in left)
        alike = (capture.problem.scale, capture.problem.softcap) == (mine.problem.scale, mine.problem.softcap)
        if capture.name == mine.name and other != index and not (own_place and alike):
            raise left[index]
    try:
        return at_call(members, mine, factor)
    except ArgumentError:
        raise left[index] from None


def _by_query(model: nn.Module, captures: Sequence[Capture], chosen: Iterable[tuple[int, Request]]) -> Iterator[Held]:
    members, done = Members(model), set[str]()
    for index, request in chosen:
        rule, name = by_query(request, index), captures[index].name
        if rule is not None and name not in done:
            yield at_call(members, captures[index], rule, request.heads)
            done.add(name)


def _queries(captures: Sequence[Capture], held: Sequence[Held]) -> dict[str, tuple[Tensor, ...]]:
    """What was seen as q in the calls that something is to act in."""
    found: dict[str, tuple[Tensor, ...]] = {}
    for name in {one.by.layer for one in held if isinstance(one.by, AtCall)}:
        mine = [capture for capture in captures if capture.name == name]
        if all(capture.rows is None for capture in mine):
            found[name] = tuple(capture.problem.q for capture in mine)
    return found


def _refuse_unseen(looked: Look, requests: Sequence[Request]) -> None:
    """A layer that cannot be seen would silently stay as it is."""
    everywhere = any(request.pattern == "*" for request in requests)
    unseen = [one for one in looked.unseen if one.severity != "note"]
    if unseen and everywhere:
        name = unseen[0].name or unseen[0].module
        why = Text("{name}: {why}", "{name}：{why}").format(name=name, why=unseen[0].why)
        raise ArgumentError("model", NOTHING_SEEN.format(why=why), got=unseen[0].module)
    if not looked.captures:
        raise ArgumentError("model", NOTHING_SEEN.format(why=NO_ATTENTION), got="-")


def _agree_where_shared(captures: Sequence[Capture], factors: Mapping[int, float | Tensor]) -> None:
    """Layers may share a projection, which can be multiplied by one factor only."""
    first: dict[str, float | Tensor] = {}
    for index, capture in enumerate(captures):
        if capture.q_factor.kind == "untraced":
            continue
        mine = factors.get(index, 1.0)
        other = first.setdefault(place_name(capture), mine)
        if mine is not other and not _same(mine, other):
            source = capture.q_factor.norm or capture.q_factor.source
            raise ArgumentError("layers", ONE_PLACE.format(layer=capture.name, source=source), got=index)


def _same(one: float | Tensor, other: float | Tensor) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    return math.isclose(one, other, rel_tol=1e-3)


def _outputs(model: nn.Module, batch: Batch, names: set[str]) -> dict[str, Tensor]:
    """What these modules give in a forward."""
    found: dict[str, Tensor] = {}
    if not names:
        return found
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if plain_name(name) in names:
                stack.callback(module.register_forward_hook(_keep(found, plain_name(name))).remove)
        with torch.random.fork_rng():
            without_gradients(lambda: look(model, batch))
    return found


def _keep(found: dict[str, Tensor], name: str) -> Any:
    def keep(_module: nn.Module, _given: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            found.setdefault(name, output.detach())

    return keep
