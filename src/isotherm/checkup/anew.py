"""What an installed class does when it is built anew from the same configuration.

A class of a library may have a scale of its own that no configuration key tells. Before a model's departure from 1/√d is called
wrong, its class is built again, untrained, small and on the CPU, and looked at with the same probe: what the new model does is
what the architecture does. Code outside of installed libraries is never built anew.
"""

import copy
import inspect
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.checkup.audit import effective
from isotherm.checkup.known_rules import kind_of
from isotherm.checkup.measure import Batch, look

LARGEST = 100_000_000
"""Parameters of the largest model that is built: 0.4 GB, about two seconds."""
TOKENS = 64
FEW_LAYERS, SMALL_VOCABULARY, SMALL_FEED_FORWARD = 2, 1000, 64
LAYERS = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_encoder_layers",
    "num_decoder_layers",
)  # fmt: skip
FEED_FORWARD = (
    "intermediate_size",
    "ffn_dim",
    "d_ff",
    "n_inner",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "moe_intermediate_size",
)


class Anew:
    """The scales in force of a model's class, built anew. Nothing is built before the first question."""

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        self._model, self._batch = model, batch
        self._found: dict[str, float] | None = None

    def same(self, name: str, scale: float, tolerance: float) -> bool | None:
        """Whether the new model has this scale at this layer. None if that is not known: it could not be built, or it has fewer
        layers and those that it has differ."""
        if self._found is None:
            self._found = _scales(self._model, self._batch)
        found = self._found
        if name in found:
            return abs(scale / found[name] - 1) <= tolerance
        siblings = [number for sibling, number in found.items() if kind_of(sibling) == kind_of(name)]
        return True if any(abs(scale / number - 1) <= tolerance for number in siblings) else None

    def scale(self, name: str) -> float | None:
        """The new model's scale at a layer."""
        return None if self._found is None else self._found.get(name)


def _scales(model: nn.Module, batch: Batch) -> dict[str, float]:
    """The scale in force of each layer of the class built anew; empty if it cannot be built or run."""
    if not _installed(type(model)) or getattr(model, "config", None) is None:
        return {}
    for config, vocabulary in _smaller(model.config):
        try:
            return _looked_at(model, batch, config, vocabulary)
        except Exception:  # whatever a library raises on a configuration that it did not expect
            continue
    return {}


def _looked_at(model: nn.Module, batch: Batch, config: Any, vocabulary: int | None) -> dict[str, float]:
    with torch.random.fork_rng(), torch.no_grad():
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in type(model)(copy.deepcopy(config)).parameters())
        if parameters > LARGEST:
            raise MemoryError
        with torch.device("cpu"):
            new = type(model)(config).float().eval()
        _take_small(new, model)
        captures = look(new, _on_cpu(batch, vocabulary)).captures
    found = ((capture.name, effective(capture)[0]) for capture in captures)
    return {name: number for name, number in found if number is not None}


def _installed(model: type) -> bool:
    """Whether a class comes from an installed library, rather than from someone's own file or from a model folder."""
    if model.__module__.startswith("transformers.models."):
        return True
    file = getattr(sys.modules.get(model.__module__), "__file__", None)
    takes_a_configuration = next(iter(inspect.signature(model).parameters), None) == "config"
    if model.__module__ == "__main__" or file is None or not takes_a_configuration:
        return False
    paths = sysconfig.get_paths()
    return any(Path(file).is_relative_to(paths[kind]) for kind in ("purelib", "platlib"))


def _smaller(config: Any) -> Iterator[tuple[Any, int | None]]:
    """Copies of a configuration, each smaller than the one before, with the size to which the vocabulary was cut. The numbers
    that a scale may depend on stay: width, heads, head dimension."""
    yield _copied(config), None
    for changes in ({"layers": FEW_LAYERS}, {}, {"layers": FEW_LAYERS, "feed_forward": SMALL_FEED_FORWARD}):
        smaller = _copied(config)
        _shrink(smaller, **changes, vocabulary=SMALL_VOCABULARY)
        yield smaller, SMALL_VOCABULARY


def _copied(config: Any) -> Any:
    copied = copy.deepcopy(config)
    if getattr(copied, "_attn_implementation", None) not in (None, "eager", "sdpa"):
        copied._attn_implementation = "eager"  # others need a GPU or a compiler
    if hasattr(copied, "quantization_config"):
        del copied.quantization_config
    if getattr(copied, "use_pretrained_backbone", False):
        copied.use_pretrained_backbone = False  # it would be downloaded
    return copied


def _shrink(config: Any, vocabulary: int, layers: int | None = None, feed_forward: int | None = None) -> None:
    values = dict(vars(config)) if hasattr(config, "__dict__") else {}
    old = {values[key] for key in LAYERS if isinstance(values.get(key), int)}
    for key, value in values.items():
        if key == "vocab_size" and isinstance(value, int):
            setattr(config, key, min(value, vocabulary))
        elif layers is not None and key in LAYERS and isinstance(value, int):
            setattr(config, key, min(value, layers))
        elif layers is not None and isinstance(value, list) and len(value) in old:
            setattr(config, key, value[:layers])
        elif feed_forward is not None and key in FEED_FORWARD and isinstance(value, int):
            setattr(config, key, min(value, feed_forward))
        elif hasattr(value, "to_dict"):
            _shrink(value, vocabulary, layers, feed_forward)


def _take_small(new: nn.Module, model: nn.Module) -> None:
    """Take over what may be a learned temperature: parameters that vary along one dimension at most."""
    trained = dict(model.named_parameters())
    for name, parameter in new.named_parameters():
        own = trained.get(name)
        if own is not None and own.shape == parameter.shape and own.numel() == max((*own.shape, 1)) and not own.is_meta:
            parameter.copy_(own)


def _on_cpu(batch: Batch, vocabulary: int | None) -> Batch:
    """The batch's first sequence, at most `TOKENS` of it if it is made of tokens, on the CPU."""
    values = [batch] if isinstance(batch, Tensor) else [*(batch.values() if isinstance(batch, Mapping) else batch)]
    tensors = [value for value in values if isinstance(value, Tensor) and value.dim()]
    alike = len({len(tensor) for tensor in tensors}) == 1

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.detach()[:1] if alike and value.dim() else value.detach()
        if value.is_floating_point():
            return value.to("cpu", torch.float32)
        value = value[:, :TOKENS] if value.dim() == 2 else value
        return value.cpu() if vocabulary is None or value.dtype == torch.bool else value.cpu() % vocabulary

    if isinstance(batch, Tensor):
        return moved(batch)
    if isinstance(batch, Mapping):
        return {key: moved(value) for key, value in batch.items()}
    return [moved(value) for value in batch]
