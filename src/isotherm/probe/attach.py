"""`probe`: look at every attention call of a model, and leave the model as it was."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.probe import multihead, own, registry
from isotherm.probe.mode import Hidden, Mode
from isotherm.probe.patches import Patches
from isotherm.probe.session import Seen, Session


@contextmanager
def probe(model: nn.Module) -> Iterator[Seen]:
    """Look at every attention call of `model` while the block runs.

    Nothing about the model changes: no bit of its outputs, no hook, flag, weight, random number or registry entry, even if
    its forward raises. An error of the probe itself is listed in `unseen`. Compiled modules run uncompiled in the block.

    >>> layer = nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
    >>> with probe(layer) as seen:
    ...     _ = layer(torch.randn(1, 5, 16))
    >>> [(capture.name, capture.problem.q.shape) for capture in seen.captures]
    [('self_attn', torch.Size([1, 2, 5, 8]))]
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", Text("a torch.nn.Module", "一个 torch.nn.Module"), got=type(model).__name__)
    session, patches = Session(model), Patches()
    mode = Mode(session)
    with ExitStack() as stack:
        stack.callback(patches.undo)
        stack.enter_context(_eager())
        _patch(session, patches, model, mode)
        stack.enter_context(own.attach(session))
        stack.enter_context(mode)
        yield session.seen


def _patch(session: Session, patches: Patches, model: nn.Module, mode: Mode) -> None:
    hidden = functools.partial(Hidden, mode)
    registry.attach(session, patches, model, lambda: _as_before(mode))
    patches.attribute(nn.MultiheadAttention, "forward", _module(session, hidden))
    patches.attribute(nn.TransformerEncoderLayer, "forward", _layer(session, hidden))
    patches.attribute(nn.TransformerEncoder, "forward", _encoder(session, hidden))
    patches.attribute(nn.Module, "__call__", _call(session))


def _eager() -> AbstractContextManager[Any]:
    """Run compiled code uncompiled: the probe cannot see into it. Nothing is compiled if dynamo was never loaded."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else ExitStack()


@contextmanager
def _as_before(mode: Mode) -> Iterator[None]:
    with Hidden(mode), torch.compiler.set_stance("default"):
        yield


def _call(session: Session) -> Callable[..., Any]:
    """Follow every module's call. Hooks would not do: PyTorch leaves its fused paths for a hook on a module, and compiled
    modules warn about a global one."""
    call = nn.Module.__call__

    @functools.wraps(call)
    def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not session.enter(module):
            return call(module, *args, **kwargs)
        result = None
        try:
            result = call(module, *args, **kwargs)
        finally:
            session.leave(module, (*args, *kwargs.values()), result)
        return result

    return run


def _module(session: Session, hidden: Callable[[], Hidden]) -> Callable[..., Any]:
    forward = nn.MultiheadAttention.forward

    @functools.wraps(forward)
    def attend(module: nn.MultiheadAttention, *args: Any, **kwargs: Any) -> Any:
        if not session.awake:
            return forward(module, *args, **kwargs)
        with hidden(), session.captured_call():
            result = forward(module, *args, **kwargs)
        with session.own_work(module):
            multihead.look_at_module(session, module, args, kwargs)
        return result

    return attend


def _layer(session: Session, hidden: Callable[[], Hidden]) -> Callable[..., Any]:
    forward = nn.TransformerEncoderLayer.forward

    @functools.wraps(forward)
    def run(layer: nn.TransformerEncoderLayer, *args: Any, **kwargs: Any) -> Any:
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

    return run


def _encoder(session: Session, hidden: Callable[[], Hidden]) -> Callable[..., Any]:
    forward = nn.TransformerEncoder.forward

    @functools.wraps(forward)
    def run(encoder: nn.TransformerEncoder, *args: Any, **kwargs: Any) -> Any:
        if not (session.awake and all(isinstance(layer, nn.TransformerEncoderLayer) for layer in encoder.layers)):
            return forward(encoder, *args, **kwargs)
        with hidden():
            return forward(encoder, *args, **kwargs)

    return run
