"""Is this model's attention healthy, and is its scale the one it declares?"""

from isotherm.health.complete import complete
from isotherm.health.examine import Batch, Examination, Options, Progress, examine
from isotherm.health.findings import CODES, fraction

__all__ = ["CODES", "Batch", "Examination", "Options", "Progress", "complete", "examine", "fraction"]
