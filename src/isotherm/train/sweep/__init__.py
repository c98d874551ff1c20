"""Many trials from one specification: expanded, grouped, trained here or on a Ray cluster, kept, and summed up.

spec (TOML) → trials → groups → an executor → store (one file a trial) → `SweepRecord`. `run_trials` is the short way from
trials to outcomes.
"""

from isotherm.record.sweep import Trial
from isotherm.train.sweep.group_training import run_trials

__all__ = ["Trial", "run_trials"]
