"""What is being checked: a model's size, precision, device and batch, and whether it looks untrained."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from isotherm.checkup.fetch import by_shape, fetched
from isotherm.checkup.inputs import contents
from isotherm.checkup.measure import Batch
from isotherm.checkup.weights import Weights
from isotherm.checkup.wrappers import called, is_compiled
from isotherm.probe import Capture
from isotherm.probe.members import modules_of, parameters_of
from isotherm.record import Subject

BIASES = ("bias", "beta", "b", "shift", "offset")
GAINS = ("g", "gamma", "gain", "scale")
"""Names of a norm's gains, which may be more than a vector (one for each head). Vectors of other names are gains too."""


@dataclass(frozen=True)
class ModelSource:
    """What a model is called and where it came from. `weights` says what did not fit when its checkpoint was loaded, None if
    that is not known."""

    name: str
    origin: str
    weights: Weights | None = None


def subject_of(model: nn.Module, batch: Batch, source: ModelSource, captures: Sequence[Capture] = ()) -> Subject:
    """Describe a model and its batch. The first tensor of the batch, and what attention saw of it, say what the batch holds."""
    parameters = parameters_of(model)
    first = parameters[0] if parameters else torch.zeros(0)
    real = next((parameter for parameter in parameters if not parameter.is_meta), first)
    held = contents(batch, captures)
    return Subject(
        name=source.name,
        architecture=called(model),
        origin=source.origin,
        parameters=sum(parameter.numel() for parameter in parameters),
        dtype=str(first.dtype).removeprefix("torch."),
        device=str(real.device),
        tokens=held.positions,
        batch=held.batch,
        at_initialisation=_looks_untrained(model),
        unit=held.unit,
        size=held.size,
        compiled=is_compiled(model),
    )


def _looks_untrained(model: nn.Module) -> bool:
    """Whether every norm that can be read still has its initial gain, and none has counted a batch: training moves all of them.
    False if no gain can be read."""
    norms = [module for _, module in modules_of(model) if "norm" in type(module).__name__.lower()]
    if any(bool(count) for norm in norms if (count := getattr(norm, "num_batches_tracked", None)) is not None):
        return False
    gains = (gain for norm in norms for gain in _gains(norm))
    first = list(islice(gains, 1))
    # The first gain that training has moved decides. The others are read together.
    return _are_initial(first) and (_are_initial(rest) if (rest := list(gains)) else True)


def _are_initial(gains: Sequence[Tensor]) -> bool:
    """Whether there are gains, and each of them is all ones or all zeros."""
    same = by_shape([gain.flatten() for gain in gains])
    ends = fetched([torch.stack(one.aminmax(dim=1), 1) for _, one in same])
    return bool(ends) and all(low == high and low in (0, 1) for one in ends for low, high in one.tolist())


def _gains(norm: nn.Module) -> Iterator[Tensor]:
    """The gains of a norm, whatever their names: its own vectors that are no biases."""
    for name, parameter in norm.named_parameters(recurse=False):
        if name in BIASES or not (parameter.dim() == 1 or name in GAINS):
            continue
        value = _offloaded(norm, name) if parameter.is_meta else parameter.detach()
        if value is not None and value.numel() and not value.is_meta:
            yield value.to_local() if hasattr(value, "to_local") else value


def _offloaded(module: nn.Module, name: str) -> Tensor | None:
    """A parameter that accelerate keeps elsewhere until the forward needs it; None if it is not found."""
    hook = getattr(module, "_hf_hook", None)
    for one in getattr(hook, "hooks", (hook,)):
        kept = getattr(one, "weights_map", None)
        if kept is not None and name in kept:
            value = kept[name]
            return value if isinstance(value, Tensor) else None
    return None
