"""One record per captured call: its heads, and its scale against the declared one."""

from torch import nn

from isotherm.checkup.audit import audit
from isotherm.checkup.declarations import Declarations
from isotherm.checkup.declare import LayerPlace, declared
from isotherm.checkup.heads import heads_of_layers
from isotherm.probe import Capture
from isotherm.record import Layer
from isotherm.stats import RowStats


def layers_of(
    model: nn.Module,
    captures: list[Capture],
    measured: list[RowStats],
    *,
    yours: Declarations = Declarations(),  # noqa: B008, it is frozen
) -> tuple[Layer, ...]:
    """The layers of captured and measured calls. `yours` are the rules that you declared."""
    layers = []
    for index, (capture, stats, heads) in enumerate(zip(captures, measured, heads_of_layers(measured), strict=True)):
        place = _place(model, index, capture)
        expected = declared(place, yours.at(index, capture.name))
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
                scale=audit(capture, expected),
                head_stats=heads,
            )
        )
    return tuple(layers)


def _place(model: nn.Module, index: int, capture: Capture) -> LayerPlace:
    """Find the layer's module by its name, and the configuration of that module or of the nearest one around it."""
    names = capture.name.split(".") if capture.name else []
    modules = {name.replace("_orig_mod.", ""): module for name, module in model.named_modules()}
    around = [modules[".".join(names[:end])] for end in range(len(names), -1, -1)]
    config = next((found for module in around if (found := getattr(module, "config", None)) is not None), None)
    layer = getattr(around[0], "layer_idx", None)
    heads, head_dim = capture.problem.q.shape[1], capture.problem.q.shape[3]
    return LayerPlace(around[0], config, index if layer is None else int(layer), head_dim, heads)
