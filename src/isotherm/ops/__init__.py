"""Attention: one function, several implementations, and the other scores attention has been built on."""

from isotherm.ops.api import AttentionResult, attention
from isotherm.ops.problem import Problem, Visibility
from isotherm.ops.scales import statistics_at
from isotherm.ops.scores import Additive, Dot, Multiplicative, Score

__all__ = [
    "Additive",
    "AttentionResult",
    "Dot",
    "Multiplicative",
    "Problem",
    "Score",
    "Visibility",
    "attention",
    "statistics_at",
]
