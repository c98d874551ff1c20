"""Watch every torch function that the model calls: fused attention, hand-written attention, projections without a module, and
writes to memory that the probe still refers to."""

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from isotherm.probe import multihead
from isotherm.probe.parts import parts_of, weight_of
from isotherm.probe.scores import STEPS, Scores, emit
from isotherm.probe.sdpa import KernelCall, look
from isotherm.probe.session import OTHER_SOFTMAX, Session

PROJECTIONS = frozenset({"linear", "matmul", "einsum", "addmm", "bmm", "__matmul__"})
NORMS = frozenset({"normalize", "layer_norm", "rms_norm", "group_norm"})
FOLLOWED = STEPS.keys() - PROJECTIONS - {"baddbmm"}
"""Functions that matter only while some q·kᵀ is being followed."""
LOOKED_AT = {*PROJECTIONS, *NORMS, *STEPS, "scaled_dot_product_attention", "multi_head_attention_forward"}


@functools.cache
def _of_interest(func: Any) -> str | None:
    """The function's name, or None if the probe has no use for it: most calls only ask a tensor for its shape."""
    name = str(getattr(func, "__name__", ""))
    return name if name in LOOKED_AT or name == "softmax" or _writes(name) else None


def _writes(name: str) -> bool:
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


class Mode(TorchFunctionMode):
    """Passes every call on unchanged, and looks at its arguments and its result. On while the session's model is running."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._scores = WeakTensorKeyDictionary()

    def __enter__(self) -> "Mode":
        """Put the mode on the stack."""
        self._session.mode = self
        _put([self])
        return self

    def __exit__(self, *_: object) -> None:
        """Take the mode off the stack, even if the model has left another on top of it."""
        _put([mode for mode in _taken() if mode is not self])
        self._session.mode = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass one call on."""
        kwargs = {} if kwargs is None else kwargs
        name = _of_interest(func)
        if (name is None or (name in FOLLOWED and not self._scores.data)) and "out" not in kwargs:
            return func(*args, **kwargs)
        if not self._session.awake:
            result = func(*args, **kwargs)
            if name == "scaled_dot_product_attention" and self._session.in_captured_call:
                with self._session.own_work():
                    self._session.kernel_calls.append(KernelCall.of(args, kwargs, result))
            return result
        name = name or ""
        writes = _writes(name) or "out" in kwargs
        if name == "softmax" or writes:
            with self._session.own_work():
                self._before(name, args, kwargs)
        result = func(*args, **kwargs)
        if writes or name in LOOKED_AT:
            with self._session.own_work():
                self._after(name, args, kwargs, result)
        return result

    def _before(self, name: str, args: Any, kwargs: Any) -> None:
        if name == "softmax":
            self._softmax(args, kwargs)
        target = kwargs.get("out", args[0] if args else None)
        if name != "softmax" and isinstance(target, Tensor):
            self._session.keeper.before_write(target)

    def _after(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        if name == "scaled_dot_product_attention":
            look(self._session, KernelCall.of(args, kwargs, result))
        elif name == "multi_head_attention_forward":
            multihead.look_at_function(self._session, args, kwargs)
        elif isinstance(result, Tensor):
            self._project(name, (*args, *kwargs.values()), result)
            self._follow(name, args, kwargs, result)
        elif name == "__setitem__":
            self._scores.pop(args[0], None)

    def _project(self, name: str, args: Any, result: Tensor) -> None:
        """Record a projection or a norm that is a function call and not a module."""
        frame = self._session.frames.top
        if frame is None or (name not in PROJECTIONS and name not in NORMS):
            return
        if name in NORMS:
            if not frame.normalises:
                self._session.frames.note(frame, f"{frame.name}.{name}", "norm", args, result)
            return
        weight = None if frame.projects else weight_of(name, args)
        if weight is not None:
            own, parts = parts_of(frame, name, args, weight)
            given = [x for x in args if isinstance(x, Tensor) and x is not weight]
            self._session.frames.note(frame, own, "projection", given, result, parts)

    def _follow(self, name: str, args: Any, kwargs: Any, result: Tensor) -> None:
        """Describe the result, if it is made from a q·kᵀ that is being followed."""
        in_place = name.endswith("_") and not name.endswith("__")
        step = STEPS.get(name[:-1] if in_place else name)
        if step is None:
            if in_place:
                self._scores.pop(args[0], None)
            return
        scores = step(self._find, args, kwargs) if args else None
        if scores is not None and tuple(result.shape) != scores.shape:
            scores = scores.viewed(tuple(result.shape))
        if scores is not None:
            self._scores[result] = scores
        elif in_place:
            self._scores.pop(result, None)

    def _find(self, tensor: object) -> Scores | None:
        return self._scores.get(tensor) if isinstance(tensor, Tensor) else None

    def _softmax(self, args: Any, kwargs: Any) -> None:
        """Capture a softmax over the last dimension of followed scores, or list it as unseen."""
        logits = args[0] if args else kwargs.get("input")
        scores = self._find(logits)
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if scores is not None and isinstance(axis, int) and axis % logits.dim() == logits.dim() - 1:
            emit(self._session, scores, logits.detach())
            return
        frame = self._session.frames.attending
        if frame is not None and frame.attends and logits.dim() > 2:
            self._session.miss(OTHER_SOFTMAX, frame.name, frame.kind)


@contextmanager
def hidden() -> Iterator[None]:
    """Take the modes of all probes off this thread's stack for a while: PyTorch does not take its fused paths under a mode."""
    before = _taken()
    try:
        _put(mode for mode in before if not isinstance(mode, Mode))
        yield
    finally:
        now = _taken()
        for index, mode in enumerate(before):
            if isinstance(mode, Mode):
                now.insert(index, mode)
        _put(now)


def _taken() -> list[TorchFunctionMode]:
    """This thread's modes, lowest first, taken off the stack."""
    depth = torch._C._len_torch_function_stack()
    return [torch._C._pop_torch_function_stack() for _ in range(depth)][::-1]


def _put(modes: Iterable[TorchFunctionMode]) -> None:
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)
