"""`F.scaled_dot_product_attention`, wherever it is called from."""

from math import sqrt
from typing import Any, NamedTuple

from torch import Tensor

from isotherm.ops import Problem
from isotherm.probe import heads, nested, replay
from isotherm.probe.call import Call
from isotherm.probe.masks import Terms
from isotherm.probe.session import Session

ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


class KernelCall(NamedTuple):
    """What PyTorch's kernel was passed, and what it returned. `passed` is the scale, None if left to the default."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    passed: float | None
    output: Tensor

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> "KernelCall":
        """Read the arguments of a call that has run."""
        given = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
        scale = given.get("scale")
        q, k, v = (given[name] for name in ARGUMENTS[:3])
        dropout, causal = given.get("dropout_p", 0.0), bool(given.get("is_causal", False))
        return cls(q, k, v, given.get("attn_mask"), dropout, causal, None if scale is None else float(scale), output)

    @property
    def scale(self) -> float:
        """The multiplier of q·k."""
        return 1 / sqrt(self.q.size(-1)) if self.passed is None else self.passed


def look(session: Session, kernel: KernelCall) -> None:
    """Capture one call that has run."""
    if kernel.q.is_nested:
        _look_at_nested(session, kernel)
        return
    top = session.frames.top
    fold = heads.HeadFold.of(
        tuple(kernel.q.shape[:-2]), tuple(kernel.k.shape[:-2]), None if top is None else top.module
    )
    call = Call(
        implementation="sdpa",
        q=fold.queries(kernel.q),
        k=fold.keys(kernel.k),
        scale=kernel.scale,
        passed=kernel.passed,
        terms=Terms() if kernel.mask is None else heads.fold_terms(fold, session.masks.visible(kernel.mask)),
        causal=kernel.causal,
        made=(kernel.q, kernel.k),
    )
    values, out = fold.keys(kernel.v), fold.queries(kernel.output)
    check = None if kernel.dropout else lambda problem: replay.gives_output(problem, None, values, out)
    if not session.capture(call, agrees=check):
        session.mismatch(call)


def _look_at_nested(session: Session, kernel: KernelCall) -> None:
    """Capture a call on nested tensors [B, H, length, D]. The queries beyond a sequence's end are padding."""
    (q, padded), (k, hidden) = nested.padded(kernel.q), nested.padded(kernel.k)
    values, out = nested.padded(kernel.v)[0], nested.padded(kernel.output)[0]
    call = Call(
        implementation="sdpa",
        q=q,
        k=k,
        scale=kernel.scale,
        passed=kernel.passed,
        terms=Terms(~hidden[:, None, None]),
        causal=kernel.causal,
        padded=padded,
    )
    rows, keys = int((~padded[0]).sum()), int((~hidden[0]).sum())

    def agrees(_: Problem) -> bool:
        first = Call("sdpa", q[:1, :, :rows], k[:1, :, :keys], kernel.scale, None, causal=kernel.causal)
        return replay.gives_output(first.problem(), None, values[:1, :, :keys], out[:1, :, :rows])

    check = None if kernel.dropout or not rows or not keys else agrees
    if not session.capture(call, agrees=check):
        session.mismatch(call)
