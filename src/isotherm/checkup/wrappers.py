"""Look through what is wrapped around a model: DistributedDataParallel, DataParallel, torch.compile, PEFT, Lightning …"""

from collections.abc import Iterator
from typing import Any

from torch import nn

from isotherm.probe.frames import plain_name
from isotherm.probe.members import modules_of

WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "PeftModel": "base_model",
    "BaseTuner": "model",
}
"""Classes that only pass calls on, by name (their libraries may not be installed), and where each holds the model."""


def inner(model: nn.Module) -> nn.Module:
    """The model inside of all wrappers that pass its arguments on as they are."""
    layers = list(_layers(model))
    return layers[-1]


def prefix(model: nn.Module) -> str:
    """What the wrappers put before the plain names of the model's parts: «module.»."""
    *around, _ = _layers(model)
    return "".join(f"{name}." for name in filter(None, map(_held, around)) if plain_name(name))


def called(model: nn.Module) -> str:
    """The model's class, inside the names of its wrappers: «DataParallel(BertModel)». A compiled model is named alone."""
    *around, model = _layers(model)
    names = [type(wrapper).__name__ for wrapper in around]
    names = [name for name in names if name != "OptimizedModule"]
    return "(".join([*names, type(model).__name__]) + ")" * len(names)


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """The wrappers, outermost first, and the model."""
    while True:
        yield model
        held = _held(model)
        inside = None if held is None else getattr(model, held, None)
        if not isinstance(inside, nn.Module):
            return
        model = inside


def _held(wrapper: nn.Module) -> str | None:
    """The attribute in which a wrapper holds the model."""
    return next((WRAPPERS[cls.__name__] for cls in type(wrapper).__mro__ if cls.__name__ in WRAPPERS), None)


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` was applied to the model or to a part of it."""
    return any(
        type(module).__name__ == "OptimizedModule"
        or module._compiled_call_impl is not None
        or hasattr(module.forward, "_torchdynamo_orig_callable")
        for _, module in modules_of(model)
    )


def with_implementations(model: nn.Module) -> list[Any]:
    """The outermost modules that offer a choice of attention implementations, wherever they are in the model: one for most
    models, two for a retriever with two encoders. Each has a configuration and `set_attn_implementation`."""
    chosen = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if isinstance(chosen, str) and callable(getattr(model, "set_attn_implementation", None)):
        return [model]
    found = [part for child in model.children() for part in with_implementations(child)]
    return list({id(part): part for part in found}.values())
