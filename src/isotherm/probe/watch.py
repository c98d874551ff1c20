"""Watch the operations of a forward pass: fused attention, hand-written attention, projections without a module, and writes to
memory that the probe still refers to. Whoever sees the operations (`mode.py`, `close.py`) reports them here."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from isotherm.probe import flex, multihead, products, sdpa
from isotherm.probe.blocks import Blocks, says_how_much
from isotherm.probe.changed import Changed
from isotherm.probe.functions import (
    COMPARISONS,
    CONTAINERS,
    KERNELS,
    MATRICES,
    OUTER,
    PRODUCTS,
    REMADE,
    SOFTMAXES,
    SUMS,
    factors_of,
    flat,
    positional,
    writes,
)
from isotherm.probe.groups import SCATTERS, Groups, groups_of
from isotherm.probe.reasons import SCATTERED
from isotherm.probe.recognise import recognise_logits, recognise_weights
from isotherm.probe.scores import Scores
from isotherm.probe.session import Session
from isotherm.probe.shares import Shares, normalised_along
from isotherm.probe.trail import BOUNDS, STEPS, VIEWS, Trail, bounded, seen_as
from isotherm.probe.weights import ModelWeights

NORMALISING = frozenset({"div", "mul", "multiply"})
REDUCTIONS = frozenset({"sum", "logsumexp", "amax", "max"})
"""Functions that leave one number of each row."""


class Watch:
    """Follows the operations of one forward pass, whoever reports them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._trails = WeakTensorKeyDictionary()
        self._outer = WeakTensorKeyDictionary()
        self._weights = ModelWeights(session)
        self._shares = Shares(session, self._weights)
        self._groups: dict[int, Groups] = {}
        self._blocks = Blocks(session)
        self._changed = Changed(session, self._blocks)

    @property
    def idle(self) -> bool:
        """Whether nothing is being followed."""
        return not (self._trails.data or self._shares.any)

    def wants(self, name: str, args: Any, result: Any) -> bool:
        """Whether a call of a function that is not always looked at matters now."""
        if type(result) is not Tensor and not isinstance(result, CONTAINERS):
            return False
        if self._trails.data or self._shares.any:
            return True
        remakes = name in REMADE or (name in VIEWS and self._weights.remade)
        if remakes and args and args[0] in self._weights and self.session.awake:
            return True
        if name in OUTER and isinstance(result, Tensor):
            self._note_outer(args, result)
            return False
        return (name in SUMS and bool(self._outer.data)) or name == "exp"

    def before(self, name: str, args: Any, kwargs: Any) -> None:
        """Look at a call that is about to run."""
        if name in SOFTMAXES:
            self._softmax(name, *positional(name, args, kwargs))
        target = kwargs.get("out", args[0] if args and writes(name) else None)
        if isinstance(target, Tensor):
            self.session.before_write(target)

    def after(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Look at a call that has run."""
        if name in KERNELS:
            self._kernel(name, args, kwargs, result)
        elif name == "__setitem__":
            self._written(*args[:3])
        else:
            args, kwargs = positional(name.rstrip("_"), args, kwargs)
            self._weights.record(name, (*args, *kwargs.values()), result)
            self._follow(name, args, kwargs, result)

    def _kernel(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        if name == "scaled_dot_product_attention":
            sdpa.look(self.session, sdpa.KernelCall.of(args, kwargs, result))
        elif name == "flex_attention":
            before = len(self.session.seen.captures)
            flex.look(self.session, args, result)
            if len(self.session.seen.captures) > before:
                self._summed_up(result[1], before)
        else:
            multihead.look_at_function(self.session, args, kwargs)

    def _summed_up(self, lse: Tensor, capture: int) -> None:
        """Follow the logsumexp that a kernel returned beside its output."""
        trail = replace(Trail.unknown(), captured=True, reduced=True)
        self._blocks.take(trail.origins, capture)
        self._trails[lse] = trail

    def _follow(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Say what the result is, if it is a product of two activations or made from one."""
        in_place = writes(name)
        plain = name[:-1] if in_place else name
        results = [result] if isinstance(result, Tensor) else list(result) if isinstance(result, (tuple, list)) else []
        results = [one for one in results if isinstance(one, Tensor) and one.dtype.is_floating_point]
        if plain in OUTER and len(results) == 1:
            self._note_outer(args, results[0])
        self._pass_on(plain, args, kwargs, results)
        trail = self._made(plain, args, kwargs, results)
        for one in results:
            if trail is not None:
                self._trails[one] = trail
            elif in_place or "out" in kwargs:
                self._trails.pop(one, None)
            if trail is not None and one._base is not None and (in_place or "out" in kwargs):
                self._written(one._base, None, one)

    def _pass_on(self, name: str, args: Any, kwargs: Any, results: list[Tensor]) -> None:
        """Say which results are weights made of weights, and which are shares."""
        given = [one for one in flat(args) if isinstance(one, Tensor)]
        followed = any(tensor in self._trails for tensor in given)
        for one in results:
            if name in SOFTMAXES and not followed:
                self._shares.softmaxed(given[0], _axis_of(name, args, kwargs), one)
            elif name == "exp" and not followed and given[0] not in self._shares:
                self._shares.exponentiated(given[0], one)
            elif self._shares.any:
                self._shares.pass_on(name, given, one)
                if name in ("sum", "cumsum"):
                    self._shares.summed(given[0], kwargs.get("dim", args[1] if len(args) > 1 else None), one)
                elif name in SCATTERS and len(args) > 3:
                    self._shares.scattered(args, one)
            self._weights.note(name, given, one)

    def _made(self, name: str, args: Any, kwargs: Any, results: list[Tensor]) -> Trail | None:
        """The trail of a function's results."""
        if not results or not args:
            return None
        if name in PRODUCTS:
            return self._multiplied(name, args, kwargs, results[0])
        if name in COMPARISONS:
            return self._compared(args)
        if name in SUMS and isinstance(args[0], Tensor) and args[0] in self._outer:
            return self._summed(name, args, kwargs)
        if name in SCATTERS and len(args) > 3:
            self._scattered(args, results[0])
        known = [trail for one in flat((*args, *kwargs.values())) if (trail := self._find(one)) is not None]
        if not known:
            return None
        if name in SOFTMAXES:
            return self._changed.after_softmax(known[0], name)
        if name in REDUCTIONS and results[0].numel() < args[0].numel():
            return replace(known[0].lost(), reduced=True, divided=name == "logsumexp")
        self._put_together(name, args, known)
        return self._stepped(name, args, kwargs, results, known)

    def _put_together(self, name: str, args: Any, known: list[Trail]) -> None:
        """Note what blocks of keys are recognised by."""
        if len(known) > 1 and all(trail.reduced for trail in known):
            self._blocks.merge(known)
        if name in ("div", "divide", "true_divide") and (by := self._find(args[1])) is not None:
            self._blocks.divide(by)
            if self._find(args[0]) is None:
                self._changed.divided(by, args[1])
        elif name in ("mul", "multiply") and len(known) == 1 and known[0].reduced:
            self._changed.multiplied(known[0], args[0] if self._find(args[0]) is not None else args[1])

    def _stepped(self, name: str, args: Any, kwargs: Any, results: list[Tensor], known: list[Trail]) -> Trail:
        """The trail after an operation on what is followed."""
        step = STEPS.get(name)
        trail = None if step is None or len(results) > 1 else step(self._find, args, kwargs)
        if name == "normalize" and known[0].captured:
            over = kwargs.get("dim", args[2] if len(args) > 2 else 1)
            self._changed.normalised_again(known[0], [args[0].abs().sum(over, keepdim=True)], results[0])
        if name == "exp" and known[0].captured and not known[0].exponential:
            self._changed.back_as_weights(known[0], results[0])
        if trail is not None and trail.exponential and name in NORMALISING:
            trail = self._normalised(trail, [one for one in args[:2] if isinstance(one, Tensor)], results[0])
        if trail is None:
            return known[0].lost(*known[1:])
        if trail.scores is None:
            return trail
        if name in BOUNDS and not (trail.exponential or trail.reduced) and bounded(args, kwargs, results[0]):
            return trail.now(None)
        if name in VIEWS or name == "contiguous":
            return seen_as(trail, args[0], results[0])
        shape = tuple(results[0].shape)
        return trail if trail.scores.shape == shape else trail.now(trail.scores.viewed(shape))

    def _compared(self, args: Any) -> Trail | None:
        """Something that compares two activations, each with several others; or weights over keys with values."""
        two = [one for one in args[:2] if isinstance(one, Tensor) and one not in self._weights]
        if any(self._attended(one, -1) for one in two):
            return None
        return Trail.unknown() if len(two) == 2 else None

    def _multiplied(self, name: str, args: Any, kwargs: Any, result: Tensor) -> Trail | None:
        """A product: of an activation with a weight (the trail ends), of weights over keys with values, or of q with k."""
        factors = factors_of(name, args)
        if factors is None:
            several = [one for one in flat(args) if isinstance(one, Tensor) and one not in self._weights]
            return Trail.unknown() if len(several) > 1 else None
        (x, over_x), (y, over_y) = factors
        mixed = self._mixed(x, over_x) or self._mixed(y, over_y)
        learned = x in self._weights
        if mixed is not None or self._weights.is_projecting(name, y) or (learned and name == "einsum"):
            trail = self._find(x)
            if mixed is None and trail is not None and trail.exponential:
                self._attended(x, over_x)
            return mixed
        if self._attended(x, over_x) or self._attended(y, over_y):
            return None
        scores = products.of_call(name, args)
        if scores is None:  # as in "bd,btd->bt", where q has no axis of its own
            return Trail.unknown() if name == "einsum" and over_x and result.dim() > 1 else None
        return self._shifted(name, replace(scores, learned=learned), args, kwargs, result)

    def _mixed(self, tensor: Tensor, axis: int) -> Trail | None:
        """The trail of scores that are mixed over their heads; None if the product is over rows or keys."""
        trail = self._find(tensor)
        if trail is None or trail.scores is None or trail.scores.view is not None or trail.captured:
            return None
        return trail.lost() if trail.scores.order[axis % tensor.dim()] < len(trail.scores.lead) else None

    def _attended(self, tensor: Tensor, axis: int) -> bool:
        """Whether the tensor is weights over keys along `axis`, which are now used."""
        if self._shares.any and self._shares.used(tensor, axis):
            return True
        trail = self._find(tensor)
        if trail is None:
            return False
        if self._blocks.are_read(trail):
            self._changed.used(trail)
            return True
        if (read := self._weighted(trail, tensor, axis)) is not None:
            self._trails[tensor] = read
            return True
        self.session.frames.mark_unnormalised()
        return False

    def _shifted(self, name: str, scores: Scores, args: Any, kwargs: Any, result: Tensor) -> Trail | None:
        """The product as its function returns it: with an input added (baddbmm, addmm) and a factor."""
        trail = Trail.of(scores)
        if MATRICES.get(name) == 1:
            alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
            scaled = scores.times(alpha)
            trail = trail.now(scaled if scaled is None or beta == 0 else scaled.plus(args[0], beta))
        if trail.scores is not None and trail.scores.shape != tuple(result.shape):
            trail = trail.now(None)
        return trail

    def _note_outer(self, args: Any, result: Tensor) -> None:
        """Remember the factors of a product whose sum over an axis may be q·k, or weights times values. Both factors differ
        along the last axis, or the result is larger than both, or one of them is being followed."""
        if len(args) < 2 or not (isinstance(args[0], Tensor) and isinstance(args[1], Tensor)):
            return
        x, y = args[:2]
        larger = result.numel() > max(x.numel(), y.numel())
        alike = x.dim() > 1 and y.dim() > 1 and x.shape[-1] == y.shape[-1] > 1
        if larger or alike or (not self.idle and any(one in self._shares or one in self._trails for one in (x, y))):
            self._outer[result] = x, y

    def _summed(self, name: str, args: Any, kwargs: Any) -> Trail | None:
        """(x * y).sum(axes): q·kᵀ, or weights over keys times values."""
        product = args[0]
        x, y = self._outer[product]
        axes = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if axes is None:
            return None
        axes = [axes] if isinstance(axes, int) else list(axes)
        over = [axis % product.dim() for axis in axes]
        for one in (x, y):
            near = [axis - (product.dim() - one.dim()) for axis in over]
            values = one.numel() < product.numel()  # a mask makes no product larger than the weights
            if values and len(near) == 1 and near[0] >= 0 and one.shape[near[0]] > 1 and self._attended(one, near[0]):
                return None
        if (own := self._find(product)) is not None:  # scores times a mask, or times a number for each key
            return replace(own.lost(), reduced=True)
        if x in self._weights or y in self._weights:
            return None
        scores = products.of_outer(x, y, over, kept=bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False)))
        if scores is None:  # a query and keys of its own, as in a window or for an edge
            return Trail.unknown() if products.differ_along(x, y, over) else None
        length = 1
        for axis in over:
            length *= product.shape[axis]
        return Trail.of(scores if name == "sum" else scores.times(1 / length) or scores)

    def _scattered(self, args: Any, result: Tensor) -> None:
        """Exponentials added up by groups say which of them are one row. If they are multiplied with values first, and no row
        was read, the module is listed as unseen."""
        source = args[3]
        factors = self._outer.get(source, ()) if isinstance(source, Tensor) else ()
        used = [trail for one in factors if (trail := self._find(one)) is not None and trail.exponential]
        if any(not trail.captured for trail in used) and self.session.frames.attending is not None:
            frame = self.session.frames.attending
            self.session.miss(SCATTERED, frame.name, frame.kind)
        trail = self._find(source)
        groups = groups_of(args, result) if trail is not None and trail.exponential and not factors else None
        if trail is not None and groups is not None:
            self._groups |= dict.fromkeys(trail.origins, groups)

    def _normalised(self, trail: Trail, given: list[Tensor], weights: Tensor) -> Trail:
        """Exponentials that were divided: captured now if they are weights of rows or of groups, whoever uses them."""
        if len(given) < 2:
            return trail
        if self._blocks.are_read(trail):
            self._changed.normalised_again(trail, given, weights)
            return trail
        known = [self._groups[origin] for origin in trail.origins if origin in self._groups]
        if known and known[0].are_normalised(weights):
            recognise_logits(self.session, Trail.unknown(), known[0].rows(weights.detach().double().log()), -1)
            return self._blocks.read(trail)
        axis = normalised_along(given, weights)
        return trail if axis is None else self._weighted(trail, weights, axis) or trail

    def _weighted(self, trail: Trail, weights: Tensor, axis: int) -> Trail | None:
        """Capture weights over keys along `axis`; None if they are no weights."""
        self._blocks.take(trail.origins)
        if not recognise_weights(self.session, trail, weights, axis):
            return None
        self._changed.undivided(trail, weights, axis)
        return self._blocks.read(trail)

    def _written(self, target: Any, index: Any, value: Any) -> None:
        """scores[mask] = −inf hides entries; any other write loses the description, or brings that of what is written."""
        trail, theirs = self._find(target), self._find(value)
        if trail is None and theirs is None:
            return
        step = None
        if trail is not None and theirs is None and isinstance(index, Tensor) and index.dtype is torch.bool:
            step = STEPS["masked_fill"](self._find, (target, index, value), {})
        self._trails[target] = step or (trail or theirs).lost()  # type: ignore[union-attr]

    def _find(self, tensor: object) -> Trail | None:
        return self._trails.get(tensor) if isinstance(tensor, Tensor) else None

    def _softmax(self, name: str, args: Any, kwargs: Any) -> None:
        """Capture a softmax over followed scores, or list it as unseen."""
        logits, trail = args[0], self._find(args[0])
        axis = _axis_of(name, args, kwargs)
        if trail is not None and trail.captured:
            self._changed.softmaxed_again(trail, logits, axis)
            return
        if trail is not None and trail.exponential:
            trail = replace(trail, scores=None, exponential=False)
        if trail is not None and says_how_much(trail):
            return
        if trail is not None:
            self._blocks.take(trail.origins)
            if name == "softmin":
                logits, trail = -logits, trail.now(None if trail.scores is None else trail.scores.times(-1.0))
            before = len(self.session.seen.captures)
            recognise_logits(self.session, trail, logits, axis)
            if len(self.session.seen.captures) > before:
                self._changed.softmaxed(trail, logits, axis, before)
            return
        frame = self.session.frames.attending
        if frame is not None and frame.role.attends and logits.dim() > 2:
            frame.other_softmax = True


def _axis_of(name: str, args: Any, kwargs: Any) -> int:
    """The axis of a softmax."""
    axis = kwargs.get("dim", args[1] if len(args) > 1 and name != "gumbel_softmax" else -1)
    return axis if isinstance(axis, int) else -1
