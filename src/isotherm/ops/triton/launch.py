# mypy: disable-error-code="import-untyped, import-not-found"
"""The launch tape: a call like an earlier one replays its launches instead of preparing them again.

A launch through Triton takes 24 to 90 µs of Python, half of it or more to find the compiled kernel that fits the arguments,
and a call here makes about four. Kernels, grids and numbers depend on shapes, strides and options alone. So the first call
of a kind is recorded, with PyTorch's operations between its launches, and later calls are played from the tape with their
own tensors. A tape holds no tensor.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from isotherm.ops.triton import cache_keys

cache_keys.settle()  # before any kernel is launched

FAMILIAR = ("3.6",)
"""Versions of Triton whose compiled kernels take arguments in the way that `launch` passes them."""
MOST_TAPES = 512
"""Tapes kept at a time."""

_tapes: dict[Hashable, "Tape"] = {}


class _Here(threading.local):
    """The tape that this thread is recording."""

    tape: "Tape | None" = None


_here = _Here()


class TapeStep(NamedTuple):
    """One recorded operation. `tensors` has pairs of argument index and tensor number, `descriptors` the same for the bases
    of tensor descriptors. `makes` says whether the result is a new tensor."""

    function: Callable[..., Any]
    args: list[Any]
    options: dict[str, Any]
    tensors: list[tuple[int, int]]
    descriptors: list[tuple[int, int]]
    makes: bool


class Tape(TorchDispatchMode):
    """The operations of a call. Tensors have numbers: first those given, then those made on the way."""

    def __init__(self, given: Sequence[Tensor | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[TapeStep] = []
        self.given = len(given)
        self.made: list[Tensor] = []  # held while recording, so that no memory is used twice
        self.numbers = {_identity(x): i for i, x in enumerate(given) if x is not None and x.numel()}
        self.replayable = len(self.numbers) == sum(x is not None and x.numel() > 0 for x in given)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if _here.tape is not self:  # an operation of Triton's, inside a launch
            return made
        if not isinstance(made, Tensor):
            self.replayable = False
            return made
        new = _identity(made) not in self.numbers
        if new or func._schema.is_mutable:
            self.note(func, args, kwargs or {}, makes=new)
        if new:
            self.numbers[_identity(made)] = self.given + len(self.made)
            self.made.append(made)
        return made

    def note(self, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any], *, makes: bool) -> None:
        """Record an operation, with numbers in place of its tensors."""
        blank, tensors, descriptors = list(args), [], []
        for at, each in enumerate(args):
            if isinstance(each, Tensor):
                tensors.append((at, self.number(each)))
                blank[at] = None
            elif hasattr(each, "block_shape"):
                descriptors.append((at, self.number(each.base)))
                blank[at] = _with_base(each, None)
        inner = [x for each in args if isinstance(each, list | tuple) for x in each]
        self.replayable &= not any(isinstance(each, Tensor) for each in (*inner, *options.values()))
        self.steps.append(TapeStep(function, blank, options, tensors, descriptors, makes))

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor. With an unknown tensor the tape cannot be replayed."""
        self.replayable &= _identity(tensor) in self.numbers
        return self.numbers.get(_identity(tensor), 0)

    def release(self) -> None:
        """Let go of the tensors."""
        self.made, self.numbers = [], {}

    def play(self, given: Sequence[Tensor | None]) -> None:
        """Repeat the operations with other tensors."""
        known = list(given)
        for function, blank, options, tensors, descriptors, makes in self.steps:
            args = blank.copy()
            for at, number in tensors:
                args[at] = known[number]
            for at, number in descriptors:
                args[at] = _with_base(args[at], known[number])
            made = function(*args, **options)
            if makes:
                known.append(made)


def _identity(tensor: Tensor) -> tuple[int, torch.dtype]:
    return tensor.data_ptr(), tensor.dtype


def _with_base(descriptor: Any, base: Tensor | None) -> Any:
    """Copy a descriptor for another tensor. Its constructor would repeat checks that have been made."""
    other = object.__new__(type(descriptor))
    other.__dict__.update(descriptor.__dict__, base=base)
    return other


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Do kernel[grid](*args, **options), and record it if this thread is recording."""
    tape, _here.tape = _here.tape, None
    try:
        compiled = kernel[grid](*args, **options)
    finally:
        _here.tape = tape
    if tape is None:
        return
    if compiled is None:  # under the interpreter
        tape.note(kernel[grid], args, options, makes=False)
    else:
        constants = [options[name] for name in kernel.arg_names[len(args) :]]
        tape.note(compiled[(*grid, 1, 1)[:3]], [*args, *constants], {}, makes=False)


def remembered(
    key: Hashable, inputs: Sequence[Tensor | None], results: Sequence[Tensor], body: Callable[[], None]
) -> None:
    """Run `body`, which fills results from inputs, or replay it.

    What `body` does may depend only on `key` and on shapes, strides, types and alignment of the inputs.
    """
    device = results[0].device
    if _here.tape is not None or not _worthwhile(device):
        body()
        return
    kinds = [None if x is None else (x.dtype, x.shape, x.stride(), x.data_ptr() % 16) for x in inputs]
    key, given = (key, *kinds, device), (*inputs, *results)
    tape = _tapes.get(key)
    if tape is not None:
        tape.play(given)
        return
    tape = _here.tape = Tape(given)
    try:
        with tape:
            body()
    finally:
        _here.tape = None
    tape.release()
    if tape.replayable:
        while len(_tapes) >= MOST_TAPES:
            _tapes.pop(next(iter(_tapes)), None)
        _tapes[key] = tape


def _worthwhile(device: torch.device) -> bool:
    return device.type == "cuda" and triton.__version__.startswith(FAMILIAR)


def forget() -> None:
    """Drop all tapes."""
    _tapes.clear()
