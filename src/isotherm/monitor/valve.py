"""The valve: QK-clip on any model whose query projections can be found (Kimi K2, arXiv:2507.20534, §2.1).

After an optimizer step, a head whose largest logit passed τ gets γ = τ/max_logit: √γ on its rows of W_q and √γ on those of W_k,
biases included. Where a key head serves several query heads, or k is not made by rows of its own (latent attention shares its
rotary key), a factor on W_k would change other heads too; then all of γ goes on W_q. The logits are the same either way.
Weights are multiplied in place, so optimizers keep their moments and sharded weights stay sharded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from isotherm.checkup.changes import Members
from isotherm.checkup.ways import projection_parts
from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.monitor.looking import Origin
from isotherm.monitor.totals import key_of
from isotherm.probe import Factor
from isotherm.record.watch import WatchedLayer

NORMALISED = Text(
    "{layer}: QK-norm sets the length of q again after its projection, so clipping the projection changes nothing; lower the"
    " norm's gain instead",
    "{layer}：QK-norm 在投影之后重新规定 q 的长度，裁剪投影的权重不起作用；应减小该归一化的增益",
)
NOT_FOUND = Text(
    "{layer}: the rows of a weight that make its queries were not found, so it cannot be clipped",
    "{layer}：没有找到产生其查询的权重行，因而无法裁剪",
)
CLIPPED = Text(
    "{layer}: {n} heads above {tau:g} (the largest {largest:.4g}) were brought back by QK-clip",
    "{layer}：{n} 个头超过 {tau:g}（最大 {largest:.4g}），已由 QK-clip 拉回",
)


@dataclass(frozen=True)
class Clip:
    """What was done to one layer: how many heads were above τ, their largest logit, and the smallest γ."""

    layer: WatchedLayer
    heads: int
    largest: float
    smallest_factor: float


@dataclass(frozen=True)
class Valve:
    """Keeps every head's largest logit at or below `tau`, once after each reading.

    `masters` has the float32 master of each weight whose optimizer keeps one beside it; both are multiplied. Where the weights
    themselves are the masters (autocast, FSDP2) there are none.
    """

    tau: float = 100.0
    masters: Mapping[Tensor, Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.tau < float("inf"):
            raise ArgumentError("tau", Text("a positive number", "正数"), got=self.tau)

    @torch.no_grad()
    def act(
        self, model: nn.Module, layers: Sequence[WatchedLayer], origins: Sequence[Origin | None], largest: np.ndarray
    ) -> tuple[list[Clip], list[Text]]:
        """Clip the layers that need it. Return what was done, and why some could not be helped."""
        members = Members(model)
        clips, refused = [], []
        for layer, origin, seen in _modules(layers, origins, largest):
            hot = np.isfinite(seen) & (seen > self.tau)
            if not hot.any():
                continue
            gamma = np.where(hot, self.tau / np.where(hot, seen, 1.0), 1.0)
            why = NOT_FOUND if origin is None else _close(members, origin, gamma, self.masters)
            if why is not None:
                refused.append(why.format(layer=layer.name))
            else:
                clips.append(Clip(layer, int(hot.sum()), float(seen[hot].max()), float(gamma.min())))
        return clips, refused


def _modules(
    layers: Sequence[WatchedLayer], origins: Sequence[Origin | None], largest: np.ndarray
) -> Iterator[tuple[WatchedLayer, Origin | None, np.ndarray]]:
    """Each module with its heads' largest logits. One that is called several times in a forward is clipped once."""
    ends = np.cumsum([layer.heads for layer in layers])
    calls: dict[tuple[str, int], list[int]] = {}
    for place, layer in enumerate(layers):
        calls.setdefault((key_of(layer.name)[0], layer.heads), []).append(place)
    for places in calls.values():
        parts = [largest[ends[place] - layers[place].heads : ends[place]] for place in places]
        yield layers[places[0]], origins[places[0]], np.fmax.reduce(parts)


def _close(members: Members, origin: Origin, gamma: np.ndarray, masters: Mapping[Tensor, Tensor]) -> Text | None:
    """Multiply a layer's weights by a factor for each head. Return why that is not possible, or None."""
    if origin.q.kind == "normalised":
        return NORMALISED
    on_q = _targets(members, origin.q, origin)
    if not on_q:
        return NOT_FOUND
    own_keys = origin.key_heads == origin.heads and origin.k.kind == "constant" and not _overlap(origin.q, origin.k)
    on_k = _targets(members, origin.k, origin) if own_keys else []
    share = np.sqrt(gamma) if on_k else gamma
    for targets in (on_q, on_k):
        for parameter, axis, rows_of_heads in targets:
            factor = torch.ones(parameter.shape[axis], dtype=torch.float64)
            for head, rows in enumerate(rows_of_heads):
                factor[rows] = float(share[head])
            _multiply(parameter, axis, factor)
            if parameter in masters:
                _multiply(masters[parameter], axis, factor)
    return None


def _targets(members: Members, factor: Factor, origin: Origin) -> list[tuple[Tensor, int, list[list[int]]]]:
    """The parameters that make q (or k): each with the axis of its features and the indices of each head's. Where heads are
    spread over processes, what was found of this one's features holds for every process's share of them."""
    layout = factor.layout
    if layout is None or (len(layout.starts) or 1) != origin.heads:
        return []
    whole = replace(factor, layout=replace(layout, width=layout.width * origin.parts))
    found = []
    for name, axis, first, _ in projection_parts(members, whole):
        parameter = members.parameters[name]
        share = parameter.shape[axis] // origin.parts
        rows = [
            [part * share + first + row for row in layout.features([head])]
            for part in range(origin.parts)
            for head in range(origin.heads)
        ]
        found.append((parameter, axis, rows))
    return found


def _overlap(q: Factor, k: Factor) -> bool:
    """Whether some feature of one projection serves both q and k."""
    if q.source != k.source or q.layout is None or k.layout is None:
        return False
    return bool(set(q.layout.features()) & set(k.layout.features()))


def _multiply(parameter: Tensor, axis: int, factor: Tensor) -> None:
    """parameter *= factor along an axis, in place. A sharded parameter is multiplied by a factor sharded likewise."""
    shape = [1] * parameter.dim()
    shape[axis] = -1
    whole = factor.to(parameter.device, parameter.dtype).view(shape).expand(parameter.shape)
    if hasattr(parameter, "placements"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(parameter, DTensor)
        whole = distribute_tensor(whole.contiguous(), parameter.device_mesh, parameter.placements)
    parameter.mul_(whole)
