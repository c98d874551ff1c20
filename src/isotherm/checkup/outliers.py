"""Layers and heads that stand apart from their siblings, as after a bad merge of weights.

Trained heads differ widely in their logits (tenfold in MiniLM), but little in the size of the weights that make q and k. So
sizes of weights are compared where they are known. Behind a norm weights do not matter, and of one weight that makes q, k and v
it is not known which rows are whose: there the lengths of the vectors that the kernel received are compared, and something else
has to stand apart as well, the witness. Without a norm these lengths depend on what enters the layer, so they are compared
within a layer: one head's with the others', q's with k's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite, log, sqrt
from statistics import median
from typing import Literal

import torch
from torch import Tensor, nn

from isotherm.checkup import thresholds as limits
from isotherm.checkup.fetch import by_shape, fetched
from isotherm.checkup.findings import Evidence, finding
from isotherm.checkup.known_rules import kind_of
from isotherm.language import Text
from isotherm.probe import Capture, Factor
from isotherm.record import Finding, Layer

WEIGHTS, VECTORS = Text("weights", "权重"), Text("vectors", "向量")
ROWS, COLUMNS = 16, 96
"""How many rows and columns of a head's weights are read, about, spread evenly."""
POSITIONS = 64
"""How many positions are read for the sizes of q and k, about."""
TOGETHER = 1 << 20
"""Parts of so many numbers are measured together."""
A_LAYER, A_HEAD = Text("{name}", "{name}"), Text("{name}, head {head}", "{name} 第 {head} 头")
Projection = tuple[nn.Module | None, Tensor | None]
"""A projection and its weight; None where there is none to read."""
THIS_LAYER = Text("this layer", "该层")


@dataclass(frozen=True)
class Sized:
    """Something with a size that its siblings have, too: the weights or vectors of q or k, of one layer or of one head.

    `witness` is another number that has to stand apart the same way, None if none has to. `shape` is that of the weight.
    """

    layer: Layer
    head: int | None
    which: Literal["q", "k", "q and k"]
    measure: Text
    source: str | None
    size: float
    witness: float | None
    shape: tuple[int, ...] = ()

    @property
    def kind(self) -> tuple[object, ...]:
        """What all siblings in the model have in common."""
        layer, of_head = self.layer, self.head is not None
        shape = layer.heads, layer.kv_heads, layer.head_dim, self.shape
        return kind_of(layer.name), layer.kind, of_head, self.which, self.measure, shape


def with_outliers(
    model: nn.Module, captures: Sequence[Capture], layers: Sequence[Layer], found: Sequence[Finding]
) -> list[Finding]:
    """The findings, and those about layers and heads that stand apart. A head whose logits are too large is named only once:
    its finding then says how many times its siblings' size it has, so that the advice can bring it down to them."""
    apart = {(one.layer, one.head): one for one in outliers(model, captures, layers)}
    told = []
    for one in found:
        same = apart.pop((one.layer, one.head), None) if one.code in ("logits-large", "logits-diverging") else None
        ratio = None if same is None else {"times_siblings": same.evidence["ratio"]}
        told.append(one if ratio is None else replace(one, evidence=one.evidence | ratio))
    return [*told, *apart.values()]


def outliers(model: nn.Module, captures: Sequence[Capture], layers: Sequence[Layer]) -> list[Finding]:
    """Findings about layers and heads that stand apart. A layer that runs several times counts once, and one whose head stands
    apart is not named as well."""
    first = {layer.name: layer.index for layer in reversed(layers)}
    sides = {index: _sides(model, captures[index], layers[index]) for index in sorted(first.values())}
    numbers = iter(_sizes_of([part for pair in sides.values() for side in pair for part in side.parts]))
    kinds: dict[tuple[object, ...], list[Sized]] = {}
    for index, pair in sides.items():
        read = [[next(numbers) for _ in side.parts] for side in pair]
        for one in _sizes(layers[index], pair, read):
            if isfinite(one.size) and one.size > 0:
                kinds.setdefault(one.kind, []).append(one)
    found = [one for siblings in kinds.values() for one in _apart(siblings)]
    of_heads = {one.layer for one in found if one.head is not None}
    of_sides = {one.layer for one in found if one.evidence["of"] != "q and k"}
    kept = [
        one
        for one in found
        if not (one.head is None and one.layer in of_heads)
        and not (one.evidence["of"] == "q and k" and one.layer in of_sides)
    ]
    return sorted(kept, key=lambda one: (one.layer or 0, -1 if one.head is None else one.head))


@dataclass(frozen=True, eq=False)
class SideSizes:
    """q or k of a layer: the projection that it comes from, whether the rows of its weight are known to be the heads, and the
    parts of which sizes are to be read: each head's vectors, then each head's weights if `by_head`, then the whole weight if q
    and k come from one."""

    which: Literal["q", "k"]
    factor: Factor
    weight: Tensor | None
    by_head: bool
    parts: tuple[Tensor, ...]


def _sides(model: nn.Module, capture: Capture, layer: Layer) -> tuple[SideSizes, SideSizes]:
    problem, (q, k) = capture.problem, (capture.q_factor, capture.k_factor)
    one = q.source == k.source
    return (
        _side(_projection(model, q), layer, "q", problem.q, q, whole=one),
        _side(_projection(model, k), layer, "k", problem.k, k, whole=False),
    )


def _side(
    projection: Projection, layer: Layer, which: Literal["q", "k"], vectors: Tensor, factor: Factor, *, whole: bool
) -> SideSizes:
    (module, weight), heads = projection, vectors.shape[1]
    by_head = weight is not None and isinstance(module, nn.Linear) and weight.shape[0] == heads * layer.head_dim
    parts = [_some(vectors)]
    if weight is not None and by_head:
        rows = weight.unflatten(0, (heads, -1))
        parts.append(rows[None, :, :: max(1, layer.head_dim // ROWS), :: max(1, weight.shape[1] // COLUMNS)])
    if weight is not None and whole:
        parts.append(weight[None, None])
    return SideSizes(which, factor, weight, by_head, tuple(parts))


def _sizes(layer: Layer, sides: tuple[SideSizes, SideSizes], read: Sequence[Sequence[list[float]]]) -> Iterator[Sized]:
    """All that is compared of one layer. `read` are the sizes of both sides."""
    (own, other), (of_q, of_k) = sides, read
    yield from _of_side(own, layer, of_q)
    yield from _of_side(other, layer, of_k)
    q, k = median(of_q[0]), median(of_k[0])
    source = own.factor.source
    if own.weight is not None and source == other.factor.source and other.factor.kind != "normalised" and q and k:
        whole, shape = of_q[-1][0], tuple(own.weight.shape)
        yield Sized(layer, None, "q and k", WEIGHTS, source, whole, None, shape)
        yield Sized(layer, None, "q", VECTORS, source, q / k, whole, shape)
        yield Sized(layer, None, "k", VECTORS, source, k / q, whole, shape)


def _of_side(side: SideSizes, layer: Layer, read: Sequence[list[float]]) -> Iterator[Sized]:
    """What is compared of q or k alone."""
    which, factor, vectors = side.which, side.factor, read[0]
    spreads, group = [head.logit_std for head in layer.head_stats], layer.heads // len(vectors)
    source = (
        layer.name if factor.kind == "normalised" else factor.source
    )  # behind a norm the projection does not matter
    known = [spread for spread in spreads if spread is not None]
    if side.weight is not None and side.by_head:
        sizes, shape = read[1], tuple(side.weight.shape)
        yield Sized(layer, None, which, WEIGHTS, source, median(sizes), None, shape)
        for head, (size, length) in enumerate(zip(sizes, vectors, strict=True)):
            yield Sized(layer, head * group, which, WEIGHTS, source, size, length, shape)
        return
    if factor.kind == "normalised":
        yield Sized(layer, None, which, VECTORS, source, median(vectors), median(known or [0.0]))
    for head, length in enumerate(vectors):
        yield Sized(layer, head * group, which, VECTORS, source, length, spreads[head * group] or 0.0)


def _some(vectors: Tensor) -> Tensor:
    """Some positions of [B, H, T, D], spread evenly: a size needs no more."""
    return vectors[:, :, :: 1 + vectors.shape[2] // POSITIONS]


def _sizes_of(parts: Sequence[Tensor]) -> list[list[float]]:
    """The root mean square of each head of each part [B, heads, rows, columns]. Large parts are not put together."""
    small = [place for place, part in enumerate(parts) if part.numel() <= TOGETHER]
    groups = [([small[i] for i in places], same) for places, same in by_shape([parts[place] for place in small])]
    groups += [([place], part.detach()[None]) for place, part in enumerate(parts) if part.numel() > TOGETHER]
    found: dict[int, list[float]] = {}
    for (places, _), sizes in zip(groups, fetched([_rms(same) for _, same in groups]), strict=True):
        found |= zip(places, sizes.tolist(), strict=True)
    return [found[place] for place in range(len(parts))]


def _rms(values: Tensor) -> Tensor:
    """[N, B, heads, rows, columns] → [N, heads]."""
    wide = torch.promote_types(values.dtype, torch.float32)
    return torch.linalg.vector_norm(values, dim=(1, 3, 4), dtype=wide) / sqrt(values[0, :, 0].numel())


def _projection(model: nn.Module, factor: Factor) -> Projection:
    """The projection and its weight, if that decides about sizes and is an ordinary matrix. A projection without a module is
    named after its weight."""
    if factor.source is None or factor.kind == "normalised":
        return None, None
    owner, _, last = factor.source.rpartition(".")
    try:
        named = getattr(model.get_submodule(owner), last) if last else model
    except (AttributeError, RuntimeError):  # a compiled module has another name, a scripted one cannot be asked
        return None, None
    module = named if isinstance(named, nn.Module) else None
    weights = [named] if module is None else [getattr(module, name, None) for name in ("weight", "in_proj_weight")]
    for weight in weights:
        if (
            isinstance(weight, Tensor) and type(weight.data) is Tensor and weight.dim() == 2
        ):  # not quantised, not sharded
            dense = weight.layout == torch.strided and not weight.is_meta
            return module, weight if dense and weight.is_floating_point() and weight.numel() else None
    return module, None


def _apart(siblings: list[Sized]) -> Iterator[Finding]:
    """Those of these siblings that stand apart. A layer's peers are all of them; a head's peers are the heads of its layer."""
    of_heads = siblings[0].head is not None
    peers: dict[int, list[Sized]] = {}
    for one in siblings:
        peers.setdefault(one.layer.index if of_heads else 0, []).append(one)
    placed = [(one, group) for group in peers.values() for one in group]
    middles = {place: median(one.size for one in group) for place, group in peers.items()}
    away = [log(one.size / middles[place]) for place, group in peers.items() for one in group]
    least = limits.LEAST_DEVIATION_OF_WEIGHTS if siblings[0].measure == WEIGHTS else limits.LEAST_DEVIATION_OF_VECTORS
    # 1.4826 makes the median absolute deviation of a normal distribution its standard deviation.
    deviation = max(1.4826 * median(abs(distance) for distance in away), least)
    enough = limits.SIBLING_HEADS if of_heads else limits.SIBLING_LAYERS
    for distance, (one, group) in zip(away, placed, strict=True):
        far = len(group) >= enough and abs(distance) >= limits.APART.value * deviation
        unused_head = of_heads and distance < 0  # training leaves some
        if far and not unused_head and _is_confirmed(one, group, distance):
            yield _finding(one, distance, abs(distance) / deviation, len(group) - 1)


def _is_confirmed(one: Sized, peers: list[Sized], distance: float) -> bool:
    """Whether the witness points the same way, at least half as far on a logarithmic scale."""
    if one.witness is None:
        return True
    usual = median(peer.witness or 0.0 for peer in peers)
    return one.witness > 0 and usual > 0 and log(one.witness / usual) / distance >= 0.5


def _finding(one: Sized, distance: float, score: float, siblings: int) -> Finding:
    ratio = exp(distance)
    evidence: Evidence = {
        "of": one.which,
        "measured": one.measure.en,
        "size": one.size,
        "siblings_median": one.size / ratio,
        "ratio": ratio,
        "score": score,
        "limit": limits.APART.value,
        "siblings": float(siblings),
    }
    who = (A_LAYER if one.head is None else A_HEAD).format(name=one.layer.name, head=one.head)
    words = {"who": who, "what": one.measure, "side": one.which, "ratio": ratio, "count": siblings, "score": score}
    at = one.layer.index, one.head
    return finding("stands-apart", "warning", at, evidence, **words, source=one.source or THIS_LAYER)
