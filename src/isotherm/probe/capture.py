"""What a probe brings back from one attention call: enough to measure the call and to replay it under another rule."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from isotherm.ops import Problem
from isotherm.probe.keep import storage_of
from isotherm.record import Kind


@dataclass(frozen=True)
class Part:
    """A parameter that a function multiplied into a projection. Feature 0 of the projection is index `first` of dimension
    `axis`: not 0 where the function received a slice. Without a name it is a bias that was put together from several."""

    name: str
    axis: int = 0
    first: int = 0


@dataclass(frozen=True)
class HeadLayout:
    """Where the heads are in a projection's output of `width` features: head h has `dim` of them, from `starts[h]` on, `step`
    apart. Without `starts` every feature serves every head."""

    width: int
    dim: int
    starts: tuple[int, ...] = ()
    step: int = 1

    def features(self, heads: Iterable[int] | None = None) -> list[int]:
        """The features of these heads, of all heads if None, in order."""
        if not self.starts:
            return list(range(self.width))
        chosen = self.starts if heads is None else [self.starts[head] for head in heads]
        return sorted({start + self.step * i for start in chosen for i in range(self.dim)})


@dataclass(frozen=True)
class Factor:
    """What happened to q (or k) between its projection and the kernel, judged by the lengths of its vectors.

    `kind` is one of:
    - "constant": every vector was multiplied by `value`. A rotation gives 1, a pre-scaled query d^-½, YaRN its m.
    - "normalised": the factor differs between tokens and heads, as QK-norm's does. `after_norm` is the number that
      multiplied the normalised vectors, where it is known.
    - "per-query": the factor depends on the position alone, as log-n's and Llama 4's do.
    - "untraced": no projection was found whose output has these vectors.

    `value` is None for every kind but "constant". `source` is the projection's name, `norm` that of the norm after it. `layout`
    says which features of the projection are which head, None if that is not known. `parts` are the parameters of a projection
    that is a function call and not a module.
    """

    value: float | None
    kind: Literal["constant", "normalised", "per-query", "untraced"]
    source: str | None = None
    after_norm: float | None = None
    norm: str | None = field(default=None, compare=False)
    layout: HeadLayout | None = field(default=None, compare=False)
    parts: tuple[Part, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Capture:
    """One attention call.

    - `name`, `module`: the module's name in the model, and its class.
    - `implementation`: transformers' name (eager, sdpa, flex_attention …), multi-head, hand-written or isotherm.
    - `problem`: q and k as the kernel received them, its scale and the visible keys. Values are not kept: its v is k.
    - `sink` [Hq]: the logit of a learned sink.
    - `passed`: the scale as the caller wrote it. None if the caller left it to the default, or if it is not one number (then
      the problem's q already contains it).
    - `rows`, `total`: which rows were kept, and of how many; None if all were.
    - `affine`: False if the logits are no affine function of q·k, None if they were not made of one q·k that is known. Then the
      problem holds them as its bias, beside q·k times 0.
    - `padded` [B, T]: True where the query is padding, of all queries. None if none is known to be.
    - `multiplied`: q·k was multiplied by a number for each head, or for each query, beside the problem's scale.
    """

    name: str
    module: str
    kind: Kind
    implementation: str
    problem: Problem
    sink: Tensor | None
    passed: float | None
    q_factor: Factor
    k_factor: Factor
    rows: Tensor | None = None
    total: int | None = None
    affine: bool | None = True
    padded: Tensor | None = None
    multiplied: Literal["by-head", "by-query"] | None = None

    @property
    def queries(self) -> int:
        """How many queries the call had, kept or not."""
        return self.problem.q.shape[2] if self.total is None else self.total


@dataclass(eq=False)
class Kept:
    """Copies the tensors of a capture before the model overwrites them."""

    captures: list[Capture]
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
        self.captures[:] = [new if capture is self.capture else capture for capture in self.captures]
        self.capture = new
