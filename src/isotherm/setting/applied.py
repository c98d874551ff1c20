"""`isotherm.apply`: put a rule on a model that is in use, and take it off again."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from isotherm.checkup.examine import without_gradients
from isotherm.checkup.given import prepare
from isotherm.checkup.implementations import taking_turns
from isotherm.checkup.loading.hub import folder_of
from isotherm.checkup.loading.loaded import Loaded
from isotherm.checkup.measure import Batch, call
from isotherm.checkup.wrappers import called
from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.setting.at_call import AtCall, Missed
from isotherm.setting.places import Held
from isotherm.setting.plan import NOTHING_SEEN, Plan, plan
from isotherm.setting.scaled import hold, release
from isotherm.setting.wanted import Wanted, Where, read

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
    - `batch`: what to run the model, and copies of it, on, to see its attention; as `isotherm.check` takes it. Models of
      transformers need none.

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


def put(model: nn.Module, batch: Batch, planned: Plan) -> Applied:
    """Do what is planned. Where something acts at a call, the model runs once before: a call in which it cannot is told now."""
    at_calls = [one for one in planned.held if isinstance(one.by, AtCall)]
    if at_calls:
        _try(model, batch, at_calls, planned.queries)
    return Applied(planned.held)


def _try(model: nn.Module, batch: Batch, at_calls: Sequence[Held], queries: Mapping[str, tuple[Tensor, ...]]) -> None:
    """Run the model once, in which each call looks for what it is to multiply, and leaves it."""
    changes = [one.by for one in at_calls if isinstance(one.by, AtCall)]
    for change in changes:
        change.tried = queries.get(change.layer)
    try:
        with Applied(at_calls), torch.random.fork_rng():
            without_gradients(lambda: call(model, batch))
    except Missed as error:
        raise ArgumentError("model", NOTHING_SEEN.format(why=error.text), got=type(model).__name__) from None
    finally:
        for change in changes:
            change.tried = None


def batch_for(model: nn.Module) -> list[list[int]] | None:
    """Ids for a model of transformers that reads some; None for other models. Any will do: only q, k and where these come from
    are looked at."""
    if getattr(model, "main_input_name", None) != "input_ids":
        return None
    try:
        known = int(model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    except (AttributeError, TypeError, NotImplementedError):
        return None
    positions = getattr(model.config, "max_position_embeddings", None)
    length = min(TOKENS, positions) if isinstance(positions, int) and positions > 0 else TOKENS
    ids: list[list[int]] = torch.randint(known, (1, length), generator=torch.Generator().manual_seed(0)).tolist()
    return ids
