"""A module that multiplies what it makes of q by a factor, for as long as a setting asks it to.

The module is given a subclass of its own class, as `torch.nn.utils.parametrize` does it. So compiled code notices, copies of
the module keep the factor, and no other module, thread or state dict does. The subclass multiplies either the module's output,
after which the module itself is as it was, or parameters as they are read, where a function and not a module projects.
Several settings may hold one module; each is removed by itself, in any order.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.setting.at_call import AtCall, run_under

HELD = "_isotherm_factors"
"""Where a module keeps its factors: a tuple, replaced as a whole."""
_lock = threading.Lock()


@dataclass(eq=False)
class OnOutput:
    """Multiplies a module's output: as a whole, or each head by a factor of its own. Head `heads_of[i]` has index `i` of
    dimension `axis`, counted from the last; −1 stands for no head, and stays."""

    factor: float | Tensor
    axis: int = -1
    heads_of: Tensor | None = None
    name: str | None = None

    def on(self, tensor: Tensor) -> Tensor:
        """The tensor, multiplied in float32 or better. The result has its dtype."""
        factor = self.factor
        if self.heads_of is not None:
            factor = self._spread()
        if not isinstance(factor, Tensor):
            return tensor * factor
        working = torch.promote_types(tensor.dtype, torch.float32)
        return (tensor.to(working) * factor.to(tensor.device, working)).to(tensor.dtype)

    def _spread(self) -> Tensor:
        """A factor for each index of the dimension, shaped to broadcast."""
        assert self.heads_of is not None
        assert isinstance(self.factor, Tensor)
        with_rest = torch.cat([self.factor.flatten(), self.factor.new_ones(1)])
        return with_rest[self.heads_of.to(with_rest.device)].view(-1, *[1] * (-1 - self.axis))


@dataclass(eq=False)
class OnParameter(OnOutput):
    """Multiplies the parameter `name` of a module, when it is read."""


Change = OnOutput | AtCall
"""What a module may be asked to do."""


def hold(module: nn.Module, factor: Change) -> None:
    """Have a module multiply by a factor."""
    with _lock:
        _hold(module, (*held(module), factor))


def release(module: nn.Module, factor: Change) -> None:
    """Have a module multiply by a factor no longer. After the last one it is as it was."""
    with _lock:
        _hold(module, tuple(other for other in held(module) if other is not factor))


def held(module: nn.Module) -> tuple[Change, ...]:
    """The factors of a module."""
    found: tuple[Change, ...] = module.__dict__.get(HELD, ())
    return found


def _hold(module: nn.Module, factors: Sequence[Change]) -> None:
    current = type(module)
    own: type[nn.Module] = getattr(current, "isotherm_own_class", current)
    mine = current is own or "isotherm_own_class" in vars(current)  # somebody else's subclass of ours stays
    if factors:
        names = frozenset(one.name for one in factors if isinstance(one, OnOutput) and one.name is not None)
        module.__dict__[HELD] = tuple(factors)
        if mine:
            module.__class__ = _scaled(own, names)  # type: ignore[arg-type]  # a class is hashable
    else:
        if mine:
            module.__class__ = own
        module.__dict__.pop(HELD, None)


@cache
def _scaled(own: type[nn.Module], names: frozenset[str]) -> type[nn.Module]:
    """A subclass that multiplies its output, and these parameters."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = held(self)
        rules = [one for one in found if isinstance(one, AtCall)]
        run = own.__call__ if not rules else partial(run_under, rules, own.__call__)
        result = run(self, *args, **kwargs)
        for factor in found:
            if isinstance(factor, OnOutput) and factor.name is None:
                result = on_first(factor, result)
        return result

    def reduced(self: Any, protocol: int) -> tuple[Any, ...]:
        rest: Any = own.__reduce_ex__(self, protocol)
        return _blank, (own, names), *rest[2:]

    members: dict[str, Any] = {name: property(_reader(name)) for name in names}
    members |= {"__call__": call, "__reduce_ex__": reduced, "isotherm_own_class": own}
    members |= {name: getattr(own, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(own.__name__, (own,), members)


def on_first(factor: OnOutput, result: Any) -> Any:
    """What a module gives, multiplied: its output, which comes first if it gives more."""
    return (factor.on(result[0]), *result[1:]) if isinstance(result, tuple) else factor.on(result)


def _blank(own: type[nn.Module], names: frozenset[str]) -> nn.Module:
    """What a pickled or copied module starts from."""
    kind = _scaled(own, names)  # type: ignore[arg-type]
    return kind.__new__(kind)


def _reader(name: str) -> Callable[[Any], Any]:
    def read(self: Any) -> Any:
        value = self._parameters[name]
        for factor in held(self):
            if isinstance(factor, OnOutput) and factor.name == name and value is not None:
                value = factor.on(value)
        return value

    return read
