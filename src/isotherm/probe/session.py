"""The state of one probe: what it has seen, which modules are running, and whether to look at a call."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from isotherm.language import Text
from isotherm.ops import Problem, Visibility
from isotherm.probe import factors
from isotherm.probe.capture import Capture
from isotherm.probe.finite import is_finite
from isotherm.probe.frames import Frame, Frames
from isotherm.probe.keep import Keeper, storage_of
from isotherm.probe.kinds import has_one_input, kind_of
from isotherm.probe.masks import Masks, Terms, padded_positions
from isotherm.probe.owner import sessions_here
from isotherm.record import Unseen

if TYPE_CHECKING:
    from isotherm.probe.sdpa import KernelCall

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
    """What a probe brings back: `captures` in the order of the calls, the attention modules that it could not see into, and
    the first module with a captured call inside it whose output is not finite."""

    captures: list[Capture] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    not_finite: NotFinite | None = None


@dataclass(frozen=True)
class Call:
    """An attention call as an adapter understood it: q [B, Hq, T, D], k [B, Hkv, S, D]. If the multiplier of q·k is not one
    number, q contains it, and `traced_q` is q without it. `padded` [B, T] is True where the adapter knows a query to be
    padding."""

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
    padded: Tensor | None = None

    def problem(self) -> Problem:
        """The call as a problem that can be replayed. The first query is at the position of key `first`."""
        q, k = self.q.detach(), self.k.detach()
        positions = torch.arange(q.shape[2], device=q.device) + self.first
        visibility = Visibility(positions, k.shape[2], self.causal, self.window, self.terms.mask)
        return Problem(q, k, k, visibility, self.scale, self.terms.bias, self.softcap)


class Session:
    """The state of one probe. Adapters look only if it is `awake`, and only in its `own_work`."""

    def __init__(self, model: nn.Module) -> None:
        self.seen = Seen()
        self.keeper = Keeper()
        self.frames = Frames(model, self.keeper)
        self.masks = Masks()
        self.opened_in: tuple[Frame, ...] = ()
        self.may_compile = False
        self.working: _OwnWork | None = None
        self.mode: TorchFunctionMode | None = None
        self._busy = 0
        self._kept: list[_Kept] = []
        self.noticed = 0
        self.kernel_calls: list[KernelCall] = []

    @property
    def here(self) -> bool:
        """Whether the code that runs is the model's, in an ordinary forward pass.

        It is not the model's if it is the work of a probe, or if another probe was opened in the innermost frame: that probe's
        calls are its own. The second forward of a checkpoint, which the backward pass runs, repeats a call that was seen
        already. Inside vmap and other transforms (flex masks are made there) tensors have no memory of their own.
        """
        if torch._C._current_graph_task_id() != -1 or torch._C._functorch.peek_interpreter_stack() is not None:
            return False
        top = self.frames.top
        return not any(other.working is not None or top in other.opened_in for other in sessions_here())

    @property
    def awake(self) -> bool:
        """Whether to look: the model is running, and not inside a call that is captured as a whole."""
        return not self._busy and bool(self.frames.stack) and self.here

    @property
    def in_captured_call(self) -> bool:
        """Whether a call that is captured as a whole is running. What it passes to PyTorch's kernel is noted."""
        return bool(self._busy) and self.here

    @contextmanager
    def captured_call(self) -> Iterator[None]:
        """Run a call that is captured as a whole: nothing inside it is captured separately."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Let compiled code run compiled for a while."""
        self.may_compile = True
        try:
            yield
        finally:
            self.may_compile = False

    def own_work(self, module: nn.Module | None = None) -> "_OwnWork":
        """Do work of the probe itself, without gradients and modes. No probe looks at it; an error is listed as unseen."""
        return _OwnWork(self, module)

    def clean_up(self) -> None:
        """Finish what an interrupt has cut short in this thread: gradients, functions and modes become as they were."""
        while self.working is not None:
            self.working.restore()
        if self.mode is not None:
            self.mode.__exit__(None, None, None)

    @contextmanager
    def rerun(self, module: nn.Module | None, device: torch.device) -> Iterator[None]:
        """Repeat a call of the model in order to look at it: without gradients, and with the random state restored. An error is
        listed as unseen."""
        try:
            with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
                yield
        except Exception as error:
            self.failed(error, module)

    def failed(self, error: Exception, module: nn.Module | None) -> None:
        """List the module as unseen, because the probe itself raised an error."""
        name, kind = self._subject(module)
        self.miss(FAILED.format(error=f"{type(error).__name__}: {error}"), name, kind)

    def miss(self, why: Text, name: str, kind: str) -> None:
        """List a module as unseen, once for each reason."""
        self._explain()
        entry = Unseen(name, kind, why)
        if entry not in self.seen.unseen:
            self.seen.unseen.append(entry)

    def capture(
        self, call: Call, module: nn.Module | None = None, agrees: Callable[[Problem], bool] | None = None
    ) -> bool:
        """Add a call. If `agrees` says that its problem does not give what the model computed, return False instead."""
        name, kind = self._subject(module)
        problem = call.problem()
        if agrees is not None and not agrees(problem):
            return False
        around = self.frames.stack
        q_factor, q_source = factors.trace(call.q if call.traced_q is None else call.traced_q, around)
        k_factor, k_source = factors.trace(call.k, around)
        what = kind_of(problem, name, around, module, (q_source, k_source))
        padded = call.padded
        if padded is None and what == "self" and (call.causal or has_one_input(around, (q_source, k_source))):
            padded = padded_positions(problem.visibility)
        sink = None if call.sink is None else call.sink.detach().flatten()
        self.add(Capture(name, kind, what, call.implementation, problem, sink, call.passed, q_factor, k_factor, padded))
        return True

    def mismatch(self, call: Call, module: nn.Module | None = None) -> None:
        """List a call as unseen, because it does not reproduce the model's result."""
        name, kind = self._subject(module)
        self.miss(MISMATCH.format(what=call.implementation), name, kind)

    def add(self, capture: Capture) -> None:
        """Keep a capture as it is now, even if the model overwrites its tensors later."""
        self._explain()
        self.seen.captures.append(capture)
        kept = _Kept(self.seen, capture)
        self._kept.append(kept)
        for tensor in kept.tensors():
            self.keeper.protect(tensor, kept)

    def withdraw(self, first: int) -> list[Capture]:
        """Remove the captures from index `first` on, and return them."""
        taken = self.seen.captures[first:]
        del self.seen.captures[first:], self._kept[first:]
        return taken

    def _explain(self) -> None:
        self.noticed += 1
        for frame in self.frames.stack:
            frame.explained = True

    def _subject(self, module: nn.Module | None) -> tuple[str, str]:
        """Name and class of the module that attends: the given one, or else the innermost."""
        if module is not None:
            return self.frames.name_of(module), type(module).__name__
        frame = self.frames.attending
        return ("", "") if frame is None else (frame.name, frame.kind)

    def enter(self, module: nn.Module) -> bool:
        """Add a frame for a module that begins its forward. False if the probe does not follow it."""
        if self._busy or not self.here or not self.frames.belongs(module):
            return False
        self.frames.push(module)
        return True

    def leave(self, module: nn.Module, given: Any, result: Any) -> None:
        """Remove the frame of a module that has returned, or raised (then `result` is None)."""
        if self.frames.is_idle(module):
            self.frames.stack.pop()
            return
        with self.own_work(module):
            frame = self.frames.pop(module, given, result)
            if frame is not None and result is not None:
                self._account(frame)
                self._inspect(frame, result)

    def _account(self, frame: Frame) -> None:
        """List an attention module as unseen if nothing was captured in it, for no reason that is listed already."""
        if frame.attends and not frame.explained:
            self.miss(NO_SOFTMAX, frame.name, frame.kind)

    def _inspect(self, frame: Frame, result: Any) -> None:
        """Note the first module with a captured call inside it whose output is not finite."""
        if not frame.explained or not self.seen.captures or self.seen.not_finite is not None:
            return
        output = result[0] if isinstance(result, (tuple, list)) and result else result
        if isinstance(output, Tensor) and not is_finite(output):
            self.seen.not_finite = NotFinite(frame.name, len(self.seen.captures) - 1)


class _OwnWork:
    """See `Session.own_work`. It is a class because a generator would be slower, and it is entered very often."""

    __slots__ = ("_functions", "_gradients", "_module", "_outer", "_session")

    def __init__(self, session: Session, module: nn.Module | None) -> None:
        self._session, self._module, self._outer = session, module, session.working
        self._gradients = torch.is_grad_enabled()
        self._functions = None if torch._C._is_torch_function_all_disabled() else torch._C.DisableTorchFunction()

    def __enter__(self) -> None:
        self._session.working = self
        torch._C._set_grad_enabled(False)
        if self._functions is not None:
            self._functions.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        try:
            if isinstance(error, Exception):
                self._session.failed(error, self._module)
                return True
            return False
        finally:
            self.restore()

    def restore(self) -> None:
        """Undo `__enter__`, even if an interrupt came in the middle of it."""
        if self._functions is not None:
            self._functions.__exit__(None, None, None)
        torch._C._set_grad_enabled(self._gradients)
        self._session.working = self._outer


@dataclass(eq=False)
class _Kept:
    """Copies the tensors of a capture before the model overwrites them."""

    seen: Seen
    capture: Capture

    def tensors(self) -> list[Tensor]:
        """The tensors that the capture refers to."""
        problem = self.capture.problem
        everything = (problem.q, problem.k, problem.bias, problem.visibility.mask, self.capture.sink)
        return [tensor for tensor in everything if tensor is not None]

    def take_copy(self, storage: int) -> None:
        """Replace the capture by one with copies of the tensors in that memory."""

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
