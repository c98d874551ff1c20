"""What a monitor was asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.monitor.telling import MakeSink
from isotherm.monitor.valve import Valve
from isotherm.record.watch import Event

POSITIVE = Text("an integer of at least 1", "不小于 1 的整数")


@dataclass(frozen=True)
class WatchOptions:
    """What `watch` was asked for; its docstring says what each is."""

    every: int
    rows: int | None
    store: str | PathLike[str] | None
    alarms: bool
    on_alert: Callable[[Event], object] | None
    sinks: tuple[MakeSink, ...]
    scaler: Any
    together: bool | None
    valve: Valve | None

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("rows", 1 if self.rows is None else self.rows)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ArgumentError(name, POSITIVE, got=value)
