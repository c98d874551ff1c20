"""Ways to multiply a layer's q·k by a factor in this model: the rows of its query projection, the gain of its query norm, a
learned temperature, the rows of its key projection, a scale that a module or the configuration holds.

None of them is more than a guess before it was tried.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import log, prod
from typing import Any, Literal

from torch import Tensor

from isotherm.checkup.changes import Members, Slice, slices
from isotherm.probe import Capture, Factor
from isotherm.probe.frames import plain_name
from isotherm.record import ModelChange

POWERS = {"query_pre_attn_scalar": -2, "attention_scores_scalar": -2, "attention_multiplier": 1}
"""Configuration keys that set the scale. To multiply the scale by f, multiply the key's value by f to this power."""
TEMPERATURE = re.compile(r"temp|tau|scal|gain|gamma|logit|norm", re.IGNORECASE)
SCALE = re.compile(r"scal|temp|tau|norm_factor", re.IGNORECASE)
GUESSES = 4
"""How many learned temperatures, and how many attributes, are tried at most."""

Changes = tuple[ModelChange, ...]
Side = Literal["q", "k"]


@dataclass(frozen=True)
class Way:
    """`changes` gives the changes for a factor. `own` says that they spare all heads but the ones asked for, `added` that they
    add the factor's logarithm (to a temperature that is exponentiated, perhaps after it was clamped)."""

    kind: Literal["projection", "norm", "temperature", "scale"]
    changes: Callable[[float], Changes]
    own: bool = False
    added: bool = False


@dataclass(frozen=True)
class CallSite:
    """The site of a captured call: the model's members, the call, and the configuration key that declares its scale, if one
    does."""

    model: Members
    capture: Capture
    key: str

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return self.capture.problem.q.shape[1]

    @property
    def home(self) -> str:
        """The innermost module around the call, its projections and its norms."""
        factors = (self.capture.q_factor, self.capture.k_factor)
        names = [name for factor in factors for name in (factor.source, factor.norm) if name is not None]
        around = self.capture.name.split(".") if self.capture.name else []
        for end in range(len(around), 0, -1):
            home = ".".join(around[:end])
            if home in self.model.modules and all(name.startswith(f"{home}.") or name == home for name in names):
                return home
        return ""

    @property
    def around(self) -> frozenset[str]:
        """The modules whose outputs the call, its projections and its norms may change first."""
        return frozenset({self.home, self.capture.name})

    def inside(self) -> dict[str, Tensor]:
        """The parameters of the home, those nearest to the call first."""
        home, here = self.home, self.capture.name
        found = {n: p for n, p in self.model.parameters.items() if not home or n.startswith(f"{home}.")}
        return dict(sorted(found.items(), key=lambda pair: (pair[0].rpartition(".")[0] != here, "k_" in pair[0])))


def ways(
    site: CallSite, heads: Sequence[int] | None, *, scale_only: bool = False, only: Side | None = None
) -> Iterator[Way]:
    """The ways to multiply q·k of these heads (None: of all) by a factor, the most natural first. With `scale_only` only those
    that change the multiplier itself, with `only` only those that change what q, or k, is made with."""
    q, k = site.capture.q_factor, site.capture.k_factor
    if only == "k":
        yield from _gains(site, k, heads) if k.kind == "normalised" else _projection(site, k, q, heads)
        return
    if not scale_only:
        if q.kind == "normalised":
            yield from _gains(site, q, heads)
            yield from _temperatures(site, heads)
        else:
            yield from _projection(site, q, k, heads)
        if only is not None:
            return
        if heads is None and k.kind != "normalised":
            yield from _projection(site, k, q, None)
    yield from _attributes(site)
    yield from _configuration(site)


def _projection(site: CallSite, mine: Factor, other: Factor, heads: Sequence[int] | None) -> Iterator[Way]:
    """The rows of a projection that make q (or k), in its weight, its bias and its adapters. If they make some of the other of
    the two as well, there is no such way, unless they make all of it (q and k are one)."""
    layout = mine.layout
    if layout is None or mine.source is None:
        return
    shared = site.heads // len(layout.starts) if layout.starts else 1  # query heads that share a head of k
    rows = layout.features(heads if heads is None or shared < 2 else {head // shared for head in heads})
    if other.source == mine.source and other.layout is not None:
        theirs = set(other.layout.features())
        if theirs & set(layout.features()) and theirs != set(layout.features()):
            return
    parts = projection_parts(site.model, mine)
    if not parts and len(rows) == layout.width and mine.source in site.model.parameters:
        parts = [(mine.source, 0, 0, layout.width)]
    targets = [(name, *_cut(rows, axis, first, size)) for name, axis, first, size in parts]
    if not targets or not all(cuts for *_, cuts in targets):
        return
    own = heads is not None and bool(layout.starts)
    biases = (
        [] if any(site.model.parameters[name].dim() == 1 for name, *_ in parts) else _lone_biases(site, mine, heads)
    )
    if biases:
        yield Way("projection", partial(_multiply, targets + biases), own)
    yield Way("projection", partial(_multiply, targets), own)


def _lone_biases(
    site: CallSite, mine: Factor, heads: Sequence[int] | None
) -> list[tuple[str, int | None, list[Slice]]]:
    """Biases of q (or k) that are parameters beside a fused weight, by their names and sizes (BEiT's q_bias)."""
    which = "q" if mine is site.capture.q_factor else "k"
    size = site.heads * site.capture.problem.q.shape[3]
    found = (name for name, parameter in site.inside().items() if tuple(parameter.shape) == (size,))
    return [
        (name, *_of_heads(site, name, heads)) for name in found if re.match(f"{which}.*bias", name.rpartition(".")[2])
    ]


def projection_parts(model: Members, factor: Factor) -> list[tuple[str, int, int, int]]:
    """The parameters of a projection: name, dimension of the features, index of the first feature, size of the dimension."""
    if factor.parts:
        known = model.parameters
        named = [part for part in factor.parts if part.name]
        return [(part.name, part.axis, part.first, known[part.name].shape[part.axis]) for part in named]
    module = model.modules.get(factor.source or "")
    found = []
    for path, inner in () if module is None or not factor.source else module.named_modules():
        for own, parameter in inner.named_parameters(recurse=False):
            axis = 1 if type(inner).__name__ == "Conv1D" and parameter.dim() == 2 else 0
            makes_features = parameter.dim() and parameter.shape[axis] == (factor.layout.width if factor.layout else 0)
            if makes_features and parameter.is_floating_point():
                name = ".".join(part for part in (factor.source, plain_name(path), own) if part)
                found.append((name, axis, 0, parameter.shape[axis]))
    return found


def _cut(rows: Sequence[int], axis: int, first: int, size: int) -> tuple[int | None, list[Slice]]:
    """The rows as slices of a dimension; no axis if they are all of it."""
    if len(rows) == size:
        return None, [Slice(0, size)]
    return axis, slices([first + row for row in rows], size)


def _multiply(targets: Sequence[tuple[str, int | None, list[Slice]]], factor: float) -> Changes:
    number = rounded(factor)
    return tuple(
        ModelChange(name, "multiply", number)
        if axis is None
        else ModelChange(name, "multiply", number, "parameter", axis, *cut)
        for name, axis, cuts in targets
        for cut in cuts
    )


def _gains(site: CallSite, factor: Factor, heads: Sequence[int] | None) -> Iterator[Way]:
    """The gain (and bias) of the query norm; some norms keep their gain minus 1."""
    module = site.model.modules.get(factor.norm or "")
    names = (
        []
        if module is None or factor.norm is None
        else [f"{factor.norm}.{plain_name(own)}" for own, _ in module.named_parameters()]
    )
    targets = [(name, *_of_heads(site, name, heads)) for name in names]
    if not targets or not all(cuts for *_, cuts in targets):
        return
    own = all(axis is not None for _, axis, _ in targets)
    yield Way("norm", partial(_multiply, targets), own)
    yield Way("norm", partial(_multiply_offset, targets), own)


def _multiply_offset(targets: Sequence[tuple[str, int | None, list[Slice]]], factor: float) -> Changes:
    """Multiply 1 + weight: w becomes f·w + f − 1."""
    multiplied = _multiply(targets, factor)
    number = rounded(rounded(factor) - 1)
    return multiplied + tuple(_with(change, "add", number) for change in multiplied)


def _of_heads(site: CallSite, name: str, heads: Sequence[int] | None) -> tuple[int | None, list[Slice]]:
    """The part of a gain or temperature that belongs to these heads: all of it, if heads share it."""
    shape, count = tuple(site.model.parameters[name].shape), site.heads
    dim = site.capture.problem.q.shape[3]
    if heads is None or count == 1:
        return None, [Slice(0, 0)]
    if count in shape and (prod(shape) == count or shape[0] == count):
        return shape.index(count), slices(sorted(heads), count)
    if shape == (count * dim,):
        return 0, slices([head * dim + i for head in sorted(heads) for i in range(dim)], count * dim)
    return None, [Slice(0, 0)]


def _temperatures(site: CallSite, heads: Sequence[int] | None) -> Iterator[Way]:
    """Learned numbers of the layer, by their names: multiplied, or exponentiated first."""
    most = site.heads * site.capture.problem.q.shape[3]
    found = [n for n, p in site.inside().items() if TEMPERATURE.search(n.rpartition(".")[2]) and p.numel() <= most]
    for name in found[:GUESSES]:
        target = (name, *_of_heads(site, name, heads))
        own = target[1] is not None
        multiplied = Way("temperature", partial(_multiply, [target]), own)
        added = Way("temperature", partial(_add, [target]), own, added=True)
        yield from (added, multiplied) if "log" in name.rpartition(".")[2] else (multiplied, added)


def _add(targets: Sequence[tuple[str, int | None, list[Slice]]], factor: float) -> Changes:
    return tuple(_with(change, "add", rounded(log(factor))) for change in _multiply(targets, factor))


def _with(change: ModelChange, operation: Literal["multiply", "add", "set"], number: float) -> ModelChange:
    return ModelChange(
        change.target, operation, number, change.kind, change.axis, change.start, change.stop, change.step, change.block
    )


def _attributes(site: CallSite) -> Iterator[Way]:
    """Numbers that the layer's modules keep as attributes named after a scale, those nearest to the call first."""
    home, here = site.home, site.capture.name
    modules = site.model.modules
    names = [name for name in modules if name == home or not home or name.startswith(f"{home}.")]
    found = [
        (f"{name}.{attribute}" if name else attribute, float(value))
        for name in sorted(names, key=lambda name: (name != here, name.count(".")))
        for attribute, value in vars(modules[name]).items()
        if type(value) in (int, float) and value and SCALE.search(attribute)
    ]
    for name, value in found[:GUESSES]:
        yield Way("scale", partial(_set, name, value, "attribute", 1))


def _configuration(site: CallSite) -> Iterator[Way]:
    names = site.capture.name.split(".") if site.capture.name else []
    around = [site.model.modules.get(".".join(names[:end])) for end in range(len(names), -1, -1)]
    configs = (getattr(module, "config", None) for module in around)
    value: Any = getattr(next((config for config in configs if config is not None), None), site.key, None)
    if site.key in POWERS and type(value) in (int, float) and value:
        yield Way("scale", partial(_set, site.key, float(value), "configuration", POWERS[site.key]))


def _set(target: str, value: float, kind: Literal["attribute", "configuration"], power: int, factor: float) -> Changes:
    return (ModelChange(target, "set", rounded(value * factor**power), kind),)


def rounded(number: float) -> float:
    """The number with the four digits that a sentence shows: what is tried is what is said."""
    return float(f"{number:.4g}")
