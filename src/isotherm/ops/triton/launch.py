# mypy: disable-error-code="import-untyped, import-not-found"
"""The launch tape: a call like an earlier one replays its launches instead of preparing them again.

A launch through Triton takes 24 to 90 µs of Python, half of it or more to find the compiled kernel that fits the arguments,
and a call here makes about four. Kernels, grids and numbers depend on shapes, strides and options alone. So the first call
of a kind is recorded, with PyTorch's operations between its launches, and later calls are played from the tape with their
own tensors. A tape holds no tensor: its launches are handed addresses.
"""

import inspect
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from isotherm.ops import kept
from isotherm.ops.triton import cache_keys

cache_keys.settle()  # before any kernel is launched

FAMILIAR = ("3.6",)
"""Versions of Triton whose compiled kernels take arguments in the way that `TapeLaunch` passes them, and whose Gluon compiles
the kernel for Hopper: Triton changes both."""
MOST_TAPES = 512
"""Tapes kept at a time."""
MOST_ADDRESSES = 64
"""Addresses for which a descriptor is kept."""
STREAM = 3
"""Where Triton's launcher takes the stream."""

_tapes: dict[Hashable, "Tape"] = {}


class _Here(threading.local):
    """The tape that this thread is recording."""

    tape: "Tape | None" = None


_here = _Here()


class TapeStep(NamedTuple):
    """One of PyTorch's operations. `tensors` has pairs of argument index and tensor number; `makes` says whether the result
    is a new tensor."""

    function: Callable[..., Any]
    args: list[Any]
    options: dict[str, Any]
    tensors: list[tuple[int, int]]
    makes: bool

    def play(self, known: list[Tensor | None], addresses: list[int], stream: int) -> None:  # noqa: ARG002
        """Do it with the tensors of this call."""
        args = self.args.copy()
        for at, number in self.tensors:
            args[at] = known[number]
        made = self.function(*args, **self.options)
        if self.makes:
            known.append(made)
            addresses.append(made.data_ptr())


class TapeLaunch(NamedTuple):
    """One launch of a compiled kernel. `args` is what Triton's launcher, a C function, takes, with gaps for addresses.

    `tensors` has pairs of argument index and tensor number; `descriptors` has an index, a number, what else is encoded, and
    what was encoded for some addresses, which come again.
    """

    function: Callable[..., Any]
    args: list[Any]
    tensors: list[tuple[int, int]]
    descriptors: list[tuple[int, int, tuple[Any, ...], dict[int, Any]]]
    encode: Callable[..., Any]

    @classmethod
    def of(
        cls,
        tape: "Tape",
        kernel: Any,
        compiled: Any,
        grid: tuple[int, ...],
        args: Sequence[Any],
        options: dict[str, Any],
    ) -> "TapeLaunch":
        """Lay the arguments out as `triton.backends.nvidia.driver` does, once for all calls of this kind."""
        run = compiled.run
        # Where a kernel takes descriptors, a Python function encodes them and calls the launcher.
        within = inspect.getclosurevars(run.launch).nonlocals if inspect.isfunction(run.launch) else {}
        metadata = iter(within.get("tensordesc_meta") or ())
        tape.replayable &= run.global_scratch_size == run.profile_scratch_size == 0
        options_of_launch = (run.launch_cooperative_grid, run.launch_pdl, None, None, compiled.packed_metadata)
        flat: list[Any] = [*(*grid, 1, 1)[:3], 0, compiled.function, *options_of_launch, None, None, None]
        tensors: list[tuple[int, int]] = []
        descriptors: list[tuple[int, int, tuple[Any, ...], dict[int, Any]]] = []
        for each in (*args, *(options[name] for name in kernel.arg_names[len(args) :])):
            if isinstance(each, Tensor):
                tensors.append((len(flat), tape.number(each)))
                flat.append(0)
            elif hasattr(each, "block_shape"):
                encoded = _encoding(inspect.getmodule(type(run)), each, next(metadata, None))
                tape.replayable &= encoded is not None
                descriptors.append((len(flat), tape.number(each.base), encoded or (), {}))
                flat += [None, *each.shape, *each.strides]
            else:
                flat.append(each)
        encode = triton.runtime.driver.active.utils.fill_tma_descriptor
        return cls(within.get("launcher", run.launch), flat, tensors, descriptors, encode)

    def play(self, known: list[Tensor | None], addresses: list[int], stream: int) -> None:  # noqa: ARG002
        """Launch it with the tensors of this call."""
        args = self.args.copy()
        args[STREAM] = stream
        for at, number in self.tensors:
            args[at] = addresses[number]
        for at, number, encoded, known_at in self.descriptors:
            address = addresses[number]
            found = known_at.get(address)
            if found is None:
                if len(known_at) >= MOST_ADDRESSES:
                    known_at.clear()
                found = known_at[address] = self.encode(address, *encoded)
            args[at] = found
        self.function(*args)


def _encoding(driver: Any, descriptor: Any, metadata: dict[str, Any] | None) -> tuple[Any, ...] | None:
    """Return what a descriptor's encoding takes beside the address; None if a kernel takes it in another way."""
    if metadata is None or metadata["fp4_padded"]:
        return None
    kind, padding = driver.TMA_DTYPE_DEVICE_TO_HOST[metadata["elem_type"]], int(descriptor.padding == "nan")
    size, block = metadata["elem_size"], metadata["block_size"]
    return metadata["swizzle"], size, kind, block, descriptor.shape, descriptor.strides, padding


class Tape(TorchDispatchMode):
    """The operations of a call. Tensors have numbers: first those given, then those made on the way."""

    def __init__(self, given: Sequence[Tensor | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[TapeStep | TapeLaunch] = []
        self.given = len(given)
        self.made: list[Tensor] = []  # held while recording, so that no memory is used twice
        self.views: set[tuple[int, torch.dtype]] = set()
        self.layouts = [None if x is None else _layout(x) for x in given]
        self.numbers = {_identity(x): i for i, x in enumerate(given) if x is not None and x.numel()}
        self.replayable = len(self.numbers) == len({id(x) for x in given if x is not None and x.numel()})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if _here.tape is not self:  # an operation of Triton's, inside a launch
            return made
        if not isinstance(made, Tensor):
            self.replayable = False
            return made
        key = _identity(made)
        new = key not in self.numbers
        base = next((number for (at, _), number in self.numbers.items() if at == key[0]), None) if new else None
        if base is not None and made.numel():  # a view as another type: launches need its address alone
            self.numbers[key] = base
            self.views.add(key)
            return made
        if new or func._schema.is_mutable:
            self.note(func, args, kwargs or {}, makes=new)
        if new:
            self.numbers[key] = self.given + len(self.made)
            self.made.append(made)
            self.layouts.append(_layout(made))
        return made

    def note(self, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any], *, makes: bool) -> None:
        """Record an operation, with numbers in place of its tensors."""
        tensors = [(at, self.number(each)) for at, each in enumerate(args) if isinstance(each, Tensor)]
        blank = [None if isinstance(each, Tensor) else each for each in args]
        inner = [x for each in args if isinstance(each, list | tuple) for x in each]
        self.replayable &= not any(isinstance(each, Tensor) for each in (*inner, *options.values()))
        self.replayable &= not any(isinstance(each, Tensor) and _identity(each) in self.views for each in args)
        # The beginning of a tensor lies where the tensor does. A view of it does, too, and a launch needs its address alone.
        parts = (_layout(args[at]) != self.layouts[number] for at, number in tensors)
        self.replayable &= getattr(function, "is_view", False) or not any(parts)
        self.steps.append(TapeStep(function, blank, options, tensors, makes))

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor. With an unknown tensor the tape cannot be replayed."""
        self.replayable &= _identity(tensor) in self.numbers
        return self.numbers.get(_identity(tensor), 0)

    def release(self) -> None:
        """Let go of the tensors."""
        self.made, self.numbers, self.layouts = [], {}, []

    def play(self, known: list[Tensor | None], addresses: list[int], device: torch.device) -> None:
        """Repeat the operations with other tensors, which lie at these addresses. Both lists grow."""
        stream = torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0
        for step in self.steps:
            step.play(known, addresses, stream)


def _identity(tensor: Tensor) -> tuple[int, torch.dtype]:
    return tensor.data_ptr(), tensor.dtype


def _layout(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(tensor.shape), tensor.stride()


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Do kernel[grid](*args, **options), and record it if this thread is recording."""
    tape, _here.tape = _here.tape, None
    try:
        compiled = kernel[grid](*args, **options)
    finally:
        _here.tape = tape
    if tape is not None:
        tape.steps.append(TapeLaunch.of(tape, kernel, compiled, grid, args, options))


def remembered(
    key: Hashable, inputs: Sequence[Tensor | None], results: Sequence[Tensor], body: Callable[[], None]
) -> None:
    """Run `body`, which fills results from inputs, or replay it.

    What `body` does, and how the results lie in memory, may depend only on `key` and on shapes, strides, types and alignment.
    """
    device = results[0].device
    if _here.tape is not None or not _worthwhile(device):
        body()
        return
    given = [*inputs, *results]
    addresses = [0 if x is None else x.data_ptr() for x in given]
    kinds = [None if x is None else (x.dtype, x.shape, x.stride()) for x in inputs]
    # One tensor may be given twice (a probe's k stands for v), but not two that lie in one place.
    ids = [id(x) for x in inputs]
    key = (key, device, *kinds, *map(ids.index, ids), *[address % 16 for address in addresses])
    tape = _tapes.get(key)
    if tape is not None:
        tape.play(given, addresses, device)
        return
    tape = _here.tape = Tape(given)
    try:
        with tape:
            body()
    finally:
        _here.tape = None
    tape.release()
    if tape.replayable:
        kept.make_room(_tapes, MOST_TAPES)
        _tapes[key] = tape


def is_familiar() -> bool:
    """Return whether this is one of the `FAMILIAR` versions of Triton."""
    return triton.__version__.startswith(FAMILIAR)


def _worthwhile(device: torch.device) -> bool:
    """Return whether calls are recorded and played: not under a profiler of Triton's, which has to see each launch."""
    if device.type != "cuda" or not is_familiar():
        return False
    hooks = triton.knobs.runtime
    return not (hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls)


def forget() -> None:
    """Drop all tapes."""
    _tapes.clear()
