"""What to change in this model so that a layer comes to the right temperature. Nothing is advised that was not tried.

A `Want` is a statistic of some heads and the value it should have. The ways that this model offers are tried one after another
on a copy (`trial.py`), until one leads there; then the advice names it, and says what it achieved. If none does, another scale
is tried on the captured q and k. If that does not lead there either, the advice says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import exp, isfinite, log
from statistics import median
from typing import Literal

import torch
from torch import nn

from isotherm.checkup.changes import Members, make, said
from isotherm.checkup.heads import heads_of_layers
from isotherm.checkup.measure import Batch
from isotherm.checkup.memory import Remarks
from isotherm.checkup.restoring import Queries
from isotherm.checkup.rows import measure
from isotherm.checkup.trial import Bench
from isotherm.checkup.ways import CallSite, Side, Way, rounded, ways
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.record import HeadStats, Layer, ModelChange

NEAR = 0.02
"""How far a trial may be from its target."""
RUNS = 12
"""How many times the model is run for trials at most."""
EXPONENTS = (-1.0, 2.0, -2.0, 0.5, -0.5)
"""Powers of a number that the logits may depend on, beside 1: a temperature that divides, a gain that q and k share."""
SLOWEST = 0.05
"""A statistic that changes less than this for a change of the factor (both as logarithms) is made by something else."""
BEFORE_CALL = ("projection", "norm")
"""Kinds of ways that change the queries before the call."""
BELOW_LIMIT = 0.99
"""Aim at this part of a limit that is to be kept, so that rounding does not exceed it."""

TRYING = Text("trying advice for {name}", "试验对 {name} 的建议")
TRIED = Text(
    "{how} (tried: {what} {before:.4g} → {after:.4g})", "{how}（已试：{what}由 {before:.4g} 变为 {after:.4g}）"
)
HANDED = Text(
    "pass a scale of {value:.4g} to the attention function instead of {old:.4g} (tried on the captured q and k: {what}"
    " {before:.4g} → {after:.4g})",
    "把传给注意力函数的缩放由 {old:.4g} 改为 {value:.4g}（已在捕获的 q、k 上试过：{what}由 {before:.4g} 变为 {after:.4g}）",
)
NOTHING = Text(
    "no simple change was found that brings the {what} from {before:.4g} to {target:.4g}",
    "没有找到能使{what}由 {before:.4g} 变为 {target:.4g} 的简单改动",
)
EVERY_HEAD = Text("{how}; all heads of the layer share this and change too", "{how}；该层所有头共用它，都会改变")
SHARED = Text(
    "{how}; this also changes other layers that share it: {layers}", "{how}；共用它的其他层也会改变：{layers}"
)
WHAT = {
    "logit_std": Text("spread", "标准差"),
    "max_logit": Text("largest logit", "最大 logit "),
    "scale": Text("scale in force", "实际缩放"),
    "size": Text("multiple of the siblings' median", "与同类中位数之比"),
}


@dataclass(frozen=True)
class Want:
    """`statistic` of these heads of a layer (None: of all) should go from `before` to `target`. "size" is that of q or k (its
    `side`) beside its siblings' median, and asks for a change of that one alone."""

    layer: int
    heads: tuple[int, ...] | None
    statistic: Literal["logit_std", "max_logit", "scale", "size"]
    before: float
    target: float
    side: Side = "q"

    def value(self, heads: Sequence[HeadStats]) -> float | None:
        """The statistic of these heads: a layer's median spread; of chosen heads, and of logits, the largest."""
        chosen = heads if self.heads is None else [heads[head] for head in self.heads]
        values = [getattr(head, self.statistic) for head in chosen]
        known = [value for value in values if value is not None]
        typical = self.heads is None and self.statistic == "logit_std"
        return (median if typical else max)(known) if known else None

    def met_by(self, value: float | None) -> bool:
        """Whether the value is near the target, and a logit within its limit."""
        if value is None or not isfinite(value) or abs(value / self.target - 1) > NEAR:
            return False
        return self.statistic != "max_logit" or value <= self.target / BELOW_LIMIT


@dataclass(frozen=True)
class Found:
    """The sentence that says what to do, the changes it names, and what they led to (None: nothing did). `own` says that they
    spare all heads but the wanted ones."""

    how: Text
    changes: tuple[ModelChange, ...] = ()
    achieved: float | None = None
    own: bool = False


@dataclass
class _Attempt:
    """A want under trial: the ways that are left, each with the factor that q·k should be multiplied by, the present one first.
    `asked` is the factor to ask the present way for: another one, once its answer had to be corrected. `on_keys` says that what
    was found changes the keys, too."""

    want: Want
    site: CallSite
    left: list[tuple[Way, float]]
    asked: float = 1.0
    corrections: int = 0
    on_keys: bool = False
    found: Found | None = None

    def __post_init__(self) -> None:
        self.asked = self.left[0][1] if self.left else 1.0

    @property
    def way(self) -> Way:
        return self.left[0][0]

    @property
    def factor(self) -> float:
        return self.left[0][1]

    @property
    def changes(self) -> tuple[ModelChange, ...]:
        return self.way.changes(self.asked)

    @property
    def halved(self) -> Sequence[int]:
        """The heads whose queries the present way halves if it is asked for a half."""
        heads = self.want.heads if self.way.own else None
        return range(self.site.heads) if heads is None else heads

    def give_up_way(self) -> None:
        del self.left[0]
        self.asked, self.corrections = self.left[0][1] if self.left else 1.0, 0


class Advisor:
    """Finds advice for a model whose layers were captured on a batch."""

    def __init__(
        self, model: nn.Module, batch: Batch, rows: int | None, captures: Sequence[Capture], layers: Sequence[Layer],
        remarks: Remarks,
    ) -> None:  # fmt: skip
        self._model, self._batch, self._rows, self._remarks = model, batch, rows, remarks
        self._captures, self._layers = captures, layers

    @cached_property
    def _members(self) -> Members:
        return Members(self._model)

    def find(self, wants: Sequence[Want]) -> dict[Want, Found]:
        """Advice for each want. The model runs only if there is one."""
        if not wants:
            return {}
        attempts = [self._attempt(want) for want in dict.fromkeys(wants)]
        around = {name for attempt in attempts for name in attempt.site.around}
        bench = Bench(self._model, self._batch, self._captures, around | {one.name for one in self._captures})
        for _ in range(RUNS):
            chosen = _compatible([attempt for attempt in attempts if attempt.found is None and attempt.left])
            if not chosen:
                break
            captures = bench.run(change for attempt in chosen for change in attempt.changes)
            for attempt in chosen:
                self._judge(attempt, captures)
            self._drop_other_uses(bench, [attempt for attempt in chosen if attempt.found is not None])
        return {attempt.want: attempt.found or self._handed(attempt) for attempt in attempts}

    def _attempt(self, want: Want) -> _Attempt:
        capture = self._captures[want.layer]
        site = CallSite(self._members, capture, self._layers[want.layer].scale.source.split(" ")[0])
        only = want.side if want.statistic == "size" else None
        found = list(ways(site, want.heads, scale_only=want.statistic == "scale", only=only))
        if want.statistic == "size":
            found = [way for way in found if want.heads is None or way.own]
        elif want.heads is not None:  # ways that change every head are better than none
            found += [way for way in ways(site, None) if way.kind in ("projection", "norm")]
        return _Attempt(want, site, [(way, factor) for factor in self._factors(want, capture) for way in found])

    def _factors(self, want: Want, capture: Capture) -> list[float]:
        """The factors on q·k that may lead to the target. It is a ratio, unless a bias or a cap is part of the logits: then it
        is searched for on the captured q and k. The bias may be made of q, so the ratio is worth a trial even then."""
        ratio = want.target / want.before
        if want.statistic in ("scale", "size") or (capture.problem.bias is None and capture.problem.softcap is None):
            return [ratio]
        searched = self._searched(want)
        return [ratio] if searched is None else [searched, ratio]

    def _searched(self, want: Want) -> float | None:
        """The factor at which the captured q and k have the target, by secants. None if there is none."""
        before, factor = want.before, want.target / want.before
        step = log(factor)
        for _ in range(8):
            value = self._replayed(want, factor)
            if value is None or not value > 0 or not 1e-6 < factor < 1e6:
                return None
            if abs(value / want.target - 1) < NEAR / 10:
                return factor
            slope = log(value / before) / step  # of the statistic over the factor, both as logarithms
            if slope < SLOWEST:
                return None
            before, step = value, log(want.target / value) / slope
            factor *= exp(step)
        return None

    def _replayed(self, want: Want, factor: float) -> float | None:
        """The statistic of the captured q and k if their scale is multiplied by a factor."""
        capture = self._captures[want.layer]
        scaled = replace(capture, problem=replace(capture.problem, scale=capture.problem.scale * factor))
        return self._value(want, scaled)

    def _value(self, want: Want, capture: Capture) -> float | None:
        doing, total = TRYING.format(name=capture.name), capture.problem.q.shape[2]
        stats = self._remarks.within_memory(doing, partial(measure, capture), self._rows, total)
        return want.value(heads_of_layers([stats])[0])

    def _judge(self, attempt: _Attempt, captures: list[Capture] | None) -> None:
        """Keep a way that led to the target; correct the number of one that may; drop any other."""
        want = attempt.want
        before = self._captures[want.layer]
        side = want.side if want.statistic == "size" else None
        ratio = None if captures is None else _ratio(before, captures[want.layer], want.heads, side)
        if captures is not None and ratio is not None and abs(ratio / attempt.factor - 1) <= NEAR:
            in_proportion = want.statistic in ("scale", "size")
            after = want.before * ratio if in_proportion else self._value(want, captures[want.layer])
            if want.met_by(after):
                on_keys = _ratio(before, captures[want.layer], None, "k")
                attempt.on_keys = on_keys is None or abs(on_keys - 1) > NEAR
                attempt.found = self._worked(attempt, float(after or 0.0))
                return
        corrected = None if ratio is None else _corrected(attempt, ratio)
        if corrected is None:
            attempt.give_up_way()
        else:
            attempt.asked, attempt.corrections = corrected, attempt.corrections + 1

    def _drop_other_uses(self, bench: Bench, found: Sequence[_Attempt]) -> None:
        """Give up ways that change more than q·k: the layer uses what they change for something else, too."""
        layers: dict[int, list[_Attempt]] = {}
        for attempt in found:
            whole = self._captures[attempt.want.layer].rows is None
            if whole and attempt.way.kind in BEFORE_CALL and not attempt.on_keys:
                layers.setdefault(attempt.want.layer, []).append(attempt)
        if not layers:
            return
        changes = [change for mine in layers.values() for one in mine for change in one.way.changes(0.5)]
        queries = [
            Queries(mine[0].site.capture.problem.q, [head for one in mine for head in one.halved], mine[0].site.around)
            for mine in layers.values()
        ]
        used = bench.other_uses(lambda copied: make(copied, changes), queries)
        for attempt in (one for mine, other in zip(layers.values(), used, strict=True) if other for one in mine):
            attempt.found = None
            attempt.give_up_way()

    def _worked(self, attempt: _Attempt, after: float) -> Found:
        want, changes = attempt.want, attempt.changes
        known = self._members.parameters
        how = said(changes, lambda name: known[name].dim())
        how = TRIED.format(how=how, what=WHAT[want.statistic], before=want.before, after=after)
        if want.heads is not None and not attempt.way.own:
            how = EVERY_HEAD.format(how=how)
        changed = {id(known[change.target]) for change in changes if change.kind == "parameter"}
        others = [i for i, _ in enumerate(self._captures) if i != want.layer and changed & self._serving(i)]
        if others:
            how = SHARED.format(how=how, layers=", ".join(map(str, others)))
        return Found(how, changes, after, attempt.way.own)

    def _serving(self, layer: int) -> set[int]:
        """The parameters that q and k of a layer are made with, by id."""
        capture, found = self._captures[layer], set[int]()
        sources = {name for one in (capture.q_factor, capture.k_factor) for name in (one.source, one.norm) if name}
        for name, parameter in self._members.parameters.items():
            if any(name == source or name.startswith(f"{source}.") for source in sources):
                found.add(id(parameter))
        return found

    def _handed(self, attempt: _Attempt) -> Found:
        """Another scale for the attention function, tried on the captured q and k; or the admission that nothing was found."""
        want, capture = attempt.want, self._captures[attempt.want.layer]
        scale = capture.problem.scale
        words = {"what": WHAT[want.statistic], "before": want.before}
        if not capture.affine or not scale:
            return Found(NOTHING.format(target=want.target, **words))
        value = rounded(scale * self._factors(want, capture)[0])
        in_proportion = want.statistic in ("scale", "size")
        after = want.before * value / scale if in_proportion else self._replayed(want, value / scale)
        if not want.met_by(after):
            return Found(NOTHING.format(target=want.target, **words))
        how = HANDED.format(value=value, old=scale, after=after, **words)
        return Found(how if want.heads is None else EVERY_HEAD.format(how=how), (), after)


def _compatible(attempts: list[_Attempt]) -> list[_Attempt]:
    """As many attempts as one run can tell apart: of one layer's, those that change only their own heads; and no two layers of
    which one contains the other, or that change the same parameter or a configuration."""
    chosen: list[_Attempt] = []
    for attempt in attempts:
        if all(_apart(attempt, other) for other in chosen):
            chosen.append(attempt)
    return chosen


def _apart(one: _Attempt, other: _Attempt) -> bool:
    known = one.site.model.parameters
    targets = [{id(known.get(change.target)) for change in attempt.changes} for attempt in (one, other)]
    kinds = {change.kind for attempt in (one, other) for change in attempt.changes}
    if "configuration" in kinds:
        return False
    if one.want.layer == other.want.layer:
        a, b = one.want.heads, other.want.heads
        return one.way.own and other.way.own and a is not None and b is not None and not set(a) & set(b)
    a_home, b_home = (f"{attempt.site.home}." for attempt in (one, other))
    nested = "." in (a_home, b_home) or a_home.startswith(b_home) or b_home.startswith(a_home)
    return not nested and ("attribute" in kinds or not targets[0] & targets[1])


def _ratio(before: Capture, after: Capture, heads: Sequence[int] | None, side: Side | None = None) -> float | None:
    """By what q·k of these heads was multiplied: the median over heads of the change of scale·|q|·|k|. With a `side`, by what
    q or k alone was."""
    if before.problem.q.shape != after.problem.q.shape or before.problem.k.shape != after.problem.k.shape:
        return None
    sizes = []
    for capture in (before, after):
        q, k = (x.double().square().sum(-1).mean((0, 2)).sqrt() for x in (capture.problem.q, capture.problem.k))
        k = k.to(q.device).repeat_interleave(len(q) // len(k))
        together = capture.problem.scale * q * k
        sizes.append(together if side is None else q if side == "q" else k)
    ratios = sizes[1] / sizes[0]
    ratios = ratios if heads is None else ratios[torch.tensor(list(heads), device=ratios.device)]
    ratio = float(ratios.median())
    return ratio if isfinite(ratio) and ratio > 0 else None


def _corrected(attempt: _Attempt, ratio: float) -> float | None:
    """The factor to ask a way for, after it answered with another ratio than it was asked for. None if there is none.

    An exponentiated temperature that was clamped answers only beyond the clamp. The logits may also depend on a power of the
    number: then the answer was that power.
    """
    if attempt.way.added:
        further = attempt.asked * attempt.factor / ratio
        return further if attempt.corrections < 3 and 1e-8 < further < 1e8 else None
    if attempt.corrections:
        return None
    power = log(ratio) / log(attempt.asked)
    near = [exponent for exponent in EXPONENTS if abs(power - exponent) < NEAR]
    return exp(log(attempt.factor) / near[0]) if near else None
