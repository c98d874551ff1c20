"""One frame for each module call under way, with the outputs of the projections and norms that the module has called.

These outputs are kept until the module returns, so that q and k can be traced back to them.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from isotherm.probe.capture import Capture, Part
from isotherm.probe.keep import Keeper, storage_of
from isotherm.probe.members import modules_of, uncompiled

PROJECTION = re.compile(r"Linear|Conv1D|Conv1d|Conv2d|Dense")
NORM = re.compile(r"Norm")
ATTENTION = re.compile(r"(Attention|Attn)(?!\w*(Output|Mask|Norm|Bias|Embed|Pos|Gate|Dropout))")
ADDED = ("_orig_mod", "_checkpoint_wrapped_module")
SMALL = 8
"""A module that contains at most this many others passes its projections on to its parent when it returns."""


class Role(NamedTuple):
    """What a module is by the name of its class. A Linear is a projection by any name."""

    projects: bool
    normalises: bool
    attends: bool


@functools.cache
def _role_of(kind: str, is_linear: bool) -> Role:
    projects = is_linear or PROJECTION.search(kind) is not None
    return Role(projects, NORM.search(kind) is not None, ATTENTION.search(kind) is not None)


@dataclass(frozen=True)
class Recorded:
    """What is known of a projection or a norm without its tensors: `made` is the memory its output was written to, `given` that
    of its input, `width` its number of features."""

    name: str
    kind: Literal["projection", "norm"]
    made: int
    given: int | None
    parts: tuple[Part, ...]
    width: int


@dataclass(eq=False)
class Record:
    """The output of a projection or a norm. `made` is the memory it was written to, `source` is the module's input, `parts` are
    the parameters of a projection without a module, `features` is the axis of its features. `samples` are vectors of it that
    were gathered already."""

    name: str
    kind: Literal["projection", "norm"]
    output: Tensor
    source: Tensor | None
    made: int
    parts: tuple[Part, ...] = ()
    features: int = -1
    samples: dict[tuple[int, ...], Any] = field(default_factory=dict)

    @functools.cached_property
    def about(self) -> Recorded:
        """The record without its tensors."""
        return Recorded(self.name, self.kind, self.made, self.given, self.parts, self.output.shape[-1])

    @property
    def given(self) -> int | None:
        """The input's memory. `source` keeps it alive, so that no other tensor can reuse it."""
        return None if self.source is None else storage_of(self.source)

    def take_copy(self, storage: int) -> None:  # noqa: ARG002  a record refers to one tensor only
        """Copy the output before the model overwrites it."""
        self.output = self.output.clone()


@dataclass(eq=False)
class Frame:
    """A module call under way.

    `explained` is set once an attention call inside it was captured or listed as unseen. `unnormalised` says that a product of
    two activations was multiplied with a third, without weights that sum to one; `other_softmax`, that there was a softmax over
    something else. `met` names an operator nothing sees into. `blocks` are the indices of captures that are
    blocks of longer rows if there are several, `divisors` the products whose exponentials something was divided by although no
    row of them was read. `replaced` are the indices of captures of weights that the model did not use as they were captured.
    `merged` holds, for numbers of rows that were put together, the keys of the products that these came from.
    """

    module: nn.Module
    name: str
    records: list[Record] = field(default_factory=list)
    explained: bool = False
    unnormalised: bool = False
    other_softmax: bool = False
    met: str = ""
    blocks: set[int] = field(default_factory=set)
    divisors: set[int] = field(default_factory=set)
    replaced: set[int] = field(default_factory=set)
    merged: list[list[Tensor]] = field(default_factory=list)

    @property
    def noteworthy(self) -> bool:
        """Whether something happened that may have to be said of the module."""
        met = self.unnormalised or self.other_softmax or self.met
        return bool(met or self.blocks or self.divisors or self.replaced or self.merged)

    def in_blocks(self, captures: Sequence[Capture]) -> bool:
        """Whether the module computes rows in blocks of keys that it puts together later.

        Rows that were not divided by their sums when they were used are whole if the module had them once, and blocks if it
        had several. Others are told by their keys, if the products were computed once more for their sums.
        """
        for keys in self.merged:
            places = {(one.data_ptr(), one.shape[-2:]) for one in keys}
            own = [(index, one.problem.k) for index, one in enumerate(captures) if one.name == self.name]
            same = {index for index, k in own if (k.data_ptr(), k.shape[-2:]) in places}
            self.blocks |= same if len(same) > 1 else set()
        return len(self.blocks) > 1 or bool(self.divisors)

    @property
    def kind(self) -> str:
        """The name of the module's class."""
        return type(self.module).__name__

    @property
    def role(self) -> Role:
        """What the module is by its class."""
        return _role_of(self.kind, isinstance(self.module, nn.Linear))

    @property
    def may_attend(self) -> bool:
        """Whether the module has projections like those of q, k and v, met an operator that may be attention, or is named after
        attention and multiplies three activations."""
        return bool(self.inputs_of_attention() or self.met) or (self.role.attends and self.unnormalised)

    def inputs_of_attention(self) -> list[Record]:
        """Projections like those of q, k and v: three of one input; or one that is up to three times as wide as its input; or
        two of which one is twice as wide as the other. In a module that is named after attention: any.

        A projection whose whole output goes into another one is the first layer of an MLP.
        """
        made = self._projections()
        if self.role.attends:
            return made
        by_input: dict[int | None, list[Record]] = {}
        for record in made:
            by_input.setdefault(record.given, []).append(record)
        several = [same for given, same in by_input.items() if given is not None and len(same) >= 3]
        if several:
            return several[0]
        taken = {record.source.shape[-1] for record in made if record.source is not None}
        left = [record for record in made if record.output.shape[-1] not in taken]
        fused = [record for record in left if record.source is not None and _is_fused(record)]
        widths = {record.output.shape[-1] for record in made}
        return fused or [record for record in left if record.output.shape[-1] / 2 in widths]

    def _projections(self) -> list[Record]:
        return [record for record in self.records if record.kind == "projection"]


def _is_fused(record: Record) -> bool:
    """Whether the projection may give q, k and v at once."""
    before, after = record.source.shape[-1], record.output.shape[-1]  # type: ignore[union-attr]
    return before < after <= 3 * before


class Frames:
    """The frames of the calls under way, outermost first."""

    def __init__(self, model: nn.Module, keeper: Keeper) -> None:
        self.names: dict[int, str] = {}
        self.modules: dict[str, nn.Module] = {}
        self.stack: list[Frame] = []
        self._keeper = keeper
        self._small: dict[int, bool] = {}
        self.know(model)

    def know(self, model: nn.Module) -> None:
        """Learn the names of the model's modules."""
        named = [(plain_name(name), module) for name, module in modules_of(model)]
        self.names = {id(module): name for name, module in named}
        self.modules = dict(named)

    @property
    def top(self) -> Frame | None:
        """The innermost frame."""
        return self.stack[-1] if self.stack else None

    @property
    def in_projection(self) -> bool:
        """Whether the innermost module is a plain `nn.Linear`."""
        return bool(self.stack) and type(self.stack[-1].module) is nn.Linear

    @property
    def attending(self) -> Frame | None:
        """The innermost frame that is more than an `nn.Softmax`."""
        return next((frame for frame in reversed(self.stack) if not isinstance(frame.module, nn.Softmax)), None)

    def mark_unnormalised(self) -> None:
        """Note that the running module multiplies three activations without a softmax."""
        if self.attending is not None:
            self.attending.unnormalised = True

    def name_of(self, module: nn.Module) -> str:
        """The module's name in the model or, for a module outside of it, the name of its caller."""
        return self.names.get(id(module), self.stack[-1].name if self.stack else "")

    def belongs(self, module: nn.Module) -> bool:
        """Whether the module is a part of the model, perhaps compiled, or was called by one."""
        return bool(self.stack) or id(module) in self.names or id(uncompiled(module)) in self.names

    def push(self, module: nn.Module) -> None:
        """Add a frame for a module that begins its forward."""
        self.stack.append(Frame(module, self.name_of(module)))

    def is_idle(self, module: nn.Module) -> bool:
        """Whether the module is the innermost, is neither projection, norm nor attention, and recorded nothing. Then its frame
        can simply be dropped."""
        frame = self.top
        if frame is None or frame.module is not module or frame.records or frame.explained or frame.noteworthy:
            return False
        return not any(frame.role)

    def pop(self, module: nn.Module, given: Any, result: Any) -> Frame | None:
        """Remove the frame of a module that has returned, and any frames above it that never did."""
        top = self.top
        if top is None or (top.module is not module and not any(frame.module is module for frame in self.stack)):
            return None
        while True:
            frame = self.stack.pop()
            if frame.module is module:
                break
        parent = self.top
        if parent is not None:
            parent.explained = parent.explained or frame.explained
            parent.unnormalised = parent.unnormalised or (frame.unnormalised and not frame.explained)
            role = frame.role
            if role.projects or role.normalises:
                features = 1 if isinstance(module, (nn.Conv1d, nn.Conv2d)) else -1
                self.note(parent, frame.name, "projection" if role.projects else "norm", given, result, (), features)
            elif not frame.explained and self._is_small(module):
                parent.records.extend(frame.records)
        return frame

    def note(
        self,
        frame: Frame,
        name: str,
        kind: Literal["projection", "norm"],
        given: Any,
        result: Any,
        parts: tuple[Part, ...] = (),
        features: int = -1,
    ) -> None:
        """Record the output of a projection or a norm inside `frame`."""
        first, output = _first_tensor(given), _first_tensor(result)
        if output is None or not output.dtype.is_floating_point or output.dim() < 2 or output.is_nested:
            return
        source = None if first is None or first.is_nested else first.detach()
        record = Record(name, kind, output.detach(), source, storage_of(output), parts, features)
        frame.records.append(record)
        self._keeper.protect(output, record)

    def _is_small(self, module: nn.Module) -> bool:
        if id(module) not in self._small:
            self._small[id(module)] = sum(1 for _ in islice(module.modules(), SMALL + 2)) <= SMALL + 1
        return self._small[id(module)]


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None


def plain_name(name: str) -> str:
    """The name without the wrappers that `torch.compile` and `checkpoint_wrapper` add: a part has one name with and without."""
    return ".".join(part for part in name.split(".") if part not in ADDED)
