"""`probe`: look at every attention call of a model, and leave the model as it was."""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.probe import multihead, observe, registry
from isotherm.probe.close import CloseLook
from isotherm.probe.mode import Mode, hidden
from isotherm.probe.owner import Opened, Place, all_sessions, sessions_here
from isotherm.probe.seen import Seen
from isotherm.probe.session import Session


@contextmanager
def probe(model: nn.Module, closely: Iterable[str] = ()) -> Iterator[Seen]:
    """Look at every attention call that `model` makes in this thread while the block runs.

    Modules named in `closely` are looked at operator by operator, which takes longer.

    Nothing about the model changes: no bit of its outputs, no hook, flag, weight, random number or registry entry, even if
    its forward raises. An error of the probe itself is listed in `unseen`. In the block the model runs uncompiled.

    Probes may be open in several threads and close in any order; each sees its own model only. A probe that is opened inside
    a forward that another probe follows takes over until it is closed.

    >>> import torch
    >>> layer = nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
    >>> with probe(layer) as seen:
    ...     _ = layer(torch.randn(1, 5, 16))
    >>> [(capture.name, capture.problem.q.shape) for capture in seen.captures]
    [('self_attn', torch.Size([1, 2, 5, 8]))]
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", Text("a torch.nn.Module", "一个 torch.nn.Module"), got=type(model).__name__)
    session = Session(model, frozenset(closely))
    with follow(session):
        yield session.seen


@contextmanager
def follow(session: Session) -> Iterator[None]:
    """Have a session follow its model in this thread while the block runs."""
    opened = open_session(session)
    try:
        yield
    finally:
        opened.close()
        session.finish()


def open_session(session: Session) -> Opened:
    """Have a session follow its model in this thread until the result is closed."""
    return Opened(session, (*_places(), *registry.places(session.model)))


def _places() -> Iterator[Place]:
    """What a probe needs for any model."""
    yield Place.function(nn.MultiheadAttention, "forward", _attention_module)
    yield Place.function(nn.TransformerEncoderLayer, "forward", _encoder_layer)
    yield Place.function(nn.TransformerEncoder, "forward", _encoder)
    yield Place.function(nn.Module, "__call__", _module, _elsewhere)
    yield observe.Observed()
    if "torch.nn.attention.flex_attention" in sys.modules:  # which loads dynamo in its first call, to compile itself
        importlib.import_module("torch._dynamo.eval_frame")
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None:  # nothing is compiled if dynamo was never loaded
        yield Place(vars(compiler), "_stance", _Stance)


class _Stance:
    """The compiler's stance, which decides for the whole process whether compiled code is used. In a thread with an open probe
    it says no, because a probe cannot see into compiled code, but for calls that are no business of the probe's.
    `torch.compiler.set_stance` would say so in every thread."""

    def __init__(self, original: Any, place: Place) -> None:
        self._original, self._place = original, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    @property
    def stance(self) -> str:
        """The stance in this thread."""
        sessions = sessions_here() if self._place.active else ()
        eager = not all(session.aside for session in sessions) and not any(session.may_compile for session in sessions)
        return "force_eager" if eager else str(self._original.stance)


def _module(session: Session, call: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Follow a module's call. Hooks would not do: PyTorch leaves its fused paths for a hook on a module, and compiled modules
    warn about a global one."""
    outermost = not session.frames.stack
    if session.glances and not outermost:
        return call(module, *args, **kwargs)
    if not session.enter(module):
        with session.aside.during(module, session.passes_by) if outermost else nullcontext():
            return call(module, *args, **kwargs)
    closer = session.close_look is None and (session.is_close_to_top() or isinstance(module, torch.jit.ScriptModule))
    if not outermost and not closer:
        return _followed(session, call, module, args, kwargs)
    with ExitStack() as stack:
        if outermost and not session.glances:
            stack.enter_context(Mode(session))
        if closer:
            stack.enter_context(hidden())
            stack.enter_context(CloseLook(session))
        return _followed(session, call, module, args, kwargs)


def _followed(session: Session, call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
    result = None
    try:
        result = call(module, *args, **kwargs)
    finally:
        session.leave(module, (*args, *kwargs.values()), result)
    return result


def _elsewhere(call: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """A module's call in a thread without a probe. If a forward that some probe follows runs a part of its model here, that
    probe notes it. A call of the whole model is another forward, which is no business of the probe's."""
    for session in all_sessions():
        if module is not session.model and session.might_miss(module) and not _runs_here(session.model):
            session.elsewhere[session.frames.name_of(module)] = module
    return call(module, *args, **kwargs)


def _runs_here(model: nn.Module) -> bool:
    """Whether this thread is inside a call of the model."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in ("_call_impl", "_wrapped_call_impl") and frame.f_locals.get("self") is model:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _attention_module(
    session: Session, forward: Callable[..., Any], module: nn.MultiheadAttention, *args: Any, **kwargs: Any
) -> Any:
    if not session.awake:
        return forward(module, *args, **kwargs)
    with hidden(), session.captured_call():
        result = forward(module, *args, **kwargs)
    with session.own_work(module):
        multihead.look_at_module(session, module, args, kwargs)
    return result


def _encoder_layer(
    session: Session, forward: Callable[..., Any], layer: nn.TransformerEncoderLayer, *args: Any, **kwargs: Any
) -> Any:
    plain = type(layer)._sa_block is nn.TransformerEncoderLayer._sa_block
    if not (session.awake and plain and isinstance(layer.self_attn, nn.MultiheadAttention)):
        return forward(layer, *args, **kwargs)
    before = session.noticed
    with hidden():
        result = forward(layer, *args, **kwargs)
    if session.noticed == before:
        with session.own_work(layer.self_attn):
            multihead.look_at_layer(session, layer, args, kwargs)
    return result


def _encoder(
    session: Session, forward: Callable[..., Any], encoder: nn.TransformerEncoder, *args: Any, **kwargs: Any
) -> Any:
    if not (session.awake and all(isinstance(layer, nn.TransformerEncoderLayer) for layer in encoder.layers)):
        return forward(encoder, *args, **kwargs)
    with hidden():
        return forward(encoder, *args, **kwargs)
