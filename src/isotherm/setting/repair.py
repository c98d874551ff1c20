"""What a check-up's findings ask for, as factors: the declared scale where another is in force, and QK-clip after the fact."""

import torch

from isotherm.checkup import Report
from isotherm.checkup.thresholds import LARGE
from isotherm.record import Layer
from isotherm.setting.wanted import Request

TOO_LARGE = ("logits-large", "logits-diverging")
BELOW = 0.98
"""A logit that was too large is brought to this part of the limit."""


def repairs(report: Report) -> tuple[Request, ...]:
    """A factor for each head of each layer that a finding is about."""
    about = {(finding.code, finding.layer) for finding in report.findings}
    found = []
    for layer in report.layers:
        scale = layer.scale
        wrong = ("scale-mismatch", layer.index) in about and scale.effective and scale.declared
        factor = scale.declared / scale.effective if wrong and scale.effective and scale.declared else 1.0
        hot = any((code, layer.index) in about for code in TOO_LARGE) or wrong
        factors = factor * (_clip(layer, factor) if hot else torch.ones(layer.heads, dtype=torch.float64))
        if bool((factors != 1).any()):
            same = bool((factors == factors[0]).all())
            found.append(Request(str(layer.index), factors[:1] if same else factors))
    return tuple(found)


def _clip(layer: Layer, factor: float) -> torch.Tensor:
    """min(1, τ/max s) for each head, whose logits are multiplied by a factor first."""
    largest = torch.tensor([head.max_logit or 0.0 for head in layer.head_stats], dtype=torch.float64) * factor
    return torch.where(largest > LARGE.value, BELOW * LARGE.value / largest.clamp(min=1e-30), 1.0)
