"""Which parameters a projection without a module used: whole ones, or slices of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.probe.capture import Part
from isotherm.probe.frames import Frame, plain_name

PRODUCTS = ("matmul", "__matmul__", "addmm")


def weight_of(function: str, args: Sequence[Any]) -> Tensor | None:
    """The parameter of two or more dimensions among the arguments; else a view of one, where it can only be the weight: a
    learned query is a view of a parameter as well."""
    for x in args:
        if isinstance(x, nn.Parameter) and x.dim() >= 2:
            return x
    last = _last(args)
    if last is None or last.dim() != 2 or not isinstance(last._base, nn.Parameter):
        return None
    return last if function == "linear" or function in PRODUCTS else None


def parts_of(frame: Frame, function: str, args: Sequence[Any], weight: Tensor) -> tuple[str, tuple[Part, ...]]:
    """The weight's name (the function's, if the weight is no parameter of the frame's module), and the parameters that make the
    features of the result: the weight and the bias. There are none if the function may use a parameter in another way."""
    known = named_parameters(frame.module, frame.name)
    name = next((name for name, one in known.items() if one is _parameter(weight)), _inside(frame.name, function))
    axis = 0 if function == "linear" else weight.dim() - 1 if function in PRODUCTS else None
    if axis is None or _last(args) is not weight:
        return name, ()
    biases = [] if "matmul" in function else [(x, 0) for x in args if isinstance(x, Tensor) and x.dim() == 1]
    return name, parts_among(known, [(weight, axis), *biases])


def named_parameters(module: nn.Module, name: str) -> dict[str, nn.Parameter]:
    """The module's parameters by their names in the model; `name` is the module's."""
    return {_inside(name, plain_name(own)): parameter for own, parameter in module.named_parameters()}


def parts_among(known: Mapping[str, nn.Parameter], used: Iterable[tuple[Tensor, int]]) -> tuple[Part, ...]:
    """Each tensor with the dimension that makes features, as a part of a known parameter. A bias that is put together from
    several is a part without a name; without the weight there are no parts."""
    found: list[Part] = []
    for tensor, axis in used:
        parameter = _parameter(tensor)
        name = next((name for name, one in known.items() if one is parameter), None)
        part = None if name is None else _slice(name, tensor, parameter, axis)
        if part is None and tensor.dim() > 1:
            return ()
        found.append(part or _beside(found, known, tensor) or Part(""))
    return tuple(found)


def _beside(found: Sequence[Part], known: Mapping[str, nn.Parameter], bias: Tensor) -> Part | None:
    """The bias of the module whose weight was found, if this is a copy of it: PyTorch's function takes three biases in one."""
    weight = found[0].name if found else ""
    own = known.get(f"{weight.removesuffix('weight')}bias") if weight.endswith("weight") else None
    alike = own is not None and own.shape == bias.shape and torch.equal(own, bias)
    return Part(f"{weight.removesuffix('weight')}bias") if alike else None


def _slice(name: str, view: Tensor, parameter: Tensor, axis: int) -> Part | None:
    """The parameter itself, or a slice of it along one dimension, perhaps transposed. None for any other view."""
    if view is parameter:
        return Part(name, axis)
    stride, start = view.stride(axis), view.storage_offset() - parameter.storage_offset()
    along = next((i for i in range(parameter.dim()) if parameter.stride(i) == stride), None)
    if along is None or start % stride or view.numel() * parameter.shape[along] != parameter.numel() * view.shape[axis]:
        return None
    first = start // stride
    return Part(name, along, first) if first + view.shape[axis] <= parameter.shape[along] else None


def _last(args: Sequence[Any]) -> Tensor | None:
    """The last argument that is a tensor of two or more dimensions: the weight, in every function with a known order."""
    return next((x for x in reversed(args) if isinstance(x, Tensor) and x.dim() >= 2), None)


def _parameter(tensor: Tensor) -> Tensor:
    return tensor if tensor._base is None else tensor._base


def _inside(name: str, own: str) -> str:
    return f"{name}.{own}" if name else own
