"""Isotherm keeps attention at the right temperature: see it, explain it, set it by a rule, keep it while training.

>>> import isotherm, torch
>>> q = k = v = torch.randn(1, 4, 128, 64)
>>> out = isotherm.attention(q, k, v, scale=isotherm.scale.InverseSqrt(), causal=True, stats=True)
>>> out.stats.summary("jacobian_trace").p50.shape
torch.Size([4])

Names are loaded when they are first used, so `import isotherm` is quick and does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isotherm import errors, models, monitor, ops, probe, scale, softmax, stats, theory
    from isotherm.checkup import Report, check
    from isotherm.monitor import Monitor, Valve, watch
    from isotherm.ops import AttentionResult, attention
    from isotherm.setting import Applied, Written, apply, write
    from isotherm.stats import RowStats, Summary
    from isotherm.tuning import TuneReport, temperature_gradient, tune

__version__ = "0.1.0"
__all__ = [
    "Applied",
    "AttentionResult",
    "Monitor",
    "Report",
    "RowStats",
    "Summary",
    "TuneReport",
    "Valve",
    "Written",
    "__version__",
    "apply",
    "attention",
    "check",
    "errors",
    "models",
    "monitor",
    "ops",
    "probe",
    "scale",
    "softmax",
    "stats",
    "temperature_gradient",
    "theory",
    "tune",
    "watch",
    "write",
]

_HOME = {
    "Applied": "setting",
    "Written": "setting",
    "apply": "setting",
    "write": "setting",
    "AttentionResult": "ops",
    "attention": "ops",
    "Report": "checkup",
    "check": "checkup",
    "Monitor": "monitor",
    "Valve": "monitor",
    "watch": "monitor",
    "RowStats": "stats",
    "Summary": "stats",
    "TuneReport": "tuning",
    "temperature_gradient": "tuning",
    "tune": "tuning",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        globals()[name] = found = getattr(import_module(f"isotherm.{_HOME[name]}"), name)  # asked for once
        return found
    if name in __all__:
        return import_module(f"isotherm.{name}")
    raise AttributeError(f"module 'isotherm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
