"""The state of one probe: what it has seen, which modules are running, and whether to look at a call."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from isotherm.language import Text
from isotherm.ops import Problem
from isotherm.probe.aside import Aside
from isotherm.probe.call import Call
from isotherm.probe.capture import Capture, Kept
from isotherm.probe.factors import UNTRACED
from isotherm.probe.finite import is_finite, largest_of
from isotherm.probe.frames import Frame, Frames
from isotherm.probe.keep import Keeper, storage_of
from isotherm.probe.kinds import Ancestry, kind_of
from isotherm.probe.later import Later, Unknown
from isotherm.probe.masks import Masks
from isotherm.probe.members import buffers_of, modules_of, parameters_of
from isotherm.probe.own_work import OwnWork
from isotherm.probe.owner import sessions_here
from isotherm.probe.reasons import (
    AFTERWARDS,
    ELSEWHERE,
    FAILED,
    IN_BLOCKS,
    KERNEL,
    MISMATCH,
    NO_SOFTMAX,
    OPAQUE,
    OTHER_SOFTMAX,
)
from isotherm.probe.seen import NotFinite, Seen
from isotherm.record import Severity, Unseen

if TYPE_CHECKING:
    from isotherm.probe.close import CloseLook
    from isotherm.probe.sdpa import KernelCall


class Session:
    """The state of one probe. Adapters look only if it is `awake`, and only in its `own_work`.

    One that `glances` sees calls of attention functions and attention modules only, and follows neither other modules nor
    operations.
    """

    traces = True
    """Whether q and k are traced back to their projections, which the audit of scales needs."""
    at_once = False
    """Whether they are traced back while the model runs, which waits for a GPU, and not when its forward has ended."""

    def __init__(self, model: nn.Module, closely: frozenset[str] = frozenset(), *, glance: bool = False) -> None:
        self.seen = Seen()
        self.model = model
        self.closely = closely
        self.glances = glance
        self.traces = self.traces and not glance
        self.close_look: CloseLook | None = None
        self.elsewhere: dict[str, nn.Module] = {}
        self._weights: set[int] | None = None
        self.keeper = Keeper()
        self.frames = Frames(model, self.keeper)
        self.masks = Masks()
        self.later = Later(self.masks)
        self.opened_in: tuple[Frame, ...] = ()
        self.may_compile = False
        self.aside = Aside(self.frames)
        self.working: OwnWork | None = None
        self.mode: TorchFunctionMode | None = None
        self._busy = 0
        self._kept: list[Kept] = []
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
        for other in sessions_here():  # a loop, because this is asked very often
            if other.working is not None or (other.opened_in and self.frames.top in other.opened_in):
                return False
        return True

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

    def passes_by(self, module: nn.Module) -> bool:
        """Whether a call of a module that is not followed cannot run the model: the module has no part in common with it."""
        return not any(id(part) in self.frames.names for _, part in modules_of(module))

    def own_work(self, module: nn.Module | None = None) -> OwnWork:
        """Do work of the probe itself, without gradients and modes. No probe looks at it; an error is listed as unseen."""
        return OwnWork(self, module)

    def clean_up(self) -> None:
        """Finish what an interrupt has cut short in this thread: gradients, functions and modes become as they were."""
        while self.working is not None:
            self.working.restore()
        if self.mode is not None:
            self.mode.__exit__(KeyboardInterrupt, None, None)

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

    def miss(self, why: Text, name: str, kind: str, severity: Severity = "warning") -> None:
        """List a module as unseen, once for each reason."""
        self._explain()
        module = self.frames.modules.get(name)
        entry = Unseen(name, kind, why, severity, "" if module is None else type(module).__module__.split(".")[0])
        if entry not in self.seen.unseen:
            self.seen.unseen.append(entry)

    def met_in_a_transform(self, why: Text) -> None:
        """List the running module as unseen if the code that runs is inside a transform such as vmap."""
        if torch._C._functorch.peek_interpreter_stack() is None or not self.frames.stack or self._busy:
            return
        name, kind = self._subject(None)
        self.miss(why, name, kind)

    def is_weight(self, tensor: Tensor) -> bool:
        """Whether the tensor is a parameter of the model, a buffer that the forward does not write to, or a view of one."""
        if type(tensor) is not Tensor and isinstance(tensor, nn.Parameter):
            return True
        return storage_of(tensor) in self._known_weights()

    def _known_weights(self) -> set[int]:
        if self._weights is None:
            own = (*parameters_of(self.model), *buffers_of(self.model))
            self._weights = {storage_of(tensor) for tensor in own if tensor.layout is torch.strided}
        return self._weights

    def before_write(self, tensor: Tensor) -> None:
        """Prepare for the model to write to a tensor. A buffer that it writes to is a cache, and no weight."""
        self.keeper.before_write(tensor)
        self._known_weights().discard(storage_of(tensor))

    def is_close_to_top(self) -> bool:
        """Whether the innermost module is one to look at closely."""
        top = self.frames.top
        return bool(self.closely) and top is not None and top.name in self.closely

    def might_miss(self, module: nn.Module) -> bool:
        """Whether the model is running here, and the module, which another thread runs, is a part of it. One such module is
        enough to know."""
        return bool(self.frames.stack) and not self.elsewhere and id(module) in self.frames.names

    def finish(self) -> None:
        """List what the forward ran in other threads."""
        for name, module in self.elsewhere.items():
            self.miss(ELSEWHERE, name, type(module).__name__)

    def capture(
        self, call: Call, module: nn.Module | None = None, agrees: Callable[[Problem], bool] | None = None
    ) -> bool:
        """Add a call. If `agrees` says that its problem does not give what the model computed, return False instead."""
        name, kind = self._subject(module)
        problem = call.problem()
        if agrees is not None and not agrees(problem):
            return False
        around = self.frames.stack
        sides = (call.q if call.traced_q is None else call.traced_q, call.k) if self.traces else (None, None)
        q, k = (self.later.sampler.take(used, around) for used in sides)
        kind_known = kind_of(problem, name, around, module)
        padding = call.padded is None and call.rows is None and problem.visibility.mask is not None
        sink = None if call.sink is None else call.sink.detach().flatten()
        self.add(
            Capture(
                name, kind, kind_known or "self", call.implementation, problem, sink, call.passed, UNTRACED, UNTRACED,
                rows=call.rows, total=None if call.rows is None else call.total, affine=call.affine, padded=call.padded,
                multiplied=call.multiplied,
            ),
            Unknown(q, k, Ancestry(around), kind_known is None, padding, call.causal or not self.traces),
        )  # fmt: skip
        return True

    def resolve(self) -> None:
        """Trace the calls of the forward back, and read whether outputs were finite. This waits for a GPU."""
        self.later.trace(self.seen.captures, self._kept)
        broken = self.later.first_broken()
        if broken is not None and self.seen.not_finite is None:
            self.seen.not_finite = NotFinite(*broken)

    def mismatch(self, call: Call, module: nn.Module | None = None) -> None:
        """List a call as unseen, because it does not reproduce the model's result."""
        name, kind = self._subject(module)
        self.miss(MISMATCH.format(what=call.implementation), name, kind)

    def add(self, capture: Capture, unknown: Unknown | None = None) -> None:
        """Keep a capture as it is now, even if the model overwrites its tensors later. What is `unknown` of it follows when the
        forward has ended."""
        self._explain()
        if unknown is not None and self.at_once:
            capture, unknown = self.later.trace_now(capture, unknown), None
        if unknown is not None:
            self.later.add(len(self.seen.captures), unknown)
        self.seen.captures.append(capture)
        kept = Kept(self.seen.captures, capture)
        self._kept.append(kept)
        for tensor in kept.tensors():
            self.keeper.protect(tensor, kept)

    def withdraw(self, *indices: int) -> list[Capture]:
        """Remove the captures with these indices, and return them."""
        taken = [self.seen.captures[index] for index in sorted(indices)]
        for index in sorted(indices, reverse=True):
            del self.seen.captures[index], self._kept[index]
        self.later.withdraw(indices, len(self._kept) + len(indices))
        met = self.seen.not_finite
        if met is not None and met.capture is not None:
            left = met.capture - sum(index <= met.capture for index in indices)
            self.seen.not_finite = met._replace(capture=left if left >= 0 else None)
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
                self._account(frame, result)
                self._inspect(frame, result)
            if not self.frames.stack:
                self.resolve()

    def _account(self, frame: Frame, result: Any) -> None:
        """See to a module that has returned. Captures of what it did not use are withdrawn. So are blocks of longer rows, for
        which the module is listed as unseen."""
        if not (frame.records or frame.noteworthy):
            return
        in_blocks = frame.in_blocks(self.seen.captures)
        if in_blocks or frame.replaced:
            self.withdraw(*(frame.replaced | frame.blocks if in_blocks else frame.replaced))
        if in_blocks:
            listed = self.seen.unseen
            listed[:] = [one for one in listed if (one.name, one.why) != (frame.name, AFTERWARDS)]  # of its first rows
            self.miss(IN_BLOCKS, frame.name, frame.kind)
        else:
            self._suspect(frame, result)

    def _suspect(self, frame: Frame, result: Any) -> None:
        """Suspect a module that may attend if nothing was captured in it. After a close look, list it as unseen if its result
        does not come from its projections, or if it has no softmax."""
        if frame.explained or not (frame.may_attend or frame.other_softmax):
            return
        if frame.other_softmax and self.close_look is not None:
            self.miss(OTHER_SOFTMAX, frame.name, frame.kind)
            return
        if self.close_look is None:
            self.seen.suspects.append(frame.name)
            self._explain()
        elif frame.met or not self.close_look.reaches(frame, result):
            self.miss(OPAQUE.format(what=frame.met or KERNEL), frame.name, frame.kind)
        elif frame.unnormalised:
            self.miss(NO_SOFTMAX, frame.name, frame.kind, "note")

    def _inspect(self, frame: Frame, result: Any) -> None:
        """Note the first module with a captured call inside it whose output is not finite."""
        if not frame.explained or not self.seen.captures or self.seen.not_finite is not None:
            return
        output = result[0] if isinstance(result, (tuple, list)) and result else result
        largest = largest_of(output) if isinstance(output, Tensor) else None
        if largest is not None:
            self.later.note(frame.name, len(self.seen.captures) - 1, largest)
        elif isinstance(output, Tensor) and not is_finite(output):
            self.seen.not_finite = NotFinite(frame.name, len(self.seen.captures) - 1)
