"""What a monitor sees while a model trains, as plain data: readings, events, and the run they belong to."""

from dataclasses import dataclass, field
from math import nan
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from isotherm.errors import InputError
from isotherm.language import Text
from isotherm.record.files import checked
from isotherm.record.plain import from_plain, read_by

WATCH_SCHEMA = "isotherm.watch/1"
STATISTICS = ("max_logit", "logit_std", "entropy", "gate", "saturated", "invalid")
"""What a reading holds of each head, in the order in which a store packs it.

`max_logit` is the largest logit, `logit_std` the mean spread of a row's logits, `entropy` the mean entropy as a share of
ln n, `gate` the mean of 1 − Σp², `saturated` the share of rows whose gate is below
the limit of a saturated head, `invalid` the share of rows with NaN or Inf."""
GRADIENTS = ("q", "k")
"""What a reading holds of each layer: the norm of the gradient that reached its q and its k."""

Floats = npt.NDArray[np.float32]
EventKind = Literal["alert", "valve", "trouble", "gap", "resumed"]


def _arrays(data: Any, where: str) -> dict[str, Floats]:
    lists = from_plain(dict[str, tuple[float | None, ...]], data, where)
    return {
        name: np.array([nan if one is None else one for one in values], np.float32) for name, values in lists.items()
    }


def _numbers(data: Any, where: str) -> dict[str, float]:
    found = from_plain(dict[str, float | None], data, where)
    return {name: value if value is not None else float(data[name] or nan) for name, value in found.items()}


@dataclass(frozen=True)
class WatchedLayer:
    """One attention layer of the model; `name` is the path of its module."""

    number: int
    name: str
    heads: int


@dataclass(frozen=True, eq=False)
class Reading:
    """One logging step: statistics of every head, and gradients of every layer.

    `step` counts the optimizer's steps done; `rows` is how many rows of each head were sampled, None for all; `seconds` is
    what the monitor took. `values` has one array for each of `STATISTICS`, over the heads of all layers in the order of the
    layers; `gradients` one for each of `GRADIENTS`, over the layers. NaN stands where a layer did not run.
    """

    step: int
    at: float
    loss: float | None
    rows: int | None
    seconds: float | None
    values: dict[str, Floats] = field(metadata=read_by(_arrays))
    gradients: dict[str, Floats] = field(metadata=read_by(_arrays))


@dataclass(frozen=True)
class Event:
    """Something that happened at a step: an alert, an action of the valve, trouble in the monitor, a gap, a resumption.

    `rule` is the detector's name or the exception's class; `layer` and `head` say where, if it has a place.
    """

    step: int
    at: float
    kind: EventKind
    rule: str
    layer: int | None
    head: int | None
    message: Text
    numbers: dict[str, float] = field(metadata=read_by(_numbers))


@dataclass(frozen=True)
class WatchRecord:
    """A whole run, or its later part. `superseded` counts readings that a resumed run set aside to measure them again."""

    schema: str
    model: str
    every: int
    rows: int | None
    created: float
    versions: dict[str, str]
    layers: tuple[WatchedLayer, ...]
    readings: tuple[Reading, ...]
    events: tuple[Event, ...]
    superseded: int


NOT_A_RUN = Text("not a run of schema {schema}", "不是 {schema} 格式的训练记录")
NOT_ITS_HEADS = Text("the reading of step {step} does not fit its layers", "第 {step} 步的读数与各层不符")
OUT_OF_ORDER = Text("its readings are not in the order of their steps", "读数没有按步数排列")


def record_of(name: object, data: Any) -> WatchRecord:
    """The run in a JSON document. An `InputError` that calls it `name` if it is none, or does not fit together."""
    if not isinstance(data, dict) or data.get("schema") != WATCH_SCHEMA:
        raise InputError(name, NOT_A_RUN.format(schema=WATCH_SCHEMA))
    record = checked(WatchRecord, name, data)
    heads = sum(layer.heads for layer in record.layers)
    wanted = dict.fromkeys(STATISTICS, heads) | dict.fromkeys(GRADIENTS, len(record.layers))
    for reading in record.readings:
        sizes = {key: len(array) for key, array in (reading.values | reading.gradients).items()}
        if sizes != wanted or any(layer.heads < 0 for layer in record.layers):
            raise InputError(name, NOT_ITS_HEADS.format(step=reading.step))
    steps = [reading.step for reading in record.readings]
    if sorted(set(steps)) != steps:
        raise InputError(name, OUT_OF_ORDER)
    return record
