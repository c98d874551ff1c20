"""Hand-written attention: follow q·kᵀ, one operation at a time, until it enters a softmax.

A `Scores` describes a tensor as cap(factor·q·kᵀ) + Σ cᵢ·biasᵢ with some entries hidden. `STEPS` says, for each operation, how
its result is described in turn. A result that cannot be described is no longer followed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.probe import replay
from isotherm.probe.heads import HeadFold, fold_terms, reshape_lead
from isotherm.probe.masks import NEVER, Terms
from isotherm.probe.session import Call, Session

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@dataclass(frozen=True)
class Scores:
    """q [*, T, D] and k [*, S, D] as they were multiplied. `lead` are the leading dimensions of the scores now. `per_head` are
    multipliers that differ between heads, [*lead, 1, 1]. `cap` is the multiplier after a tanh, None without one."""

    q: Tensor
    k: Tensor
    lead: tuple[int, ...]
    factor: float
    per_head: tuple[Tensor, ...] = ()
    cap: float | None = None
    added: tuple[tuple[float, Tensor], ...] = ()
    hidden: tuple[Tensor, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the scores."""
        return (*self.lead, self.q.shape[-2], self.k.shape[-2])

    def times(self, by: object) -> "Scores | None":
        """The scores multiplied by a number, or by one number per head."""
        number = _number(by)
        if number is not None:
            added = tuple((number * c, term) for c, term in self.added)
            if self.cap is None:
                return replace(self, factor=self.factor * number, added=added)
            return replace(self, cap=self.cap * number, added=added)
        if isinstance(by, Tensor) and self.cap is None and tuple(by.shape[-2:]) == (1, 1):
            added = tuple((c, term * by) for c, term in self.added)
            return replace(self, per_head=(*self.per_head, by.detach()), added=added)
        return None

    def plus(self, term: object, coefficient: object = 1.0) -> "Scores | None":
        """The scores with a term added. A term that is constant along each row does not change the softmax and is left out."""
        times = _number(coefficient)
        if times is None:
            return None
        if not isinstance(term, Tensor) or term.dim() == 0:
            return self
        if term.shape[-1] == 1 and self.shape[-1] > 1:
            return self
        return replace(self, added=(*self.added, (times, term)))

    def without(self, hidden: object, filled: object) -> "Scores | None":
        """The scores with `filled` written where `hidden` is true. None unless `filled` is low enough to hide a key."""
        number = _number(filled)
        if number is None or number > NEVER or not isinstance(hidden, Tensor):
            return None
        return replace(self, hidden=(*self.hidden, hidden))

    def capped(self) -> "Scores | None":
        """The scores after a tanh."""
        return None if self.added or self.hidden or self.cap is not None else replace(self, cap=1.0)

    def viewed(self, shape: tuple[int, ...]) -> "Scores | None":
        """The scores with other leading dimensions that hold the same number of entries."""
        if tuple(shape[-2:]) != self.shape[-2:] or torch.Size(shape).numel() != torch.Size(self.shape).numel():
            return None
        lead = tuple(shape[:-2])
        if lead == self.lead:
            return self
        return replace(
            self,
            q=torch.broadcast_to(self.q, (*self.lead, *self.q.shape[-2:])).reshape(*lead, *self.q.shape[-2:]),
            k=torch.broadcast_to(self.k, (*self.lead, *self.k.shape[-2:])).reshape(*lead, *self.k.shape[-2:]),
            lead=lead,
            per_head=tuple(reshape_lead(one, self.lead, lead) for one in self.per_head),
            added=tuple((c, reshape_lead(term, self.lead, lead)) for c, term in self.added),
            hidden=tuple(reshape_lead(mask, self.lead, lead) for mask in self.hidden),
        )


def _number(value: object) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and value.dim() <= 1 else None
    return float(value) if isinstance(value, (int, float)) else None


def product(q: object, kt: object, factor: object = 1.0) -> Scores | None:
    """The scores q [*, T, D] @ kᵀ [*, D, S]. None if the right side is a parameter: that is a projection."""
    number = _number(factor)
    if number is None or not (isinstance(q, Tensor) and isinstance(kt, Tensor)) or isinstance(kt, nn.Parameter):
        return None
    if min(q.dim(), kt.dim()) < 2 or not q.dtype.is_floating_point or isinstance(kt._base, nn.Parameter):
        return None
    lead = torch.broadcast_shapes(q.shape[:-2], kt.shape[:-2])
    return Scores(q.detach(), kt.detach().transpose(-1, -2), tuple(lead), number)


def contraction(equation: object, operands: Args) -> Scores | None:
    """The scores of an einsum that sums over one dimension and whose result ends in the queries and the keys."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or "." in equation or "->" not in equation:
        return None
    (one, other), result = equation.replace(" ", "").split("->")[0].split(","), equation.replace(" ", "").split("->")[1]
    summed = (set(one) & set(other)) - set(result)
    if len(summed) != 1 or len(result) < 2 or result[-2] not in one or result[-1] not in other:
        return None
    if result[-2] in other or result[-1] in one or (set(one) | set(other)) - set(result) != summed:
        return None
    over, lead = summed.pop(), result[:-2]
    q, k = (
        torch.einsum(f"{names}->{''.join(letter for letter in lead if letter in names)}{row}{over}", operand.detach())
        for names, operand, row in ((one, operands[0], result[-2]), (other, operands[1], result[-1]))
    )
    for axis, letter in enumerate(lead):
        q = q if letter in one else q.unsqueeze(axis)
        k = k if letter in other else k.unsqueeze(axis)
    return product(q, k.transpose(-1, -2))


def emit(session: Session, scores: Scores, logits: Tensor) -> None:
    """Capture the softmax of `logits`, which `scores` describes."""
    frame = session.frames.attending
    module = None if frame is None else frame.module
    fold = HeadFold.of(scores.lead, tuple(scores.k.shape[:-2]), module)
    terms = Terms()
    for coefficient, term in scores.added:
        terms &= fold_terms(fold, session.masks.added(term, coefficient))
    for hidden in scores.hidden:
        terms &= fold_terms(fold, session.masks.hidden(hidden))
    plain = q = fold.queries(scores.q)
    for multiplier in scores.per_head:
        q = q * fold.term(multiplier).to(q.dtype)
    scale = scores.factor * (1.0 if scores.cap is None else scores.cap)
    call = Call(
        implementation="hand-written",
        q=q,
        k=fold.keys(scores.k),
        scale=scale,
        passed=None if scores.per_head else scale,
        terms=terms,
        softcap=scores.cap,
        traced_q=plain,
    )
    rows = fold.queries(logits)
    if not session.capture(call, module, lambda problem: replay.gives_softmax_of(problem, None, rows)):
        session.mismatch(call, module)


Find = Callable[[object], Scores | None]


def _add(find: Find, args: Args, kwargs: Kwargs) -> Scores | None:
    """A sum of scores and something else. A sum of two scores is followed only if it is a tensor and itself."""
    one, other, alpha = args[0], args[1], kwargs.get("alpha", 1)
    mine, theirs, times = find(one), find(other), _number(alpha)
    if mine is not None and theirs is not None:
        return mine.times(1 + times) if one is other and times is not None else None
    if mine is not None:
        return mine.plus(other, alpha)
    return theirs.plus(one) if theirs is not None and times == 1 else None


def _subtract(find: Find, args: Args, kwargs: Kwargs) -> Scores | None:
    mine, alpha = find(args[0]), _number(kwargs.get("alpha", 1))
    made_of_scores = find(args[1]) is not None
    return None if mine is None or alpha is None or made_of_scores else mine.plus(args[1], -alpha)


def _multiply(find: Find, args: Args, kwargs: Kwargs) -> Scores | None:  # noqa: ARG001
    mine = find(args[0])
    if mine is not None:
        return mine.times(args[1])
    theirs = find(args[1])
    return None if theirs is None else theirs.times(args[0])


def _divide(find: Find, args: Args, kwargs: Kwargs) -> Scores | None:
    mine = find(args[0])
    if mine is None or kwargs.get("rounding_mode") is not None:
        return None
    by = args[1]
    return mine.times(1 / by) if isinstance(by, Tensor) or by else None


def _fill(find: Find, args: Args, kwargs: Kwargs) -> Scores | None:
    mine = find(args[0])
    given = dict(zip(("mask", "value"), args[1:], strict=False)) | kwargs
    return None if mine is None else mine.without(given["mask"], given["value"])


def _where(find: Find, args: Args, kwargs: Kwargs) -> Scores | None:
    condition, yes, no = (*args, *kwargs.values())[:3]
    if not isinstance(condition, Tensor) or condition.dtype is not torch.bool:
        condition, yes = yes, condition  # scores.where(condition, other)
    if (mine := find(yes)) is not None:
        return mine.without(~condition, no)
    mine = find(no)
    return None if mine is None else mine.without(condition, yes)


def _baddbmm(find: Find, args: Args, kwargs: Kwargs) -> Scores | None:  # noqa: ARG001
    given = dict(zip(("input", "batch1", "batch2"), args, strict=False)) | kwargs
    scores = product(given["batch1"], given["batch2"], given.get("alpha", 1))
    beta = given.get("beta", 1)
    return scores if scores is None or beta == 0 else scores.plus(given["input"], beta)


UNCHANGED = (
    *("clamp", "clamp_min", "clip", "max", "maximum", "nan_to_num"),
    *("float", "half", "bfloat16", "double", "to", "type", "type_as", "contiguous", "clone"),
    *("view", "reshape", "unflatten", "flatten", "unsqueeze", "squeeze", "__getitem__"),
)
"""Operations after which the description still holds, up to the shape."""
STEPS: dict[str, Callable[[Find, Args, Kwargs], Scores | None]] = {
    **dict.fromkeys(("matmul", "bmm", "__matmul__"), lambda _, args, __: product(*args[:2]) if len(args) > 1 else None),
    "einsum": lambda _, args, __: contraction(args[0], args[1:]),
    "baddbmm": _baddbmm,
    **dict.fromkeys(("add", "__radd__"), _add),
    **dict.fromkeys(("sub", "subtract"), _subtract),
    **dict.fromkeys(("mul", "multiply", "__rmul__"), _multiply),
    **dict.fromkeys(("div", "divide", "true_divide"), _divide),
    "masked_fill": _fill,
    "where": _where,
    "tanh": lambda find, args, _: None if (mine := find(args[0])) is None else mine.capped(),
    **dict.fromkeys(UNCHANGED, lambda find, args, _: find(args[0])),
}
"""How each operation changes the description of the scores. The caller then compares its shape with the result's."""
