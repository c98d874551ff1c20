"""What is asked for: a rule for some layers and heads, or factors by layer, read and checked before anything runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from isotherm.checkup.audit import effective
from isotherm.checkup.declare import declared
from isotherm.checkup.layers import place_of
from isotherm.errors import ArgumentError, named
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.probe.frames import plain_name
from isotherm.probe.members import modules_of
from isotherm.scale import Product, Rule, Site, parse

RuleLike = str | float | Rule
"""A rule as an object, as a number, or as `isotherm rules` writes it."""
Wanted = RuleLike | Mapping[str, RuleLike | Tensor]
"""One rule for every layer, or rules and factors by layer pattern. A tensor, of one number or one for each head, multiplies
the scale in force."""
Where = str | int | Sequence[str | int] | None
NAMES = 3
EXACT = 1e-3
"""A scale in force that was measured is known to about this."""
KINDS = Text(
    "a rule, a number, or a mapping from layer patterns to rules or tensors",
    "一条规则、一个数，或从层名模式到规则或张量的映射",
)
ONLY_MULTIPLIES = Text("a rule that only multiplies q·k", "只把 q·k 乘以一个数的规则")
ONE_A_HEAD = Text("a rule with one number for each head", "每个头一个数的规则")
KNOWN_SCALE = Text(
    "a factor such as x0.5 for {layer}, whose scale in force is not known ({why})",
    "{layer} 的倍数（如 x0.5），因为其实际缩放未知（{why}）",
)
NO_LAYER = Text("a name, pattern or index of a layer (layers: {layers})", "某一层的名称、模式或序号（各层：{layers}）")
NO_HEADS = Text("heads from 0 to {last} in {layer}", "{layer} 中 0 到 {last} 的头")
SHAPE = Text("one number, or {heads} for the heads of {layer}", "一个数，或 {layer} 各头的 {heads} 个数")


@dataclass(frozen=True)
class Request:
    """A rule, or a tensor of factors on the scale in force, for the layers that a pattern matches and for some heads."""

    pattern: str
    what: Rule | Tensor
    heads: tuple[int, ...] | None = None


def read(wanted: Wanted, layers: Where, heads: int | Sequence[int] | None) -> tuple[Request, ...]:
    """The requests, of which the last that matches a layer decides."""
    chosen = None if heads is None else tuple(sorted({heads} if isinstance(heads, int) else set(heads)))
    if isinstance(wanted, Mapping):
        if layers is not None:
            raise ArgumentError(
                "layers",
                Text("none beside a mapping, which names them", "不与映射同用（映射已指明各层）"),
                got=repr(layers),
            )
        if not wanted:
            raise ArgumentError("rule", Text("at least one layer", "至少一层"), got=repr(wanted))
        return tuple(Request(str(pattern), _read(what), chosen) for pattern, what in wanted.items())
    rule = _read(wanted)
    patterns: Sequence[str | int] = ["*"] if layers is None else [layers] if isinstance(layers, str | int) else layers
    if not patterns:
        raise ArgumentError("layers", Text("at least one layer", "至少一层"), got=repr(layers))
    return tuple(Request(str(pattern), rule, chosen) for pattern in patterns)


def _read(wanted: object) -> Rule | Tensor:
    with named(scale="rule"):
        if isinstance(wanted, Tensor):
            if not wanted.is_floating_point() or wanted.dim() > 1:
                raise ArgumentError(
                    "rule",
                    Text("a floating-point tensor [heads] or of one number", "浮点张量，形状为 [heads] 或单个数"),
                    got=f"{wanted.dtype} {list(wanted.shape)}",
                )
            return wanted
        if isinstance(wanted, int | float) and not isinstance(wanted, bool):
            wanted = str(float(wanted))
        rule = parse(wanted) if isinstance(wanted, str) else wanted
        if not isinstance(rule, Rule):
            raise ArgumentError("rule", KINDS, got=type(wanted).__name__)
    resolved = rule.resolve(Site.single(64, 1024))
    more = (resolved.normalise, resolved.softcap, resolved.sink, resolved.sigmoid_bias)
    if any(part is not None for part in more) or not rule.has_softmax:
        raise ArgumentError("rule", ONLY_MULTIPLIES, got=repr(str(rule)))
    return rule


def requested(requests: Sequence[Request], captures: Sequence[Capture]) -> Iterator[tuple[int, Request]]:
    """Each layer that a request is about, with the request that decides. A request that matches no layer is refused."""
    names = [capture.name for capture in captures]
    for request in requests:
        if not any(_matches(request, index, name) for index, name in enumerate(names)):
            listed = ", ".join(names[:NAMES]) + (" …" if len(names) > NAMES else "")
            raise ArgumentError("layers", NO_LAYER.format(layers=listed or "-"), got=repr(request.pattern))
    for index, name in enumerate(names):
        matching = [request for request in requests if _matches(request, index, name)]
        if matching:
            yield index, matching[-1]


def _matches(request: Request, index: int, name: str) -> bool:
    return fnmatchcase(name, request.pattern) or request.pattern in (name, str(index))


def factor_of(model: nn.Module, capture: Capture, index: int, request: Request) -> float | Tensor:
    """By what to multiply q·k of this layer: one number, or a tensor [heads]."""
    heads = capture.problem.q.shape[1]
    what = request.what
    if isinstance(what, Tensor):
        if what.numel() not in (1, heads):
            raise ArgumentError("rule", SHAPE.format(heads=heads, layer=capture.name), got=list(what.shape))
        factor: float | Tensor = what
    else:
        factor = _ratio(model, capture, index, what)
    if request.heads is None:
        return factor
    if not request.heads or not 0 <= request.heads[0] <= request.heads[-1] < heads:
        raise ArgumentError("heads", NO_HEADS.format(last=heads - 1, layer=capture.name), got=list(request.heads))
    return _only(factor, request.heads, heads)


def by_query(request: Request, layer: int) -> Rule | None:
    """The part of a rule that has a number for each query; None if there is none."""
    if isinstance(request.what, Tensor):
        return None
    parts = tuple(part for part in request.what.at_layer(layer).factors if part.per_query)
    return None if not parts else parts[0] if len(parts) == 1 else Product(parts)


def _only(factor: float | Tensor, chosen: Sequence[int], heads: int) -> float | Tensor:
    """The factor for these heads, 1 for the others."""
    if len(chosen) == heads or (isinstance(factor, float) and factor == 1):
        return factor
    device = factor.device if isinstance(factor, Tensor) else None
    mine = torch.zeros(heads, dtype=torch.bool, device=device)
    mine[list(chosen)] = True
    whole = factor if isinstance(factor, Tensor) else torch.tensor(factor, dtype=torch.float64)
    return torch.where(mine, whole, torch.ones_like(whole))


def _ratio(model: nn.Module, capture: Capture, index: int, rule: Rule) -> float | Tensor:
    """What the rule asks for, divided by what is in force: exactly 1 if that is the same."""
    place = place_of({plain_name(name): module for name, module in modules_of(model)}, index, capture)
    rule = rule.at_layer(place.layer)
    constant = Product(tuple(part for part in rule.factors if not part.per_query))
    multiplier = constant.resolve(Site.single(place.head_dim, 1024, place.heads)).multiplier
    if isinstance(multiplier, Tensor):
        if multiplier.numel() != multiplier.shape[0] or multiplier.dim() < 3:
            raise ArgumentError("rule", ONE_A_HEAD, got=repr(str(rule)))
        multiplier = multiplier.flatten()
    if not rule.sets_scale:
        return multiplier
    in_force, why = effective(capture)
    if not in_force:
        raise ArgumentError("rule", KNOWN_SCALE.format(layer=capture.name, why=why), got=repr(str(rule)))
    named_by_model = declared(place).value
    if named_by_model is not None and abs(in_force / named_by_model - 1) <= EXACT:
        in_force = named_by_model
    ratio = multiplier / in_force
    return 1.0 if isinstance(ratio, float) and abs(ratio - 1) <= _known_to(capture) else ratio


def _known_to(capture: Capture) -> float:
    """How exactly the scale in force is known: a factor between projection and kernel was measured."""
    measured = any(factor.value != 1.0 for factor in (capture.q_factor, capture.k_factor))
    half = capture.problem.q.dtype.itemsize < 4
    return (10 * EXACT if half else EXACT) if measured else 1e-6
