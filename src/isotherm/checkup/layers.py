"""One record per captured call: its heads, and its scale against the declared one."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from isotherm.checkup.audit import audit
from isotherm.checkup.declarations import Declarations
from isotherm.checkup.declare import CONVENTION, Declared, LayerPlace, declared
from isotherm.checkup.heads import LayerHeads
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.probe.frames import plain_name
from isotherm.probe.members import modules_of
from isotherm.record import Layer, ScaleAudit
from isotherm.scale import Rule

NO_RULE = Declared("", None, CONVENTION)
NO_CONVENTION = Text(
    "its vectors run along the positions, for which there is no usual scale", "其向量沿各个位置排列，没有惯用的缩放"
)


def layers_of(
    model: nn.Module,
    captures: list[Capture],
    heads: Sequence[LayerHeads],
    *,
    yours: Declarations = Declarations(),  # noqa: B008, it is frozen
) -> tuple[Layer, ...]:
    """The layers of captured calls whose heads were measured. `yours` are the rules that you declared."""
    layers, modules = [], {plain_name(name): module for name, module in modules_of(model)}
    for index, (capture, measured) in enumerate(zip(captures, heads, strict=True)):
        place = place_of(modules, index, capture)
        expected = _expected(capture, place, yours.at(index, capture.name))
        layers.append(
            Layer(
                index=index,
                name=capture.name,
                kind=capture.kind,
                heads=capture.problem.q.shape[1],
                kv_heads=capture.problem.k.shape[1],
                head_dim=capture.problem.q.shape[3],
                keys=measured.keys,
                implementation=capture.implementation,
                scale=_audited(capture, expected),
                head_stats=measured.records,
            )
        )
    return tuple(layers)


def _expected(capture: Capture, place: LayerPlace, yours: Rule | None) -> Declared:
    """What the layer declares. The convention 1/√d is about the vector of one position: it says nothing about vectors that run
    along the positions, as those of channel and batch attention do."""
    expected = declared(place, yours)
    other_axes = capture.kind in ("channel", "batch") and expected.source == CONVENTION
    return NO_RULE if other_axes else expected


def _audited(capture: Capture, expected: Declared) -> ScaleAudit:
    found = audit(capture, expected)
    return replace(found, note=NO_CONVENTION) if expected is NO_RULE else found


def place_of(modules: dict[str, nn.Module], index: int, capture: Capture) -> LayerPlace:
    """Find the layer's module by its name, and the configuration of that module or of the nearest one around it."""
    names = capture.name.split(".") if capture.name else []
    around = [modules[".".join(names[:end])] for end in range(len(names), -1, -1)]
    config = next((found for module in around if (found := getattr(module, "config", None)) is not None), None)
    layer = getattr(around[0], "layer_idx", None)
    heads, head_dim = capture.problem.q.shape[1], capture.problem.q.shape[3]
    return LayerPlace(around[0], config, index if layer is None else int(layer), head_dim, heads)
