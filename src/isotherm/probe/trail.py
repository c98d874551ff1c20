"""Follow a product of two activations through the operations that come after it.

`STEPS` says, for each operation, what its result is. A result that cannot be described is followed all the same: the trail
then says only which products the tensor was made of.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isotherm.probe.masks import NEVER
from isotherm.probe.scores import Scores, new_origin, number

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Trail:
    """Which products of two activations a tensor was made of, and what it is.

    - `scores`: the tensor itself, or its logarithm if it is `exponential`; None if it cannot be described.
    - `product`: the product it began as, if there was one only.
    - `captured`: its softmax is captured already, or was listed as unseen.
    - `noisy`: something random was done to it.
    - `reduced`: it is one number for each row, such as a sum.
    - `divided`: it was divided by a number for each row, or its logarithm had a logsumexp subtracted; or it is a logsumexp.
    """

    origins: frozenset[int]
    scores: Scores | None
    product: Scores | None
    exponential: bool = False
    captured: bool = False
    noisy: bool = False
    reduced: bool = False
    divided: bool = False

    @classmethod
    def of(cls, scores: Scores) -> "Trail":
        """The trail of a product."""
        return cls(frozenset({scores.origin}), scores, scores)

    @classmethod
    def unknown(cls) -> "Trail":
        """The trail of something that compares two activations, but is no product of them."""
        return cls(frozenset({new_origin()}), None, None)

    def now(self, scores: Scores | None) -> "Trail":
        """The same trail one step on."""
        return replace(self, scores=scores)

    def lost(self, *others: "Trail") -> "Trail":
        """The same trail after a step that cannot be described, together with the trails of other arguments."""
        origins = self.origins.union(*(other.origins for other in others))
        alone = all(other.product is self.product for other in others)
        return replace(
            self,
            origins=origins,
            scores=None,
            product=self.product if alone else None,
            captured=self.captured or any(other.captured for other in others),
            reduced=self.reduced and all(other.reduced for other in others),
        )


Find = Callable[[object], Trail | None]


def _scored(trail: Trail | None, change: Callable[[Scores], Scores | None]) -> Trail | None:
    """The trail with its description changed; None if there is nothing to change."""
    if trail is None:
        return None
    final = trail.captured and not trail.exponential
    return trail.now(None if trail.scores is None or final else change(trail.scores))


def _add(find: Find, args: Args, kwargs: Kwargs) -> Trail | None:
    one, other, alpha = args[0], args[1], number(kwargs.get("alpha", 1))
    return _sum(find, one, other, alpha)


def _subtract(find: Find, args: Args, kwargs: Kwargs) -> Trail | None:
    alpha = number(kwargs.get("alpha", 1))
    return _sum(find, args[0], args[1], None if alpha is None else -alpha)


def _reversed_subtract(find: Find, args: Args, kwargs: Kwargs) -> Trail | None:
    times = number(kwargs.get("alpha", 1))
    mine = find(args[0])
    if mine is None or times is None:
        return None
    return _scored(mine, lambda scores: None if (less := scores.times(-times)) is None else less.plus(args[1]))


def _sum(find: Find, one: object, other: object, alpha: float | None) -> Trail | None:
    """one + alpha · other."""
    mine, theirs = find(one), find(other)
    if mine is None and theirs is not None:
        return (
            None if alpha is None else _scored(theirs, lambda s: None if (t := s.times(alpha)) is None else t.plus(one))
        )
    if mine is None or alpha is None or mine.exponential:
        return None if mine is None else mine.now(None) if theirs is None else mine.lost(theirs)
    if theirs is None:
        return _scored(mine, lambda scores: scores.plus(other, alpha))
    if mine.scores is not None and theirs.scores is not None and not theirs.exponential:
        more = theirs.scores.times(alpha)
        together = None if more is None else mine.scores.joined(more)
        if together is not None:
            return replace(mine.lost(theirs), scores=together, product=mine.product)
    own = bool(mine.origins & theirs.origins)
    added = _scored(mine, lambda scores: scores.plus(other, alpha, own=own))
    less = mine.divided or (theirs.reduced and (theirs.divided or theirs.exponential))
    return None if added is None else replace(added, origins=mine.origins | theirs.origins, divided=less)


def _multiply(find: Find, args: Args, kwargs: Kwargs) -> Trail | None:  # noqa: ARG001  a step
    one, other = args[0], args[1]
    mine = find(one)
    if mine is None:
        mine, other = find(other), one
    if mine is None or (find(other) is not None and not _is_a_row_sum(find(other), other)):
        return None
    return _weighted(mine, other) if mine.exponential else _scored(mine, lambda scores: scores.times(other))


def _is_a_row_sum(trail: Trail | None, tensor: object) -> bool:
    """Whether a tensor made of the scores is one number for each row."""
    return trail is not None and isinstance(tensor, Tensor) and 1 in tensor.shape[-2:]


def _weighted(trail: Trail, by: object) -> Trail:
    """Weights times something: a number for each row, or zeros and ones."""
    scores = trail.scores
    if scores is None or number(by) is not None or not isinstance(by, Tensor) or by.dim() > len(scores.order):
        return trail
    factor = scores.canonical(by)
    if 1 in factor.shape[-2:] and not bool((factor == 0).any()):
        return replace(trail, divided=True)
    zeros = factor == 0
    ones = bool((zeros | (factor == 1)).all())
    return trail.now(replace(scores, hidden=(*scores.hidden, zeros)) if ones else None)


def _divide(find: Find, args: Args, kwargs: Kwargs) -> Trail | None:
    mine, by = find(args[0]), args[1]
    if mine is None or kwargs.get("rounding_mode") is not None:
        return None
    if mine.exponential:
        if not isinstance(by, Tensor) or by.numel() == 1:
            return mine
        return replace(mine, divided=True, scores=mine.scores if 1 in by.shape[-2:] else None)
    if find(by) is not None:
        return None
    return _scored(mine, lambda scores: scores.times(1 / by) if isinstance(by, Tensor) or by else None)


def _fill(find: Find, args: Args, kwargs: Kwargs) -> Trail | None:
    mine = find(args[0])
    mask, value = (*args[1:], *kwargs.values())[:2]
    return _scored(mine, lambda scores: _hide(mine, scores, mask, value))


def _hide(trail: Trail | None, scores: Scores, mask: object, value: object) -> Scores | None:
    """Write `value` where the mask is true. In weights 0 hides an entry."""
    if trail is not None and trail.exponential:
        return scores.without(mask, -torch.inf) if number(value) == 0 else None
    return scores.without(mask, value)


def _where(find: Find, args: Args, kwargs: Kwargs) -> Trail | None:
    condition, yes, no = (*args, *kwargs.values())[:3]
    if not isinstance(condition, Tensor) or condition.dtype is not torch.bool:
        condition, yes = yes, condition  # scores.where(condition, other)
    if not isinstance(condition, Tensor):
        return None
    if (mine := find(yes)) is not None:
        return _scored(mine, lambda scores: _hide(mine, scores, ~condition, no))
    theirs = find(no)
    return _scored(theirs, lambda scores: _hide(theirs, scores, condition, yes))


def _triangle(find: Find, args: Args, kwargs: Kwargs, *, lower: bool) -> Trail | None:
    diagonal = int(number(args[1] if len(args) > 1 else kwargs.get("diagonal", 0)) or 0)

    def cut(scores: Scores) -> Scores | None:
        rows, columns = scores.shape[-2:]
        kept = torch.ones(rows, columns, dtype=torch.bool, device=scores.a.device)
        return scores.without(~(kept.tril(diagonal) if lower else kept.triu(diagonal)), 0)

    return _scored(find(args[0]), cut)


def _exp(find: Find, args: Args, kwargs: Kwargs) -> Trail | None:  # noqa: ARG001  a step
    mine = find(args[0])
    if mine is None or (mine.captured and mine.exponential):
        return mine
    return replace(mine, scores=None if mine.exponential else mine.scores, exponential=True)


def _tanh(find: Find, args: Args, kwargs: Kwargs) -> Trail | None:  # noqa: ARG001  a step
    return _scored(find(args[0]), lambda scores: scores.capped())


def _dropout(find: Find, args: Args, kwargs: Kwargs) -> Trail | None:
    mine = find(args[0])
    given = dict(zip(("p", "training", "inplace"), args[1:], strict=False)) | kwargs
    return mine if mine is None or not given.get("training", True) else replace(mine, noisy=True)


def _concatenate(find: Find, args: Args, kwargs: Kwargs) -> Trail | None:
    """Scores of parts of the keys, queries or heads, put together before their softmax."""
    trails = [find(one) for one in args[0]]
    axis: Any = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    first, scores = trails[0], [one.scores for one in trails if one is not None and one.scores is not None]
    if first is None or len(scores) < len(trails) or any(one is None or one.exponential for one in trails):
        return None
    together = scores[0].followed_by(scores[1:], axis)
    if together is None:
        return None
    one = first.lost(*(trail for trail in trails[1:] if trail is not None))
    return replace(one, scores=together, product=replace(together, factor=1.0))


def _same(find: Find, args: Args, kwargs: Kwargs) -> Trail | None:  # noqa: ARG001  a step
    return find(args[0])


def _negative(find: Find, args: Args, kwargs: Kwargs) -> Trail | None:  # noqa: ARG001  a step
    return _scored(find(args[0]), lambda scores: scores.times(-1.0))


VIEWS = frozenset(
    {
        *("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "T", "mT", "H", "mH", "adjoint"),
        *("view", "view_as", "reshape", "reshape_as", "unsafe_view", "unflatten", "flatten", "unsqueeze", "squeeze"),
        *("expand", "expand_as", "__getitem__", "select", "slice", "narrow"),
    }
)
"""Operations whose result shows the same numbers in another shape."""
BOUNDS = frozenset({"clamp", "clamp_min", "clip", "max", "maximum", "nan_to_num"})
"""Operations that replace numbers beyond a bound."""
UNCHANGED = frozenset(
    {
        *BOUNDS,
        *("detach", "alias", "lift_fresh"),
        *("float", "half", "bfloat16", "double", "to", "to_copy", "type", "type_as", "contiguous", "clone", "identity"),
    }
)
"""Operations after which the description still holds, up to a shift of whole rows, unless a bound has replaced a number."""
STEPS: dict[str, Callable[[Find, Args, Kwargs], Trail | None]] = {
    **dict.fromkeys(("add", "__radd__"), _add),
    **dict.fromkeys(("sub", "subtract"), _subtract),
    **dict.fromkeys(("rsub", "__rsub__"), _reversed_subtract),
    **dict.fromkeys(("mul", "multiply", "__rmul__"), _multiply),
    **dict.fromkeys(("div", "divide", "true_divide"), _divide),
    **dict.fromkeys(("neg", "negative"), _negative),
    "masked_fill": _fill,
    "where": _where,
    "tril": lambda find, args, kwargs: _triangle(find, args, kwargs, lower=True),
    "triu": lambda find, args, kwargs: _triangle(find, args, kwargs, lower=False),
    "tanh": _tanh,
    "exp": _exp,
    "dropout": _dropout,
    **dict.fromkeys(("cat", "concat", "concatenate"), _concatenate),
    **dict.fromkeys((*VIEWS, *UNCHANGED), _same),
}
"""What each operation makes of the trails of its arguments; None if it cannot be said."""


def seen_as(trail: Trail, before: object, after: Tensor) -> Trail:
    """The trail of a tensor that shows the numbers of `before` in another shape or order of axes."""
    scores = trail.scores
    if scores is None or (
        tuple(after.shape) == scores.shape == tuple(getattr(before, "shape", ())) and _as_it_was(before, after)
    ):
        return trail
    axes = _moved(before, after) if isinstance(before, Tensor) else None
    if axes is not None:
        return trail.now(scores.reordered(axes))
    return trail.now(scores.viewed(tuple(after.shape)))


def bounded(args: Args, kwargs: Kwargs, after: Tensor) -> bool:
    """Whether an operation of `BOUNDS` has replaced a number, other than that of an entry that stays hidden. In place, only the
    bounds can tell."""
    before = args[0]
    if not isinstance(before, Tensor):
        return True
    if before is not after:
        return before.shape != after.shape or bool(((before != after) & ((before > NEVER) | (after > NEVER))).any())
    bounds = [bound for bound in (*args[1:], *kwargs.values()) if bound is not None]
    return any(bool(((after == bound) & (after > NEVER)).any()) for bound in bounds)


def _as_it_was(before: object, after: Tensor) -> bool:
    return isinstance(before, Tensor) and before.stride() == after.stride()


def _moved(before: Tensor, after: Tensor) -> tuple[int, ...] | None:
    """The axes of `before` in the order in which its view `after` has them, told apart by their strides."""
    if before.dim() != after.dim() or before.untyped_storage()._cdata != after.untyped_storage()._cdata:
        return None
    places = [(size, step) for size, step in zip(before.shape, before.stride(), strict=True)]
    wanted = [(size, step) for size, step in zip(after.shape, after.stride(), strict=True)]
    long = [place for place in places if place[0] != 1]
    if sorted(long) != sorted(place for place in wanted if place[0] != 1) or len(set(long)) < len(long):
        return None
    short = iter([axis for axis, place in enumerate(places) if place[0] == 1])
    return tuple(next(short) if place[0] == 1 else places.index(place) for place in wanted)
