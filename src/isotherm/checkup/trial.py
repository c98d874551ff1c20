"""Try changes on a copy of the model, on the batch of the check-up, and capture what its layers then do.

The copy shares the model's parameters, except those that a change replaces: nothing is written to the model, not even for a
moment, so it may be in use elsewhere. Each changed layer hands on the output it had before its change. So every layer gets the
input it had in the check-up, and one run tries the changes of many layers at once, each as if it were the only one.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from isotherm.checkup.changes import make
from isotherm.checkup.measure import Batch, call, look
from isotherm.checkup.restoring import Queries, Restoring
from isotherm.probe import Capture, probe
from isotherm.probe.frames import plain_name
from isotherm.record import ModelChange

SAME = {torch.float64: 1e-9, torch.float32: 1e-4}
"""How far an output may be from another that is the same, as a part of its largest number; 2 % in half precision."""


class Bench:
    """A place to try changes of a model whose `captures` on `batch` are known. `homes` are the modules, by name, whose outputs
    stay as they were."""

    def __init__(self, model: nn.Module, batch: Batch, captures: Sequence[Capture], homes: Collection[str]) -> None:
        self._model, self._batch, self._captures = model, batch, captures
        self._homes = set(homes)
        self._outputs: dict[str, list[Any]] | None = None

    def run(self, changes: Iterable[ModelChange]) -> list[Capture] | None:
        """Run a copy with the changes. None if the model cannot be copied, or if the copy does not run as the model did."""
        return self.run_changed(lambda copied: make(copied, changes))

    def run_changed(self, change: Callable[[nn.Module], object]) -> list[Capture] | None:
        """`run`, with changes that a function makes to the copy."""
        try:
            if self._outputs is None:
                self._outputs = self._record()
            changed = _copied(self._model)
            change(changed)
            captures = self._look(changed, _Handed(self._outputs))
        except Exception:  # a trial may fail in any way the model's code can; the advice is then not given
            return None
        return captures

    def other_uses(self, halve: Callable[[nn.Module], object], queries: Sequence[Queries]) -> list[bool]:
        """Whether layers use what makes their queries for something else, too: halved in a copy, and restored at the call, they
        leave a layer's output as it was, or they do not. False where that cannot be told."""
        try:
            if self._outputs is None:
                self._outputs = self._record()
            changed, seen = _copied(self._model), _Compared(self._outputs)
            halve(changed)
            self._hook(changed, seen)
            # Under a probe nothing is compiled.
            with torch.random.fork_rng(), probe(changed), Restoring(queries) as restoring:
                call(changed, self._batch)
        except Exception:  # as above; nothing can be told then
            return [False for _ in queries]
        return [met and bool(one.around & seen.differing) for one, met in zip(queries, restoring.met, strict=True)]

    def _record(self) -> dict[str, list[Any]]:
        """The outputs of the homes, in the order of their calls, from a run of an unchanged copy."""
        outputs: dict[str, list[Any]] = {home: [] for home in self._homes}
        kept = _Kept(outputs)
        self._look(_copied(self._model), kept)
        return outputs

    def _hook(self, model: nn.Module, hooks: "_Kept | _Handed") -> None:
        for name, module in model.named_modules():
            if plain_name(name) in self._homes:
                module.register_forward_hook(hooks.on(plain_name(name)))

    def _look(self, model: nn.Module, hooks: "_Kept | _Handed") -> list[Capture]:
        self._hook(model, hooks)
        captures = look(model, self._batch).captures
        if [capture.name for capture in captures] != [capture.name for capture in self._captures]:
            raise LookupError("the copy attends otherwise than the model")
        return captures


class _Kept:
    """Keeps copies of outputs: the model may write to them afterwards."""

    def __init__(self, outputs: dict[str, list[Any]]) -> None:
        self._outputs = outputs

    def on(self, name: str) -> Any:
        """The hook of one module."""

        def keep(_module: nn.Module, _given: Any, output: Any) -> None:
            self._outputs[name].append([_own(leaf) for leaf in tree_flatten(output)[0]])

        return keep


class _Handed:
    """Hands out the tensors that were kept. Anything else (a cache) is the copy's own."""

    def __init__(self, outputs: dict[str, list[Any]]) -> None:
        self._left = {name: iter(kept) for name, kept in outputs.items()}

    def on(self, name: str) -> Any:
        """The hook of one module."""

        def hand(_module: nn.Module, _given: Any, output: Any) -> Any:
            leaves, form = tree_flatten(output)
            kept = next(self._left[name])
            self.compare(name, leaves, kept)
            both = zip(leaves, kept, strict=True)
            return tree_unflatten([_own(old) if isinstance(new, Tensor) else new for new, old in both], form)

        return hand

    def compare(self, name: str, leaves: Sequence[Any], kept: Sequence[Any]) -> None:
        """Look at what a module gave, and at what is handed out instead."""


class _Compared(_Handed):
    """Hands out the tensors that were kept, and notes which modules gave others."""

    def __init__(self, outputs: dict[str, list[Any]]) -> None:
        super().__init__(outputs)
        self.differing: set[str] = set()

    def compare(self, name: str, leaves: Sequence[Any], kept: Sequence[Any]) -> None:
        for new, old in zip(leaves, kept, strict=True):
            if isinstance(new, Tensor) and new.is_floating_point() and new.numel():
                difference = (new.double() - old.double()).abs().nan_to_num().max()
                if difference > SAME.get(new.dtype, 2e-2) * old.double().abs().nan_to_num().max():
                    self.differing.add(name)


def _own(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else None


def _copied(model: nn.Module) -> nn.Module:
    """A copy of the model's modules, buffers and configurations that shares its parameters."""
    shared: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    if any(parameter.is_meta for parameter in model.parameters()):
        raise LookupError("the weights are elsewhere")
    for module in model.modules():
        held = (value for value in vars(module).values() if isinstance(value, Tensor) and not value.is_leaf)
        shared |= {id(value): value for value in held}
    with torch.no_grad():
        return copy.deepcopy(model, shared)
