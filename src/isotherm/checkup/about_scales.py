"""Judge each layer's scale: an error where a declaration is broken, otherwise a note or a warning."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf

from torch import nn

from isotherm.checkup.anew import Anew
from isotherm.checkup.declare import ASSUMED, CONVENTION, first_source
from isotherm.checkup.findings import Evidence, finding
from isotherm.checkup.known_rules import KnownRule, likely, near, recognised
from isotherm.checkup.measure import Batch
from isotherm.checkup.thresholds import SCALE_TOLERANCE
from isotherm.language import Text
from isotherm.record import Finding, Layer, ScaleAudit

INSTALLED = "installed class"
AS_ANEW = Text(
    "no key declares this scale; the installed class does the same when built anew",
    "没有配置项说明此缩放；已安装的类重新构建时也是如此",
)
ZERO = Text("Find where q·k is multiplied by 0.", "查明 q·k 在何处被乘以 0。")
BY_LAYER = Text(
    "If it is meant, declare it: the number differs between layers, so by layer pattern ({texts}), as in"
    " declared={{'{name}': '{declare}', …}} in Python or --declared '{name}={declare}' on the command line. If not, scale by"
    " 1/√d.",
    "若是有意为之，请声明：各层数值不同，须按层名模式分别声明（{texts}），"
    "如 Python 中的 declared={{'{name}': '{declare}', …}}，或命令行的 --declared '{name}={declare}'。若非有意，请乘以 1/√d。",
)
FOLLOWS = Text("nothing declares a scale; this one is {rule}", "没有任何声明；此缩放即 {rule}")


def judged_scales(model: nn.Module, batch: Batch, layers: tuple[Layer, ...]) -> tuple[tuple[Layer, ...], list[Finding]]:
    """The layers with what was found out about scales that nobody declared, and the findings about scales."""
    layers = _compared_with_class(model, batch, layers)
    rules = recognised(layers)
    layers = _marked(layers, rules)
    return layers, [*_about(layers, rules)]


def _compared_with_class(model: nn.Module, batch: Batch, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers, with departures from a scale that nobody declared compared with the installed class built anew. Nothing is
    built if there are none."""
    anew = Anew(model, batch)
    return tuple(replace(layer, scale=_settled(layer, anew)) if _in_doubt(layer) else layer for layer in layers)


def _in_doubt(layer: Layer) -> bool:
    return layer.scale.agrees is False and first_source(layer.scale.source) in (ASSUMED, CONVENTION)


def _settled(layer: Layer, anew: Anew) -> ScaleAudit:
    scale = layer.scale
    _, _, keys = scale.source.partition(", ")
    if keys and near(scale.effective, layer.head_dim**-0.5):
        return replace(scale, source=keys)  # the factor that these keys ask for is what is missing
    assumed = first_source(scale.source) == ASSUMED
    same = anew.same(layer.name, scale.effective or 0.0, SCALE_TOLERANCE.value)
    if same:
        found = replace(scale, declared=scale.effective, source=INSTALLED, agrees=True, note=AS_ANEW)
        return replace(found, rule=f"{scale.effective:.4g}")
    if same is False and assumed:
        return replace(scale, declared=anew.scale(layer.name), source=INSTALLED, rule=f"{anew.scale(layer.name):.4g}")
    return replace(scale, source=scale.source.replace(ASSUMED, CONVENTION, 1)) if assumed else scale


def _marked(layers: tuple[Layer, ...], rules: Mapping[int, tuple[KnownRule, ...]]) -> tuple[Layer, ...]:
    """The layers. One that follows another rule than the convention neither agrees nor disagrees with it; a note says so."""
    return tuple(
        replace(layer, scale=replace(layer.scale, agrees=None, note=FOLLOWS.format(rule=_names(rules[layer.index]))))
        if layer.index in rules
        else layer
        for layer in layers
    )


def _about(layers: tuple[Layer, ...], rules: Mapping[int, tuple[KnownRule, ...]]) -> Iterator[Finding]:
    """Findings about scales in force. `rules` are those of layers that follow a known rule without declaring it."""
    for layer in layers:
        if layer.scale.agrees is False:
            yield _mismatch(layer)
    for known in dict.fromkeys(rules.values()):
        yield _unusual([layer for layer in layers if rules.get(layer.index) == known], known)


def _mismatch(layer: Layer) -> Finding:
    scale = layer.scale
    ratio = (scale.effective or 0.0) / (scale.declared or 1.0)
    inverse = 1 / ratio if ratio else inf
    evidence = _evidence(layer) | {"ratio": ratio, "likely": likely(scale, layer.head_dim, layer.heads)}
    made = finding(
        "scale-mismatch",
        "warning" if first_source(scale.source) == CONVENTION else "error",
        (layer.index, None),
        evidence,
        name=layer.name,
        effective=scale.effective,
        rule=scale.rule,
        declared=scale.declared,
        ratio=ratio if ratio > 1 else inverse,
        much=Text("much", "偏大") if ratio > 1 else Text("little", "偏小"),
        fix=inverse,
    )
    return made if ratio else replace(made, advice=ZERO)


def _unusual(layers: list[Layer], known: tuple[KnownRule, ...]) -> Finding:
    """One note about all layers that follow a rule."""
    first, names = layers[0], _names(known)
    evidence = _evidence(first) | {"rule": names, "layers": float(len(layers))}
    at = first.index, None
    texts = dict.fromkeys(known[0].declare(layer.head_dim, layer.heads) for layer in layers)
    words = {"name": first.name, "effective": first.scale.effective, "rule": names, "count": len(layers)}
    made = finding("scale-unusual", "note", at, evidence, **words, declare=next(iter(texts)))
    if len(texts) == 1:
        return made
    return replace(made, advice=BY_LAYER.format(name=first.name, declare=next(iter(texts)), texts=", ".join(texts)))


def _evidence(layer: Layer) -> Evidence:
    scale = layer.scale
    return {
        "passed": scale.passed,
        "effective": scale.effective,
        "declared": scale.declared,
        "source": scale.source,
    }


def _names(known: tuple[KnownRule, ...]) -> str:
    return " = ".join(rule.formula for rule in known)
