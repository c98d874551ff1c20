"""Watch the operations of a forward pass: fused attention, hand-written attention, projections without a module, and writes to
memory that the probe still refers to. Whoever sees the operations (`mode.py`, `close.py`) reports them here."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from isotherm.probe import flex, multihead, products, sdpa
from isotherm.probe.frames import Frame
from isotherm.probe.functions import (
    COMPARISONS,
    CONTAINERS,
    KERNELS,
    MATRICES,
    NORMS,
    OUTER,
    PASSED_ON,
    PRODUCTS,
    REMADE,
    SOFTMAXES,
    SUMS,
    factors_of,
    flat,
    positional,
    writes,
)
from isotherm.probe.parts import parts_of, weight_of
from isotherm.probe.recognise import recognise_logits, recognise_weights
from isotherm.probe.scores import Scores
from isotherm.probe.session import Session
from isotherm.probe.trail import STEPS, VIEWS, Trail, seen_as


class Watch:
    """Follows the operations of one forward pass, whoever reports them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._trails = WeakTensorKeyDictionary()
        self._outer = WeakTensorKeyDictionary()
        self._shares = WeakTensorKeyDictionary()
        self._remade = WeakTensorKeyDictionary()
        self._taken: dict[int, tuple[Frame | None, int]] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is being followed."""
        return not (self._trails.data or self._shares.data)

    def wants(self, name: str, args: Any, result: Any) -> bool:
        """Whether a call of a function that is not always looked at matters now."""
        if type(result) not in CONTAINERS and not isinstance(result, Tensor):
            return False
        if self._trails.data or self._shares.data:
            return True
        if name in REMADE and args and isinstance(args[0], Tensor) and self.session.awake and self.is_weight(args[0]):
            return True
        if name in OUTER:
            return len(args) > 1 and all(isinstance(x, Tensor) and x.numel() < result.numel() for x in args[:2])
        return name in SUMS and bool(self._outer.data)

    def is_weight(self, tensor: Tensor, name: str = "") -> bool:
        """Whether the tensor is a weight of the model, was made of weights only, or is the weight of a projection that calls
        the function `name`."""
        if self.session.is_weight(tensor):
            return True
        if self._remade.data and (tensor in self._remade or tensor._base in self._remade):
            return True
        top = self.session.frames.top
        return name == "linear" and top is not None and isinstance(top.module, torch.nn.Linear)

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
            self._project(name, (*args, *kwargs.values()), result)
            self._follow(name, args, kwargs, result)

    def _kernel(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        if name == "scaled_dot_product_attention":
            sdpa.look(self.session, sdpa.KernelCall.of(args, kwargs, result))
        elif name == "flex_attention":
            flex.look(self.session, args, result)
        else:
            multihead.look_at_function(self.session, args, kwargs)

    def _project(self, name: str, args: Any, result: Any) -> None:
        """Record a projection or a norm that is a function call and not a module."""
        frame = self.session.frames.top
        if frame is None or (name not in PRODUCTS and name not in NORMS):
            return
        if name in NORMS:
            if not frame.normalises:
                self.session.frames.note(frame, f"{frame.name}.{name}", "norm", args, result)
            return
        if frame.projects:
            return
        weight = weight_of(name, args)
        weight = self._weight_below_python(name, args) if weight is None else weight
        if weight is not None:
            own, parts = parts_of(frame, name, args, weight)
            given = [x for x in args if isinstance(x, Tensor) and x is not weight and not self.session.is_weight(x)]
            self.session.frames.note(frame, own, "projection", given, result, parts)

    def _weight_below_python(self, name: str, args: Any) -> Tensor | None:
        """A weight that is known by its memory only: scripted code passes views without saying of what."""
        factors = factors_of(name, args)
        weight = None if factors is None else factors[1][0]
        return weight if weight is not None and self.session.is_weight(weight) else None

    def _follow(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Say what the result is, if it is a product of two activations or made from one."""
        in_place = writes(name)
        plain = name[:-1] if in_place else name
        results = [result] if isinstance(result, Tensor) else list(result) if isinstance(result, (tuple, list)) else []
        results = [one for one in results if isinstance(one, Tensor) and one.dtype.is_floating_point]
        if plain in OUTER and len(args) > 1 and len(results) == 1:
            self._note_outer(args[0], args[1], results[0])
        self._pass_on(plain, args, results)
        trail = self._made(plain, args, kwargs, results)
        for one in results:
            if trail is not None:
                self._trails[one] = trail
            elif in_place or "out" in kwargs:
                self._trails.pop(one, None)
            if trail is not None and one._base is not None and (in_place or "out" in kwargs):
                self._written(one._base, None, one)

    def _pass_on(self, name: str, args: Any, results: list[Tensor]) -> None:
        """Say which results are weights made of weights, or shares: what a softmax of something that is not followed gave."""
        given = [one for one in flat(args) if isinstance(one, Tensor)]
        for one in results:
            fresh = name in SOFTMAXES and not any(tensor in self._trails for tensor in given)
            if fresh or (name in PASSED_ON and given and given[0] in self._shares):
                self._shares[one] = True
            remade = name in REMADE and given and all(self.is_weight(tensor) for tensor in given)
            if remade or (name in PRODUCTS and all(isinstance(tensor, torch.nn.Parameter) for tensor in given)):
                self._remade[one] = True

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
        known = [trail for one in flat((*args, *kwargs.values())) if (trail := self._find(one)) is not None]
        if not known:
            return None
        if name in SOFTMAXES:
            return Trail(known[0].origins, None, None, captured=True)
        step = STEPS.get(name)
        trail = None if step is None or len(results) > 1 else step(self._find, args, kwargs)
        if trail is None:
            return known[0].lost(*known[1:])
        if trail.scores is None:
            return trail
        if name in VIEWS or name == "contiguous":
            return seen_as(trail, args[0], results[0])
        shape = tuple(results[0].shape)
        return trail if trail.scores.shape == shape else trail.now(trail.scores.viewed(shape))

    def _compared(self, args: Any) -> Trail | None:
        """Something that compares two activations, each with several others."""
        two = [one for one in args[:2] if isinstance(one, Tensor) and not self.is_weight(one)]
        return Trail.unknown() if len(two) == 2 else None

    def _multiplied(self, name: str, args: Any, kwargs: Any, result: Tensor) -> Trail | None:
        """A product: of an activation with a weight (the trail ends), of weights over keys with values, or of q with k."""
        factors = factors_of(name, args)
        if factors is None:
            several = [one for one in flat(args) if isinstance(one, Tensor) and not self.is_weight(one)]
            return Trail.unknown() if len(several) > 1 else None
        (x, over_x), (y, over_y) = factors
        mixed = self._mixed(x, over_x) or self._mixed(y, over_y)
        learned = self.is_weight(x)
        if mixed is not None or self.is_weight(y, name) or (learned and name == "einsum"):
            trail = self._find(x)
            if mixed is None and trail is not None and trail.exponential:
                self._attended(x, over_x)
            return mixed
        if self._shares.data and (self._shared(name, args, x, over_x) or self._shared(name, args, y, over_y)):
            return None
        if not self._attended(x, over_x) and not self._attended(y, over_y):
            scores = self._product(name, args)
            scores = None if scores is None else replace(scores, learned=learned)
            return None if scores is None else self._shifted(name, scores, args, kwargs, result)
        return None

    def _shared(self, name: str, args: Any, shares: Tensor, axis: int) -> bool:
        """Whether the product takes means of activations with shares that sum to one, several means of the same activations.
        That is attention whose scores were not followed."""
        if shares not in self._shares or shares.shape[axis] < 2:
            return False
        frame, product = self.session.frames.attending, self._product(name, args)
        several = product is not None and min(product.a.shape[-2], product.b.shape[-2]) > 1
        if frame is None or not (several or frame.attends):
            return False
        if not bool(((shares.float().sum(axis) - 1).abs() < 1e-2).all()):
            return False
        frame.other_softmax = True
        return True

    def _mixed(self, tensor: Tensor, axis: int) -> Trail | None:
        """The trail of scores that are mixed over their heads; None if the product is over rows or keys."""
        trail = self._find(tensor)
        if trail is None or trail.scores is None or trail.scores.view is not None or trail.captured:
            return None
        return trail.lost() if trail.scores.order[axis % tensor.dim()] < len(trail.scores.lead) else None

    def _attended(self, tensor: Tensor, axis: int) -> bool:
        """Whether the tensor is weights over keys along `axis`, which are now used."""
        trail = self._find(tensor)
        if trail is None:
            return False
        if trail.captured:
            return True
        if recognise_weights(self.session, trail, tensor, axis):
            self._trails[tensor] = Trail(trail.origins, None, None, captured=True)
            return True
        self.session.frames.mark_unnormalised()
        return False

    @staticmethod
    def _product(name: str, args: Any) -> Scores | None:
        if name == "einsum":
            return products.of_einsum(args[0], args[1:])
        if name == "tensordot":
            return products.of_tensordot(args[0], args[1], args[2] if len(args) > 2 else 2)
        if name == "inner":
            return products.of_inner(args[0], args[1])
        x, y = args[MATRICES.get(name, 0) :][:2]
        if name == "__rmatmul__":
            x, y = y, x
        return products.of_matrices(x, y.mT if name == "linear" else y)

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

    def _note_outer(self, x: Any, y: Any, result: Tensor) -> None:
        """Remember the factors of a product that is larger than both: its sum over an axis may be q·kᵀ."""
        if isinstance(x, Tensor) and isinstance(y, Tensor) and result.numel() > max(x.numel(), y.numel()):
            if self.is_weight(x) or self.is_weight(y):
                return
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
            if len(near) == 1 and near[0] >= 0 and one.shape[near[0]] > 1 and self._attended(one, near[0]):
                return None
        scores = products.of_outer(x, y, over, kept=bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False)))
        if scores is None:
            return None
        length = 1
        for axis in over:
            length *= product.shape[axis]
        return Trail.of(scores if name == "sum" else scores.times(1 / length) or scores)

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
        axis = kwargs.get("dim", args[1] if len(args) > 1 and name != "gumbel_softmax" else -1)
        if trail is not None and trail.captured:
            return
        if trail is not None and trail.exponential:
            trail = replace(trail, scores=None, exponential=False)
        if trail is not None and isinstance(axis, int) and self._merges_blocks(trail, logits.shape[axis]):
            return
        if trail is not None and isinstance(axis, int):
            before = len(self.session.seen.captures)
            self._taken |= dict.fromkeys(trail.origins, (self.session.frames.attending, before))
            if name == "softmin":
                logits, trail = -logits, trail.now(None if trail.scores is None else trail.scores.times(-1.0))
            recognise_logits(self.session, trail, logits, axis)
            return
        frame = self.session.frames.attending
        if frame is not None and frame.attends and logits.dim() > 2:
            frame.other_softmax = True

    def _merges_blocks(self, trail: Trail, weights: int) -> bool:
        """Whether a softmax over several products, each of which had a softmax of its own in the running module, says how much
        each of them counts: then they were blocks of keys, and no whole rows."""
        frame = self.session.frames.attending
        taken = [self._taken.get(origin, (None, 0)) for origin in trail.origins]
        if frame is None or len(taken) < 2 or len(taken) != weights or any(where is not frame for where, _ in taken):
            return False
        frame.blocks.extend(sorted(index for _, index in taken))
        return True
