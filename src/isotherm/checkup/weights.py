"""How a checkpoint's tensors fit the model: which were missing, of another shape, or left over, and how grave that is."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from torch import nn

from isotherm.checkup.findings import Evidence, finding, listed
from isotherm.probe import is_finite
from isotherm.record import Finding, Layer, Severity

ADAPTED = re.compile(r"\.(lora|ia3|vera|hada|boft)_\w*(\.\w+)*$")
"""The end of the name of an adapter's tensor. What stands before it is the module whose weight the adapter changes."""


@dataclass(frozen=True)
class Weights:
    """What did not fit. `mismatched` maps a tensor's name to its two shapes. The model's own tensors among these three were
    initialised at random."""

    missing: tuple[str, ...] = ()
    mismatched: Mapping[str, str] = field(default_factory=dict)
    unexpected: tuple[str, ...] = ()

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> "Weights":
        """Read transformers' loading info. It leaves out tied weights, and leftovers that an architecture ignores."""
        shapes = {
            str(name): f"{_shape(stored)} for {_shape(wanted)}"
            for name, stored, wanted in info.get("mismatched_keys", ())
        }
        missing, unexpected = (
            tuple(sorted(map(str, info.get(key, ())))) for key in ("missing_keys", "unexpected_keys")
        )
        return cls(missing, dict(sorted(shapes.items())), unexpected)


def _shape(sizes: Iterable[int]) -> str:
    return "×".join(map(str, sizes)) or "1"


def about_weights(model: nn.Module, layers: tuple[Layer, ...], weights: Weights | None) -> Iterator[Finding]:
    """Findings about tensors that did not fit, one for each kind and severity."""
    if weights is None:
        return
    grading = _Grading(model, layers, {*weights.missing, *weights.mismatched})
    shown = {name: f"{name} ({shapes})" for name, shapes in weights.mismatched.items()}
    for code, names, grade in (
        ("weights-missing", weights.missing, grading.lost),
        ("weights-mismatched", tuple(weights.mismatched), grading.lost),
        ("weights-unexpected", weights.unexpected, grading.unexpected),
    ):
        graded = [(grade(name), name) for name in names]
        for severity in get_args(Severity):
            same = [name for found, name in graded if found == severity]
            if same:
                tensors = listed([shown.get(name, name) for name in same])
                evidence: Evidence = {"count": float(len(same)), "tensors": tensors.en}
                at = grading.layer(same), None
                yield finding(code, severity, at, evidence, count=len(same), tensors=tensors)


class _Grading:
    """How grave it is that a tensor did not fit."""

    def __init__(self, model: nn.Module, layers: tuple[Layer, ...], lost: set[str]) -> None:
        self._model, self._layers, self._lost = model, layers, lost
        self._blocks = {layer.index: _block(layer.name) for layer in layers}
        names = list(model.state_dict())
        self._patterns = {_pattern(name) for name in names}
        attending = [place for place, name in enumerate(names) if self._in_block(name)]
        self._before = set(names[: attending[-1] + 1]) if attending else set(names)

    def lost(self, name: str) -> Severity:
        """An error if attention depends on the tensor: it is in a block that attends, or in what comes before the last one.

        Otherwise a note if it belongs to a head that is new as a whole (a pooler, a classifier), and a warning if the
        checkpoint has a part of that head, or if it is the final norm or a language model's output.
        """
        if name in self._before:
            return "error"
        parts = name.split(".")
        heads = (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        head = next(head for head in heads if not any(_within(block, head) for block in self._blocks.values()))
        modules = dict(self._model.named_modules())
        module = modules.get(head)
        ours = [own for own, _ in self._model.named_parameters() if _within(own, head)]
        output = getattr(self._model, "get_output_embeddings", lambda: None)()
        final = module is not None and (module is output or "norm" in type(module).__name__.lower())
        return "warning" if final or not self._lost.issuperset(ours) else "note"

    def unexpected(self, name: str) -> Severity:
        """A warning for a part of attention that the model leaves out, or a layer beyond the model's; else a note."""
        prefix = f"{getattr(self._model, 'base_model_prefix', '')}."
        changed = ADAPTED.sub(".weight", name)
        names = {changed, changed.removeprefix(prefix), prefix + changed}
        attends = any(_within(one, layer.name) for one in names for layer in self._layers)
        return "warning" if attends or any(_pattern(one) in self._patterns for one in names) else "note"

    def layer(self, names: list[str]) -> int | None:
        """The one layer that these tensors belong to, or None."""
        found: set[int] = set()
        for name in names:
            own = {layer.index for layer in self._layers if _within(name, layer.name)}
            found |= own or {index for index, block in self._blocks.items() if _within(name, block)}
        whole = all(self._in_block(name) for name in names)
        return found.pop() if whole and len(found) == 1 else None

    def _in_block(self, name: str) -> bool:
        return any(_within(name, block) for block in self._blocks.values())


def _block(name: str) -> str:
    """The block that a layer is in: its name up to the first number, "encoder.layer.3" of "encoder.layer.3.attention"."""
    match = re.match(r"(?:.*?\.)??\d+(?=\.|$)", name)
    return match[0] if match else name


def _within(name: str, module: str) -> bool:
    return not module or name == module or name.startswith(f"{module}.")


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def not_finite_weights(model: nn.Module) -> tuple[str, ...]:
    """Names of parameters with NaN or Inf, and of buffers with NaN: a mask in a buffer may hold −Inf on purpose."""
    parameters = [name for name, parameter in model.named_parameters() if not is_finite(parameter)]
    buffers = [name for name, buffer in model.named_buffers() if not is_finite(buffer) and bool(buffer.isnan().any())]
    return (*parameters, *buffers)
