"""Fold a factor into weights: which parameters to multiply, and by what, so that a module's output is multiplied.

No list of module classes is needed. What might do it is tried on a copy of the module, with the input that it had in the model:
the rows of a weight and its bias, the gain of a norm, a gain that is kept minus 1.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isotherm.checkup.changes import Members
from isotherm.checkup.examine import without_gradients
from isotherm.checkup.measure import Batch, call
from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.scale import Rule
from isotherm.setting.at_call import AtCall
from isotherm.setting.places import Held
from isotherm.setting.scaled import OnOutput, OnParameter

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""How far a module's output may be from what was asked, as a part of its largest number; 2 % in half precision."""
NO_PLACE = Text(
    "no weights were found that make only its queries, so the factor cannot be folded; isotherm.apply can put it on the"
    " model while it runs",
    "没有找到只产生其查询的权重，无法折入倍数；可用 isotherm.apply 在运行时设置",
)
NO_WEIGHTS = Text(
    "no weight of it multiplies its output by this factor, so it cannot be folded; isotherm.apply can put it on the"
    " model while it runs",
    "它没有哪个权重能使输出乘以该倍数，无法折入权重；可用 isotherm.apply 在运行时设置",
)
BY_QUERY = Text(
    "{rule} has a number for each query, which no weight holds, and the configuration has no key for it;"
    " isotherm.apply can put it on the model while it runs",
    "{rule} 对每个查询取不同的数，权重无法表示，配置中也没有相应的键；可用 isotherm.apply 在运行时设置",
)


@dataclass(frozen=True)
class Edit:
    """The parameter of this name becomes itself times `multiply`, plus `add`; both broadcast against it, in float64."""

    parameter: str
    multiply: Tensor
    add: Tensor | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor after the edit, rounded once. It may lie in a file while the model is on a GPU."""
        made = tensor.double() * self.multiply.to(tensor.device)
        return (made if self.add is None else made + self.add.to(tensor.device)).to(tensor.dtype)


class _Call(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor


def edits(model: nn.Module, batch: Batch, held: Sequence[Held]) -> list[Edit]:
    """The edits of parameters that do what the factors do. Refused where there are none."""
    for one in held:
        if isinstance(one.by, AtCall) and isinstance(one.by.by, Rule):
            raise InputError(one.by.layer, BY_QUERY.format(rule=str(one.by.by)))
        if isinstance(one.by, AtCall):
            raise InputError(one.by.layer, NO_PLACE)
    members = Members(model)
    names = {id(module): name for name, module in members.modules.items()}
    calls = _calls(model, batch, [one.module for one in held if not isinstance(one.by, OnParameter)])
    found: list[Edit] = []
    for one in held:
        name = names[id(one.module)]
        assert isinstance(one.by, OnOutput)
        if isinstance(one.by, OnParameter):
            leaf = f"{name}.{one.by.name}" if name else str(one.by.name)
            ones = torch.ones_like(members.parameters[leaf], dtype=torch.float64)
            found.append(Edit(leaf, one.by.on(ones)))
        else:
            found += _found(one.module, name, one.by, calls[id(one.module)])
    return found


def _calls(model: nn.Module, batch: Batch, modules: Sequence[nn.Module]) -> dict[int, _Call]:
    """The first call of each module in a forward."""
    found: dict[int, _Call] = {}

    def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        found.setdefault(id(module), _Call(args, kwargs, _first(output)))

    with ExitStack() as stack, torch.random.fork_rng():
        for module in modules:
            stack.callback(module.register_forward_hook(keep, with_kwargs=True).remove)
        without_gradients(lambda: call(model, batch))
    return found


@torch.no_grad()
def _found(module: nn.Module, name: str, by: OnOutput, seen: _Call) -> list[Edit]:
    wanted = by.on(seen.output).double()
    near = TOLERANCE.get(seen.output.dtype, 2e-2) * float(wanted.abs().max())
    for tried in _candidates(module, by):
        changed = copy.deepcopy(module)
        for own, parameter in changed.named_parameters():
            if own in tried:
                parameter.copy_(tried[own].of(parameter))
        if float((_first(changed(*seen.args, **seen.kwargs)).double() - wanted).abs().max()) <= near:
            return [Edit(f"{name}.{own}", edit.multiply, edit.add) for own, edit in tried.items()]
    raise InputError(name, NO_WEIGHTS)


def _first(output: Any) -> Tensor:
    """A module's output, which comes first if it gives more."""
    tensor: Tensor = output[0] if isinstance(output, tuple) else output
    return tensor


def _candidates(module: nn.Module, by: OnOutput) -> Iterator[dict[str, Edit]]:
    """Edits of a module's parameters that may multiply its output, by the parameters' names."""
    own = {name: tensor for name, tensor in module.named_parameters() if tensor.is_floating_point()}
    if not own:
        return
    for axis in (0, -1):
        multiplied = {name: _along(tensor, by, axis) for name, tensor in own.items()}
        if any(one is None for one in multiplied.values()):
            continue
        known = {name: one for name, one in multiplied.items() if one is not None}
        yield {name: Edit(name, one) for name, one in known.items()}
        yield {name: Edit(name, one, one - 1) for name, one in known.items()}


def _along(tensor: Tensor, by: OnOutput, axis: int) -> Tensor | None:
    """The factor for each index of a parameter's axis; None if it has another size."""
    factor = by.factor.detach() if isinstance(by.factor, Tensor) else torch.tensor(by.factor)
    if by.heads_of is None:
        return factor.double().cpu().to(tensor.device)
    if tensor.shape[axis] != len(by.heads_of):
        return None
    plain = OnOutput(factor.double().to(tensor.device), -1, by.heads_of)
    ones = torch.ones(len(by.heads_of), dtype=torch.float64, device=tensor.device)
    shape = [1] * tensor.dim()
    shape[axis] = -1
    return plain.on(ones).view(shape)
