"""A model from a name and a rule as a person types them."""

from typing import get_args

from torch import nn

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.models.bert import Bert
from isotherm.models.decoder import Decoder
from isotherm.models.recurrent import RecurrentTranslator, ScoreKind
from isotherm.models.shape import Shape
from isotherm.models.transformer import Transformer
from isotherm.scale import Rule, parse

KINDS: dict[str, type[Transformer] | type[Decoder] | type[Bert]] = {
    "transformer": Transformer,
    "decoder": Decoder,
    "bert": Bert,
}


def build(kind: str, shape: Shape, rule: str | Rule | None = None) -> nn.Module:
    """A "transformer", "decoder" or "bert" under a rule (None: 1/√d); or a "recurrent" model, whose rule is its score.

    >>> shape = Shape(vocabulary=11, width=8, heads=2, layers=1)
    >>> type(build("decoder", shape, "qk-norm * 1/sqrt(d)")).__name__, type(build("recurrent", shape, "additive")).__name__
    ('Decoder', 'RecurrentTranslator')
    """
    if kind == "recurrent":
        for score in get_args(ScoreKind):
            if rule in (None, score):
                return RecurrentTranslator(shape, "scaled-dot" if rule is None else score)
        names = ", ".join(get_args(ScoreKind))
        raise ArgumentError("rule", Text("one of {names}", "{names} 之一").format(names=names), got=repr(rule))
    if kind not in KINDS:
        names = ", ".join([*KINDS, "recurrent"])
        raise ArgumentError("kind", Text("one of {names}", "{names} 之一").format(names=names), got=repr(kind))
    return KINDS[kind](shape, parse(rule) if isinstance(rule, str) else rule)
