"""Set the temperature of a model that exists: while it runs, or in its folder.

>>> import isotherm
>>> with isotherm.apply(model, "x0.5"):              # doctest: +SKIP
...     model(**batch)
"""

from isotherm.setting.applied import Applied, apply
from isotherm.setting.written import Written, write

__all__ = ["Applied", "Written", "apply", "write"]
