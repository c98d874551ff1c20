"""A model's modules, parameters and buffers. PyTorch's own iterators pass every item through one generator for each level of
the model, and a check-up walks over the whole model several times: that took a twentieth of a small model's forward."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


def modules_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """What `model.named_modules()` gives."""
    found: dict[nn.Module, str] = {}

    def walk(name: str, module: nn.Module) -> None:
        if module in found:
            return
        found[module] = name
        before = f"{name}." if name else ""
        for own, part in module._modules.items():
            if part is not None:
                walk(before + own, part)

    walk("", model)
    return [(name, module) for module, name in found.items()]


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given, if this is what it returned; else the module."""
    return module._orig_mod if type(module).__name__ == "OptimizedModule" else module  # type: ignore[return-value]


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """What `model.parameters()` gives."""
    return _each(module._parameters for _, module in modules_of(model))


def buffers_of(model: nn.Module) -> list[Tensor]:
    """What `model.buffers()` gives."""
    return _each(module._buffers for _, module in modules_of(model))


def _each(tables: Iterable[dict[str, Any]]) -> list[Any]:
    """Each tensor of these tables once."""
    return list({id(one): one for table in tables for one in table.values() if one is not None}.values())
