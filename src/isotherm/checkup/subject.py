"""What is being checked: a model's size, precision, device and batch, and whether it looks untrained."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isotherm.checkup.measure import Batch
from isotherm.checkup.weights import Weights
from isotherm.record import Subject


@dataclass(frozen=True)
class ModelSource:
    """What a model is called and where it came from. `weights` says what did not fit when its checkpoint was loaded, None if
    that is not known."""

    name: str
    origin: str
    weights: Weights | None = None


def subject_of(model: nn.Module, batch: Batch, source: ModelSource) -> Subject:
    """Describe a model and its batch. The first tensor of the batch gives the number of sequences and tokens."""
    values = list(batch.values()) if isinstance(batch, Mapping) else [batch] if isinstance(batch, Tensor) else batch
    first = next((value for value in values if isinstance(value, Tensor)), torch.zeros(1, 0))
    parameter = next(model.parameters(), torch.zeros(0))
    return Subject(
        name=source.name,
        architecture=type(model).__name__,
        origin=source.origin,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype=str(parameter.dtype).removeprefix("torch."),
        device=str(parameter.device),
        tokens=int(first.shape[1]) if first.dim() > 1 else 0,
        batch=int(first.shape[0]) if first.dim() else 1,
        at_initialisation=_looks_untrained(model),
    )


def _looks_untrained(model: nn.Module) -> bool:
    """Whether every norm still has its initial gain: training moves all of them."""
    norms = [module for module in model.modules() if "norm" in type(module).__name__.lower()]
    weights = [getattr(norm, "weight", None) for norm in norms]
    gains = [w.detach() for w in weights if isinstance(w, Tensor) and w.dim() == 1 and not w.is_meta]
    return bool(gains) and all(bool(gain.eq(1).all() or gain.eq(0).all()) for gain in gains)
