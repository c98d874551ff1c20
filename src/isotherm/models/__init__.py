"""The Transformer and its kin, exact and short enough to learn from, each taking any scale rule.

Read them in this order: `shape`, `embedding`, `attention`, `layers`, `transformer`; then `decoder` (GPT) and `bert`, which
are halves of it, and `recurrent`, what came before.
"""

from isotherm.models.attention import Attention
from isotherm.models.bert import Bert
from isotherm.models.build import build
from isotherm.models.cache import Cache
from isotherm.models.decoder import Decoder
from isotherm.models.loss import smoothed_cross_entropy, warm_up
from isotherm.models.recurrent import RecurrentTranslator
from isotherm.models.search import beam, greedy
from isotherm.models.shape import Shape
from isotherm.models.transformer import Transformer

__all__ = [
    "Attention",
    "Bert",
    "Cache",
    "Decoder",
    "RecurrentTranslator",
    "Shape",
    "Transformer",
    "beam",
    "build",
    "greedy",
    "smoothed_cross_entropy",
    "warm_up",
]
