"""Every scale rule in use, each with its formula and its source; they multiply: `LogN(2048) * InverseSqrt()`."""

from isotherm.scale.caps import Sigmoid, Sinks, SoftCap, SoftmaxPlusOne
from isotherm.scale.constants import ByLayer, Fixed, InverseSqrt, MuP, NoScale, QueryPreAttnScalar, Relative
from isotherm.scale.context import Llama4Temperature, LogN, Ministral3Temperature, ScalableSoftmax
from isotherm.scale.learned import PerDim, PerHead
from isotherm.scale.norms import Cosine, QKNorm
from isotherm.scale.registry import ATLAS, Entry, find, parse
from isotherm.scale.rope import DeepSeekMscale, LongRoPE, YaRN
from isotherm.scale.rule import Fold, Product, Resolved, Rule, Site, value
from isotherm.scale.weights import SigmaReparam, qk_clip, z_loss

__all__ = [
    "ATLAS",
    "ByLayer",
    "Cosine",
    "DeepSeekMscale",
    "Entry",
    "Fixed",
    "Fold",
    "InverseSqrt",
    "Llama4Temperature",
    "LogN",
    "LongRoPE",
    "Ministral3Temperature",
    "MuP",
    "NoScale",
    "PerDim",
    "PerHead",
    "Product",
    "QKNorm",
    "QueryPreAttnScalar",
    "Relative",
    "Resolved",
    "Rule",
    "ScalableSoftmax",
    "SigmaReparam",
    "Sigmoid",
    "Sinks",
    "Site",
    "SoftCap",
    "SoftmaxPlusOne",
    "YaRN",
    "find",
    "parse",
    "qk_clip",
    "value",
    "z_loss",
]
