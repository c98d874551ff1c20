"""Look at every attention call of a PyTorch model without a trace: q, k, the scale in force and what may be seen.

>>> from isotherm.probe import probe
>>> with probe(model) as seen:                      # doctest: +SKIP
...     model(**batch)
>>> seen.captures[0].problem.q.shape, seen.unseen   # doctest: +SKIP
"""

from isotherm.probe.attach import probe
from isotherm.probe.capture import Capture, Factor, HeadLayout, Part
from isotherm.probe.finite import is_finite
from isotherm.probe.seen import NotFinite, Seen

__all__ = ["Capture", "Factor", "HeadLayout", "NotFinite", "Part", "Seen", "is_finite", "probe"]
