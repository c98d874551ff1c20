# mypy: disable-error-code="import-untyped, import-not-found"
"""Launches remembered: a call like one before repeats its launches, without looking at every argument anew.

For Triton a launch is 24 to 90 µs of Python, half of it or more to find the compiled kernel that fits the arguments, and a
call here is four of them. Which kernels, grids and numbers they are depends on shapes, strides and options alone. So a call
is recorded the first time, with PyTorch's own operations on the way, and played from then on with other tensors in their
places.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

FAMILIAR = ("3.6",)
"""Versions of Triton whose compiled kernels take a kernel's arguments as this does it."""
MOST = 512
"""Calls remembered at a time."""

_tapes: dict[Hashable, "Tape"] = {}


class _Here(threading.local):
    """The tape that is recorded in this thread."""

    tape: "Tape | None" = None


_here = _Here()


class Step(NamedTuple):
    """Something done to tensors. Places say which argument is which tensor, and tiles which is the base of a descriptor."""

    function: Callable[..., Any]
    args: list[Any]
    options: dict[str, Any]
    places: list[tuple[int, int]]
    tiles: list[tuple[int, int]]
    makes: bool


class Tape(TorchDispatchMode):
    """What a call does, with tensors by number: those given, then those made on the way."""

    def __init__(self, given: Sequence[Tensor | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Step] = []
        self.given = len(given)
        self.made: list[Tensor] = []  # held while recording, so that no memory is used twice
        self.numbers = {_place(x): i for i, x in enumerate(given) if x is not None and x.numel()}
        self.whole = len(self.numbers) == sum(x is not None and x.numel() > 0 for x in given)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if _here.tape is not self:  # Triton's, on the way to a launch
            return made
        if not isinstance(made, Tensor):
            self.whole = False
            return made
        new = _place(made) not in self.numbers
        if new or func._schema.is_mutable:
            self.note(func, args, kwargs or {}, makes=new)
        if new:
            self.numbers[_place(made)] = self.given + len(self.made)
            self.made.append(made)
        return made

    def note(self, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any], *, makes: bool) -> None:
        """Add a step."""
        blank, places, tiles = list(args), [], []
        for at, each in enumerate(args):
            if isinstance(each, Tensor):
                places.append((at, self.number(each)))
                blank[at] = None
            elif hasattr(each, "block_shape"):
                tiles.append((at, self.number(each.base)))
                blank[at] = _over(each, None)
        inner = [x for each in args if isinstance(each, list | tuple) for x in each]
        self.whole &= not any(isinstance(each, Tensor) for each in (*inner, *options.values()))
        self.steps.append(Step(function, blank, options, places, tiles, makes))

    def number(self, tensor: Tensor) -> int:
        """Of a tensor that is known."""
        self.whole &= _place(tensor) in self.numbers
        return self.numbers.get(_place(tensor), 0)

    def wind(self) -> None:
        """Let go of the tensors."""
        self.made, self.numbers = [], {}

    def play(self, given: Sequence[Tensor | None]) -> None:
        """The same to other tensors."""
        tensors = list(given)
        for function, blank, options, places, tiles, makes in self.steps:
            args = blank.copy()
            for at, number in places:
                args[at] = tensors[number]
            for at, number in tiles:
                args[at] = _over(args[at], tensors[number])
            made = function(*args, **options)
            if makes:
                tensors.append(made)


def _place(tensor: Tensor) -> tuple[int, torch.dtype]:
    """What a kernel knows of a tensor that is not said otherwise."""
    return tensor.data_ptr(), tensor.dtype


def _over(descriptor: Any, base: Tensor | None) -> Any:
    """A descriptor like this of another tensor; its maker would check once more what has been checked."""
    other = object.__new__(type(descriptor))
    other.__dict__.update(descriptor.__dict__, base=base)
    return other


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """kernel[grid](*args, **options)."""
    tape, _here.tape = _here.tape, None
    try:
        compiled = kernel[grid](*args, **options)
    finally:
        _here.tape = tape
    if tape is None:
        return
    if compiled is None:  # the interpreter's
        tape.note(kernel[grid], args, options, makes=False)
    else:
        rest = [options[name] for name in kernel.arg_names[len(args) :]]
        tape.note(compiled[(*grid, 1, 1)[:3]], [*args, *rest], {}, makes=False)


def remembered(
    key: Hashable, inputs: Sequence[Tensor | None], results: Sequence[Tensor], body: Callable[[], None]
) -> None:
    """Do `body`, which fills results from inputs: all that it depends on is the key, and how the inputs lie in memory."""
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
    tape.wind()
    if tape.whole:
        while len(_tapes) >= MOST:
            _tapes.pop(next(iter(_tapes)), None)
        _tapes[key] = tape


def _worthwhile(device: torch.device) -> bool:
    return device.type == "cuda" and triton.__version__.startswith(FAMILIAR)


def forget() -> None:
    """Record everything anew."""
    _tapes.clear()
