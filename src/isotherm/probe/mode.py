"""See every torch function that the model calls in Python."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from isotherm.probe import opaque, sdpa
from isotherm.probe.functions import KERNELS, SOFTMAXES, known
from isotherm.probe.reasons import IN_A_TRANSFORM
from isotherm.probe.session import Session
from isotherm.probe.watch import Watch


class Mode(TorchFunctionMode):
    """Passes every call on unchanged, and looks at its arguments and its result. On while the session's model is running."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self.watch = Watch(session)

    def __enter__(self) -> "Mode":
        """Put the mode on the stack."""
        self._session.mode, self._gradients = self, torch.is_grad_enabled()
        _put([self])
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Take the mode off the stack, even if the model has left another on top of it. An interrupt may have come while the
        model's own `no_grad` ended, whose call passes through here, so gradients become as they were."""
        if kind is not None and not issubclass(kind, Exception):
            torch._C._set_grad_enabled(self._gradients)
        _put([mode for mode in _taken() if mode is not self])
        self._session.mode = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass one call on."""
        kwargs = {} if kwargs is None else kwargs
        name, writes, always = known(func)
        session, watch = self._session, self.watch
        writes = writes or "out" in kwargs
        if not (always or writes):
            result = func(*args, **kwargs)
            if watch.wants(name, args, result) and session.awake:
                with session.own_work():
                    watch.after(name, args, kwargs, result)
            return result
        if name == "linear" and not writes and watch.idle and session.frames.in_projection:
            return func(*args, **kwargs)  # the module's frame is recorded when it returns
        if not session.awake:
            return self._unwatched(name, func, args, kwargs)
        if writes or name in SOFTMAXES:
            with session.own_work():
                watch.before(name, args, kwargs)
        result = func(*args, **kwargs)
        with session.own_work():
            if name == opaque.NAME:
                opaque.look(session, func, args, kwargs, result)
            else:
                watch.after(name, args, kwargs, result)
        return result

    def _unwatched(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """A call inside one that is captured as a whole, or inside a transform such as vmap."""
        result = func(*args, **kwargs)
        if name == "scaled_dot_product_attention" and self._session.in_captured_call:
            with self._session.own_work():
                self._session.kernel_calls.append(sdpa.KernelCall.of(args, kwargs, result))
        elif name in SOFTMAXES or name in KERNELS:
            self._session.met_in_a_transform(IN_A_TRANSFORM)
        return result


def watched(session: Session) -> AbstractContextManager[object]:
    """See the functions that are called in a block, even in a session that glances."""
    return Mode(session) if session.mode is None else nullcontext()


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
