"""Attention's temperature while a model trains: the monitor, the valve, a store of readings, alerts, trackers."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isotherm.monitor.callbacks import lightning_callback, trainer_callback
    from isotherm.monitor.monitor import Monitor, watch
    from isotherm.monitor.valve import Valve

__all__ = ["Monitor", "Valve", "lightning_callback", "trainer_callback", "watch"]

_HOME = {
    "Monitor": "monitor",
    "Valve": "valve",
    "lightning_callback": "callbacks",
    "trainer_callback": "callbacks",
    "watch": "monitor",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
