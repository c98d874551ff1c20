"""Is this model's attention healthy, and is its scale the one it declares?"""

from isotherm.health.examine import Batch, Options, Progress, examine
from isotherm.health.findings import CODES, fraction
from isotherm.health.predict import with_predictions

__all__ = ["CODES", "Batch", "Options", "Progress", "examine", "fraction", "with_predictions"]
