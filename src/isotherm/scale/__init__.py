"""Every scale rule in use, with its formula and source. Rules multiply: `LogN(2048) * InverseSqrt()`.

`rule.py` says what a rule is. Each other file holds rules of one kind and lists them in its `__all__`; `registry.py` puts
them into the atlas that `isotherm rules` prints.
"""

from isotherm.scale import caps, constants, context, learned, norms, rope, weights
from isotherm.scale.caps import *
from isotherm.scale.constants import *
from isotherm.scale.context import *
from isotherm.scale.learned import *
from isotherm.scale.norms import *
from isotherm.scale.registry import ATLAS, Entry, find, parse
from isotherm.scale.rope import *
from isotherm.scale.rule import Fold, Product, Resolved, Rule, Site, value
from isotherm.scale.weights import *

__all__ = ["ATLAS", "Entry", "Fold", "Product", "Resolved", "Rule", "Site", "find", "parse", "value"]
__all__ += caps.__all__ + constants.__all__ + context.__all__ + learned.__all__ + norms.__all__ + rope.__all__
__all__ += weights.__all__
