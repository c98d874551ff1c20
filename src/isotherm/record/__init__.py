"""Results as plain data: no tensors, JSON in and out.

`health`, `lab` and `scale` fill these in, `report` shows them, and neither side needs to know the other.
"""

from isotherm.record.check import (
    SCHEMA,
    Advice,
    CheckRecord,
    Comparison,
    Context,
    Cost,
    Finding,
    HeadDetail,
    HeadStats,
    Kind,
    Layer,
    ScaleAudit,
    Severity,
    Spread,
    State,
    Subject,
    Unseen,
    WhatIf,
    WhatIfLayer,
)
from isotherm.record.plain import from_plain, to_plain
from isotherm.record.rules import RuleLine, RulePage
from isotherm.record.temperature import DimensionRow, Reading, TemperatureTable

__all__ = [
    "SCHEMA",
    "Advice",
    "CheckRecord",
    "Comparison",
    "Context",
    "Cost",
    "DimensionRow",
    "Finding",
    "HeadDetail",
    "HeadStats",
    "Kind",
    "Layer",
    "Reading",
    "RuleLine",
    "RulePage",
    "ScaleAudit",
    "Severity",
    "Spread",
    "State",
    "Subject",
    "TemperatureTable",
    "Unseen",
    "WhatIf",
    "WhatIfLayer",
    "from_plain",
    "to_plain",
]
