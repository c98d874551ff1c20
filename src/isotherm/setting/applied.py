"""`isotherm.apply`: put a rule on a model that is in use, and take it off again."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from isotherm.checkup.changes import Members, plain
from isotherm.checkup.examine import without_gradients
from isotherm.checkup.given import prepare
from isotherm.checkup.implementations import taking_turns
from isotherm.checkup.loading.hub import folder_of
from isotherm.checkup.loading.loaded import Loaded
from isotherm.checkup.measure import Batch, Look, call, look
from isotherm.checkup.wrappers import called
from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.setting.at_call import AtCall, Missed
from isotherm.setting.places import Held, at_call, places
from isotherm.setting.scaled import hold, release
from isotherm.setting.wanted import Request, Wanted, Where, by_query, factor_of, read, requested

NOTHING_SEEN = Text("a model whose attention can be seen ({why})", "能看到其注意力的模型（{why}）")
NO_ATTENTION = Text("no attention ran", "没有运行任何注意力")
ONE_PLACE = Text(
    "one factor for {layer} and the other layers that share {source}", "{layer} 与其他共用 {source} 的层取同一个系数"
)

TOKENS = 24
"""How many tokens a model is shown in order to see its attention."""


class Applied:
    """A rule on a model, until `remove` is called or the block of a `with` statement ends."""

    def __init__(self, held: Sequence[Held]) -> None:
        self._held = tuple(held)
        for one in self._held:
            hold(one.module, one.by)

    def remove(self) -> None:
        """Leave the model as it was. Calling it again does nothing."""
        for one in self._held:
            release(one.module, one.by)
        self._held = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def apply(
    model: nn.Module,
    rule: Wanted,
    *,
    layers: Where = None,
    heads: int | Sequence[int] | None = None,
    batch: Any = None,
) -> Applied:
    """Put a rule on the attention of `model`: its logits become what the rule makes of q·k.

    `rule` is a rule, a number, or what `isotherm rules` shows: `"1/sqrt(d)"` sets the scale, `"x0.5"` multiplies the scale in
    force. A mapping from layer patterns (names, or an index as text; of several that match, the last decides) gives each layer
    a rule of its own, or a tensor: a factor on the scale in force for the layer, or [heads] for its heads. The tensor may
    require a gradient, and may be changed in place.

    - `layers`: the only layers to put the rule on: names, patterns or indices.
    - `heads`: the only heads.
    - `batch`: what to run the model on once, to see its attention; as `isotherm.check` takes it. Models of transformers need
      none.

    The result takes the rule off with `remove()`, or at the end of a `with` block. Nothing is done to layers whose scale in
    force is the rule's already.

    >>> with isotherm.apply(model, "x0.5", layers=[3]):          # doctest: +SKIP
    ...     model.generate(**inputs)
    """
    requests = read(rule, layers, heads)
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", Text("a torch.nn.Module", "一个 torch.nn.Module"), got=type(model).__name__)
    given = batch_for(model) if batch is None else batch
    prepared = prepare(Loaded(model, called(model), "python", folder_of(model)), given)
    with taking_turns(model):
        return put(model, prepared, plan(model, prepared, requests))


def put(model: nn.Module, batch: Batch, planned: "Plan") -> Applied:
    """Do what is planned. Where something acts at a call, the model runs once: a call in which it cannot is told now."""
    applied = Applied(planned.held)
    if not any(isinstance(one.by, AtCall) for one in planned.held):
        return applied
    try:
        with torch.random.fork_rng():
            without_gradients(lambda: call(model, batch))
    except BaseException as error:
        applied.remove()
        if isinstance(error, Missed):
            raise ArgumentError("model", NOTHING_SEEN.format(why=error.text), got=type(model).__name__) from None
        raise
    return applied


def batch_for(model: nn.Module) -> list[list[int]] | None:
    """Ids for a model of transformers that reads some; None for other models. Any will do: only q, k and where these come from
    are looked at."""
    if getattr(model, "main_input_name", None) != "input_ids":
        return None
    try:
        known = int(model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    except (AttributeError, TypeError, NotImplementedError):
        return None
    ids: list[list[int]] = torch.randint(known, (1, TOKENS), generator=torch.Generator().manual_seed(0)).tolist()
    return ids


@dataclass(frozen=True)
class Plan:
    """What to do to a model: where to multiply by what, and the factors by layer, of so many `layers`."""

    held: tuple[Held, ...]
    factors: Mapping[int, float | Tensor]
    layers: int


def plan(model: nn.Module, batch: Batch, requests: Sequence[Request]) -> Plan:
    """What to do to a model for the requests. It runs once, or twice where heads of a norm are told apart."""
    looked = without_gradients(lambda: look(model, batch))
    _refuse_unseen(looked, requests)
    captures = looked.captures
    chosen = list(requested(requests, captures))
    factors = {index: factor_of(model, captures[index], index, one) for index, one in chosen}
    _agree_where_shared(captures, factors)
    held = [*_constant(model, batch, captures, factors), *_by_query(model, captures, chosen)]
    return Plan(tuple(held), factors, len(captures))


def _constant(
    model: nn.Module, batch: Batch, captures: Sequence[Capture], factors: Mapping[int, float | Tensor]
) -> Iterator[Held]:
    wanted = {index: factor for index, factor in factors.items() if isinstance(factor, Tensor) or factor != 1}
    by_head = [index for index, factor in wanted.items() if isinstance(factor, Tensor) and factor.numel() > 1]
    norms = {captures[index].q_factor.norm for index in by_head}
    outputs = _outputs(model, batch, {norm for norm in norms if norm is not None})
    members, done = Members(model), set[str]()
    for index, factor in wanted.items():
        source = _place_name(captures[index])
        if source not in done:
            yield from _placed(members, captures[index], factor, outputs)
            done.add(source)


def _placed(members: Members, capture: Capture, factor: float | Tensor, outputs: dict[str, Tensor]) -> list[Held]:
    """Before the call if possible, else at the call."""
    try:
        return list(places(members, capture, factor, outputs))
    except ArgumentError as why:
        try:
            return [at_call(members, capture, factor)]
        except ArgumentError:
            raise why from None


def _by_query(model: nn.Module, captures: Sequence[Capture], chosen: Iterable[tuple[int, Request]]) -> Iterator[Held]:
    members, done = Members(model), set[str]()
    for index, request in chosen:
        rule, name = by_query(request, index), captures[index].name
        if rule is not None and name not in done:
            yield at_call(members, captures[index], rule, request.heads)
            done.add(name)


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


def _place_name(capture: Capture) -> str:
    q = capture.q_factor
    return f"{q.norm or ''}|{q.source or capture.name}|{q.layout}"


def _agree_where_shared(captures: Sequence[Capture], factors: Mapping[int, float | Tensor]) -> None:
    """Layers may share a projection, which can be multiplied by one factor only."""
    first: dict[str, float | Tensor] = {}
    for index, capture in enumerate(captures):
        if capture.q_factor.kind == "untraced":
            continue
        mine = factors.get(index, 1.0)
        other = first.setdefault(_place_name(capture), mine)
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
            if plain(name) in names:
                stack.callback(module.register_forward_hook(_keep(found, plain(name))).remove)
        with torch.random.fork_rng():
            without_gradients(lambda: look(model, batch))
    return found


def _keep(found: dict[str, Tensor], name: str) -> Any:
    def keep(_module: nn.Module, _given: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            found.setdefault(name, output.detach())

    return keep
