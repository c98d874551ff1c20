"""One probe at work: what it has seen, where the model is, and the rule that nothing it does may reach the model."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isotherm.language import Text
from isotherm.ops import Problem, Visibility
from isotherm.probe import factors
from isotherm.probe.capture import Capture
from isotherm.probe.finite import is_finite
from isotherm.probe.frames import Frame, Frames
from isotherm.probe.keep import Keeper, storage_of
from isotherm.probe.kinds import kind_of
from isotherm.probe.masks import Masks, Terms
from isotherm.record import Unseen

FAILED = Text("the probe failed while looking at it: {error}", "探测时出错：{error}")
MISMATCH = Text(
    "what was read from the call ({what}) does not give the model's own result again",
    "用从调用中读到的内容（{what}）算不出模型自己的结果",
)
OTHER_SOFTMAX = Text(
    "it has a softmax over scores that could not be followed back to one q·k",
    "其中有一个 softmax，其分数无法追溯到单一的 q·k",
)
NO_TERMS = Terms()
NO_SOFTMAX = Text("it ran, and no softmax over q·k was recognised in it", "已运行，但其中没有识别出对 q·k 的 softmax")


class NotFinite(NamedTuple):
    """A module whose output has NaN or Inf, and the index of the last call captured before it ended."""

    module: str
    capture: int | None


@dataclass
class Seen:
    """What a probe brings back: `captures` in the order of the calls, the attention modules it could not look into, and the
    first module with a captured call inside it whose output is not finite."""

    captures: list[Capture] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    not_finite: NotFinite | None = None


@dataclass(frozen=True)
class Call:
    """An attention call as an adapter understood it. q [B, Hq, T, D], k [B, Hkv, S, D]; `traced_q` is q before a
    multiplier that is no one number was folded into it."""

    implementation: str
    q: Tensor
    k: Tensor
    scale: float
    passed: float | None
    terms: Terms = NO_TERMS
    causal: bool = False
    first: int = 0
    window: int | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    traced_q: Tensor | None = None

    def problem(self) -> Problem:
        """The call as something to replay; the first query stands at key `first`."""
        q, k = self.q.detach(), self.k.detach()
        positions = torch.arange(q.shape[2], device=q.device) + self.first
        visibility = Visibility(positions, k.shape[2], self.causal, self.window, self.terms.mask)
        return Problem(q, k, k, visibility, self.scale, self.terms.bias, self.softcap)


class Handed(NamedTuple):
    """What a captured function handed to PyTorch's kernel in turn, and what that gave."""

    scale: float
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    causal: bool
    output: Tensor


class _Aside(threading.local):
    """How deep this thread is in some probe's own work: a probe does not look at another one's."""

    depth = 0


_aside = _Aside()


class Session:
    """The state of one probe. Adapters ask `awake` before they look, and look only inside `aside`."""

    def __init__(self, model: nn.Module) -> None:
        self.seen = Seen()
        self.keeper = Keeper()
        self.frames = Frames(model, self.keeper)
        self.masks = Masks()
        self._thread = threading.get_ident()
        self._busy = 0
        self._kept: list[_Kept] = []
        self.noticed = 0
        self.handed_on: list[Handed] = []

    @property
    def here(self) -> bool:
        """Whether this is the probe's own thread, in a forward pass. A checkpoint's second forward, run by the backward
        pass to recompute what was thrown away, is not looked at: it is the same call again. Nor is what runs inside vmap
        and its like (flex masks are made so), where tensors have no memory of their own."""
        forward = torch._C._current_graph_task_id() == -1 and torch._C._functorch.peek_interpreter_stack() is None
        return forward and not _aside.depth and self._thread == threading.get_ident()

    @property
    def awake(self) -> bool:
        """Whether to look at what is happening: the model is at work, outside of a call that was captured already."""
        return not self._busy and bool(self.frames.stack) and self.here

    @property
    def within(self) -> bool:
        """Whether a captured call is running: nothing is captured in it, but what it hands to a kernel is noted."""
        return bool(self._busy) and self.here

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A captured call runs: what it calls in turn is a part of it."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    def aside(self, module: nn.Module | None = None) -> "_Own":
        """The probe's own work: no gradients, no recursion, no mode in the way, and an error becomes an entry among the
        unseen."""
        return _Own(self, module)

    @contextmanager
    def again(self, module: nn.Module | None, device: torch.device) -> Iterator[None]:
        """A call of the model's made once more, to be looked at: it leaves no gradient and draws no random number that the
        model would miss, and what it raises is the probe's own failure."""
        try:
            with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
                yield
        except Exception as error:
            self.failed(error, module)

    def failed(self, error: Exception, module: nn.Module | None) -> None:
        """List what the probe was looking at as unseen, for its own error."""
        name, kind = self._subject(module)
        self.miss(FAILED.format(error=f"{type(error).__name__}: {error}"), name, kind)

    def miss(self, why: Text, name: str, kind: str) -> None:
        """List a module as unseen, once for each reason, and explain every frame around it."""
        self._explain()
        entry = Unseen(name, kind, why)
        if entry not in self.seen.unseen:
            self.seen.unseen.append(entry)

    def capture(
        self, call: Call, module: nn.Module | None = None, agrees: Callable[[Problem], bool] | None = None
    ) -> bool:
        """Add a call, if its problem gives what the model computed, as `agrees` says."""
        name, kind = self._subject(module)
        problem = call.problem()
        if agrees is not None and not agrees(problem):
            return False
        around = self.frames.stack
        q_factor, q_source = factors.trace(call.q if call.traced_q is None else call.traced_q, around)
        k_factor, k_source = factors.trace(call.k, around)
        what = kind_of(problem, name, around, module, (q_source, k_source))
        sink = None if call.sink is None else call.sink.detach().flatten()
        self.add(Capture(name, kind, what, call.implementation, problem, sink, call.passed, q_factor, k_factor))
        return True

    def mismatch(self, call: Call, module: nn.Module | None = None) -> None:
        """List a call that does not give the model's own result again."""
        name, kind = self._subject(module)
        self.miss(MISMATCH.format(what=call.implementation), name, kind)

    def add(self, capture: Capture) -> None:
        """Keep a capture as it is now, whatever the model writes to its tensors later."""
        self._explain()
        self.seen.captures.append(capture)
        kept = _Kept(self.seen, capture)
        self._kept.append(kept)
        for tensor in kept.tensors():
            self.keeper.protect(tensor, kept)

    def withdraw(self, first: int) -> list[Capture]:
        """Take back the captures from that one on."""
        taken = self.seen.captures[first:]
        del self.seen.captures[first:], self._kept[first:]
        return taken

    def _explain(self) -> None:
        self.noticed += 1
        for frame in self.frames.stack:
            frame.explained = True

    def _subject(self, module: nn.Module | None) -> tuple[str, str]:
        """Name and class of the module that attends: the one given, else the innermost that is more than a softmax."""
        if module is not None:
            return self.frames.name_of(module), type(module).__name__
        frame = next((f for f in reversed(self.frames.stack) if not isinstance(f.module, nn.Softmax)), None)
        return ("", "") if frame is None else (frame.name, frame.kind)

    def enter(self, module: nn.Module) -> bool:
        """A module's forward begins; False if it is none of the probe's business."""
        if self._busy or not self.here or not self.frames.belongs(module):
            return False
        self.frames.push(module)
        return True

    def leave(self, module: nn.Module, given: Any, result: Any) -> None:
        """A module's forward has ended, or failed (then `result` is None)."""
        if self.frames.is_idle(module):
            self.frames.stack.pop()
            return
        with self.aside(module):
            frame = self.frames.pop(module, given, result)
            if frame is not None and result is not None:
                self._account(frame)
                self._inspect(frame, result)

    def _account(self, frame: Frame) -> None:
        """An attention module that ended without a capture, or another reason, is unseen."""
        if frame.attends and not frame.explained:
            self.miss(NO_SOFTMAX, frame.name, frame.kind)

    def _inspect(self, frame: Frame, result: Any) -> None:
        """Note the first module with a captured call inside it whose output is not finite."""
        if not frame.explained or not self.seen.captures or self.seen.not_finite is not None:
            return
        output = result[0] if isinstance(result, (tuple, list)) and result else result
        if isinstance(output, Tensor) and not is_finite(output):
            self.seen.not_finite = NotFinite(frame.name, len(self.seen.captures) - 1)


class _Own:
    """See `Session.aside`. A class, not a generator: it is entered for every module and every function of interest."""

    __slots__ = ("_function", "_gradients", "_module", "_session")

    def __init__(self, session: Session, module: nn.Module | None) -> None:
        self._session, self._module = session, module

    def __enter__(self) -> None:
        _aside.depth += 1
        self._gradients = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        self._function = torch._C.DisableTorchFunction()
        self._function.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self._function.__exit__(None, None, None)
        torch._C._set_grad_enabled(self._gradients)
        try:
            if isinstance(error, Exception):
                self._session.failed(error, self._module)
                return True
            return False
        finally:
            _aside.depth -= 1


@dataclass(eq=False)
class _Kept:
    """A capture's tensors, each copied before the model writes over it."""

    seen: Seen
    capture: Capture

    def tensors(self) -> list[Tensor]:
        """All that the capture refers to."""
        problem = self.capture.problem
        everything = (problem.q, problem.k, problem.bias, problem.visibility.mask, self.capture.sink)
        return [tensor for tensor in everything if tensor is not None]

    def take_copy(self, storage: int) -> None:
        """Called before the model writes to that memory."""

        def own(tensor: Tensor | None) -> Any:
            return tensor.clone() if tensor is not None and storage_of(tensor) == storage else tensor

        old = self.capture.problem
        k = own(old.k)
        problem = replace(
            old,
            q=own(old.q),
            k=k,
            v=k,
            bias=own(old.bias),
            visibility=replace(old.visibility, mask=own(old.visibility.mask)),
        )
        new = replace(self.capture, problem=problem, sink=own(self.capture.sink))
        self.seen.captures[:] = [new if capture is self.capture else capture for capture in self.seen.captures]
        self.capture = new
