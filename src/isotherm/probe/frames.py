"""Where in the model the code is, and what each module's projections gave: one frame per module call under way.

What a projection gave is kept until the module that called it ends, so that q and k can be traced back to it.
"""

import functools
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from isotherm.probe.keep import Keeper, storage_of

PROJECTION = re.compile(r"Linear|Conv1D|Conv1d|Conv2d|Dense")
NORM = re.compile(r"Norm")
ATTENTION = re.compile(r"(Attention|Attn)(?!\w*(Output|Mask|Norm|Bias|Embed|Pos|Gate|Dropout))")
FEW = 8
"""A module with at most this many inside it is a part of its parent's work: what it projected is its parent's."""


@functools.cache
def _calls_itself(what: re.Pattern[str], kind: str) -> bool:
    return what.search(kind) is not None


@dataclass(eq=False)
class Record:
    """A projection's output, or a normalisation's; `made` names the memory it was written to."""

    name: str
    kind: Literal["projection", "norm"]
    output: Tensor
    source: Tensor | None
    made: int

    @property
    def given(self) -> int | None:
        """The memory it was made from; `source` is held so that no other tensor comes to have it."""
        return None if self.source is None else storage_of(self.source)

    def take_copy(self, storage: int) -> None:  # noqa: ARG002  it holds one tensor only
        """Called before the model writes over the output."""
        self.output = self.output.clone()


@dataclass(eq=False)
class Frame:
    """A module call under way. `explained` once an attention call inside it was captured, or listed as unseen."""

    module: nn.Module
    name: str
    records: list[Record] = field(default_factory=list)
    explained: bool = False

    @property
    def kind(self) -> str:
        """The module's class."""
        return type(self.module).__name__

    @property
    def projects(self) -> bool:
        """Whether this is a projection as a whole (a Linear, a Linear with an adapter inside)."""
        return isinstance(self.module, nn.Linear) or _calls_itself(PROJECTION, self.kind)

    @property
    def normalises(self) -> bool:
        """Whether this is a normalisation."""
        return _calls_itself(NORM, self.kind)

    @property
    def attends(self) -> bool:
        """Whether it calls itself attention."""
        return _calls_itself(ATTENTION, self.kind)


class Frames:
    """The stack of frames. `ours` is how many of them belong to the model."""

    def __init__(self, model: nn.Module, keeper: Keeper) -> None:
        self.names = {id(module): _plain(name) for name, module in model.named_modules()}
        self.stack: list[Frame] = []
        self._keeper = keeper
        self._small: dict[int, bool] = {}

    @property
    def top(self) -> Frame | None:
        """The innermost module that is at work."""
        return self.stack[-1] if self.stack else None

    def name_of(self, module: nn.Module) -> str:
        """The module's name in the model, or that of the module it was called from."""
        name = self.names.get(id(module))
        return name if name is not None else (self.stack[-1].name if self.stack else "")

    def belongs(self, module: nn.Module) -> bool:
        """Whether the module is a part of the model, or is called by one."""
        return bool(self.stack) or id(module) in self.names

    def push(self, module: nn.Module) -> None:
        """A module's forward begins."""
        self.stack.append(Frame(module, self.name_of(module)))

    def is_idle(self, module: nn.Module) -> bool:
        """Whether this module, the innermost, is neither a projection nor attention, and saw nothing: there is nothing to
        pass on when it ends."""
        frame = self.stack[-1] if self.stack else None
        if frame is None or frame.module is not module or frame.records or frame.explained:
            return False
        return not (frame.projects or frame.normalises or frame.attends)

    def pop(self, module: nn.Module, given: Any, result: Any) -> Frame | None:
        """A module's forward has ended; frames above it that never ended are dropped with it."""
        if not any(frame.module is module for frame in self.stack):
            return None
        while True:
            frame = self.stack.pop()
            if frame.module is module:
                break
        parent = self.top
        if parent is not None:
            parent.explained = parent.explained or frame.explained
            if frame.projects or frame.normalises:
                self.note(parent, frame.name, "projection" if frame.projects else "norm", given, result)
            elif not frame.explained and self._is_small(module):
                parent.records.extend(frame.records)
        return frame

    def note(
        self, frame: Frame, name: str, kind: Literal["projection", "norm"], given: Any, result: Any
    ) -> Record | None:
        """Remember what a projection or a normalisation gave inside `frame`."""
        first, output = _first_tensor(given), _first_tensor(result)
        if output is None or not output.dtype.is_floating_point or output.dim() < 2 or output.is_nested:
            return None
        source = None if first is None or first.is_nested else first.detach()
        record = Record(name, kind, output.detach(), source, storage_of(output))
        frame.records.append(record)
        self._keeper.protect(output, record)
        return record

    def _is_small(self, module: nn.Module) -> bool:
        if id(module) not in self._small:
            self._small[id(module)] = sum(1 for _ in module.modules()) <= FEW + 1
        return self._small[id(module)]


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None


def _plain(name: str) -> str:
    """Without what `torch.compile` puts around a module."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")
