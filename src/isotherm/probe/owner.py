"""The one owner of what probes replace in PyTorch and transformers while they are open.

These places belong to the whole process: `nn.Module.__call__`, a few forwards, transformers' attention functions, the
compiler's stance. Probes open and close in several threads and in any order, so no probe replaces anything itself. Each place
is replaced once, while at least one open probe needs it, by something that asks which probes are open in the current thread.
Threads without a probe run the original. When no open probe needs a place any more, the original returns, unless someone else
has replaced it in the meantime: then that stays.

`_settle` compares what is replaced with what is needed and makes up the difference. An interrupt may stop it at any point, and
a probe that the garbage collector closes may call it in the middle of another call: the next run finishes the work.
"""

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from isotherm.probe.session import Session

Handler = Callable[..., Any]
"""Takes a session, the function to call and its arguments; calls the function and looks at the call for this session."""


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.sessions: list[Session] = []


_this_thread = _ThisThread()


def sessions_here() -> "list[Session]":
    """The open sessions of this thread, in the order in which they were opened."""
    return _this_thread.sessions


def all_sessions() -> "list[Session]":
    """The open sessions of all threads."""
    return list(_needs)


class Place:
    """An attribute of a class or an entry of a dictionary. `make` returns the replacement for an original."""

    def __init__(self, holder: Any, name: str, make: "Callable[[Any, Place], Any]") -> None:
        self.key = id(holder), name
        self.active = False
        self._holder, self._name, self._make = holder, name, make
        self._original: Any = None
        self._replacement: Any = None

    @classmethod
    def function(cls, holder: Any, name: str, handler: Handler, elsewhere: Handler | None = None) -> "Place":
        """A function, replaced by one that passes its calls through `handler` for every open session of the thread, and through
        `elsewhere` (without a session) in threads that have none."""
        return cls(holder, name, functools.partial(_dispatching, handler, elsewhere))

    def replace(self) -> None:
        """Replace the original, unless someone else has replaced it or us."""
        self.active = True
        current = self._current()
        if self._replacement is None:
            self._original = current
            replacement = self._make(current, self)
            replacement.isotherm_place = self
            self._replacement = replacement
        if current is self._original:
            self._write(self._replacement)

    def restore(self) -> None:
        """Put the original back. If someone else's patch is in the way, ours stays below it and only passes calls on."""
        self.active = False
        if self._current() is self._replacement:
            self._write(self._original)

    def _current(self) -> Any:
        is_class = isinstance(self._holder, type)
        value = (vars(self._holder) if is_class else self._holder).get(self._name)
        left = getattr(value, "isotherm_place", None)  # functools.wraps copies this attribute, so compare the value too
        if isinstance(left, Place) and left is not self and left._replacement is value:
            return left._original  # a patch of someone else kept an earlier probe from restoring this, and is gone now
        return value

    def _write(self, value: Any) -> None:
        if isinstance(self._holder, type):
            setattr(self._holder, self._name, value)
        else:
            self._holder[self._name] = value


def _dispatching(
    handler: Handler, elsewhere: Handler | None, original: Callable[..., Any], place: Place
) -> Callable[..., Any]:
    @functools.wraps(original)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # the compiler looks into this, too
            return original(*args, **kwargs)
        sessions = _this_thread.sessions
        if not sessions or not place.active:
            if elsewhere is not None and place.active:
                return elsewhere(original, *args, **kwargs)
            return original(*args, **kwargs)
        call = original
        for session in tuple(sessions):
            call = functools.partial(handler, session, call)
        return call(*args, **kwargs)

    return dispatch


_lock = threading.RLock()
_needs: "dict[Session, tuple[Place, ...]]" = {}
"""What each open session needs, of all threads."""
_replaced: dict[object, Place] = {}
_last_call = object()
"""Identifies the latest call of `_settle`."""


class Opened:
    """A session from its opening to its closing, in whatever thread that happens. Dropping the object closes the session too,
    so that an interrupt just before `close` does no harm."""

    _closed = True

    def __init__(self, session: "Session", places: tuple[Place, ...]) -> None:
        self._session, self._thread, self._closed = session, _this_thread.sessions, False
        with _lock:
            _needs[session] = places
            _settle()
        session.opened_in = tuple(other.frames.top for other in self._thread if other.frames.top is not None)
        self._thread.append(session)

    @property
    def is_here(self) -> bool:
        """Whether the session follows its model in this thread."""
        return self._thread is _this_thread.sessions

    def close(self) -> None:
        """Let everything be restored that no other session needs."""
        if self._session in self._thread:
            self._thread.remove(self._session)
        if self.is_here:
            self._session.clean_up()
        with _lock:
            _needs.pop(self._session, None)
            _settle()
        self._closed = True

    def __del__(self) -> None:
        if not self._closed:
            self.close()


def _settle() -> None:
    global _last_call  # noqa: PLW0603  the state belongs to the process
    this_call = None
    while this_call is not _last_call:
        this_call = _last_call = object()
        needed = {place.key: place for places in list(_needs.values()) for place in places}
        for key, place in list(_replaced.items()):
            if key not in needed:
                place.restore()
                _replaced.pop(key, None)
        for key, place in needed.items():
            _replaced.setdefault(key, place).replace()
