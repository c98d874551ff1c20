"""One record per captured call: its heads, its scale against the declared one, and advice."""

from dataclasses import replace

from torch import nn

from isotherm.checkup.advice import advise
from isotherm.checkup.audit import audit
from isotherm.checkup.declare import CONVENTION, Declared, LayerPlace, declared
from isotherm.checkup.heads import heads_of_layers
from isotherm.language import Text
from isotherm.probe import Capture
from isotherm.record import Layer, ScaleAudit
from isotherm.stats import RowStats

NO_RULE = Declared("", None, CONVENTION)
NO_CONVENTION = Text(
    "its vectors run along the positions, for which there is no usual scale", "其向量沿各个位置排列，没有惯用的缩放"
)


def layers_of(
    model: nn.Module, captures: list[Capture], measured: list[RowStats], *, untrained: bool
) -> tuple[Layer, ...]:
    """The layers of captured and measured calls. `untrained` decides which logit spread the advice aims at."""
    layers = []
    for index, (capture, stats, heads) in enumerate(zip(captures, measured, heads_of_layers(measured), strict=True)):
        place = _place(model, index, capture)
        expected = _expected(capture, place)
        keys = int(stats.n.max()) if stats.n.numel() else 0
        layers.append(
            Layer(
                index=index,
                name=capture.name,
                kind=capture.kind,
                heads=capture.problem.q.shape[1],
                kv_heads=capture.problem.k.shape[1],
                head_dim=capture.problem.q.shape[3],
                keys=keys,
                implementation=capture.implementation,
                scale=_audited(capture, expected),
                head_stats=heads,
                advice=advise(heads, keys, capture, expected, place, at_initialisation=untrained),
            )
        )
    return tuple(layers)


def _expected(capture: Capture, place: LayerPlace) -> Declared:
    """What the layer declares. The convention 1/√d is about the vector of one position: it says nothing about vectors that run
    along the positions, as those of channel and batch attention do."""
    expected = declared(place)
    other_axes = capture.kind in ("channel", "batch") and expected.source == CONVENTION
    return NO_RULE if other_axes else expected


def _audited(capture: Capture, expected: Declared) -> ScaleAudit:
    found = audit(capture, expected)
    return replace(found, note=NO_CONVENTION) if expected is NO_RULE else found


def _place(model: nn.Module, index: int, capture: Capture) -> LayerPlace:
    """Find the layer's module by its name, and the configuration of that module or of the nearest one around it."""
    names = capture.name.split(".") if capture.name else []
    around = [model.get_submodule(".".join(names[:end])) for end in range(len(names), -1, -1)]
    config = next((found for module in around if (found := getattr(module, "config", None)) is not None), None)
    layer = getattr(around[0], "layer_idx", None)
    return LayerPlace(around[0], config, index if layer is None else int(layer), capture.problem.q.shape[3])
