"""Alerts: what a person should hear of a run, each told once until it has been quiet again.

Every rule of `detectors` is asked at each reading. What is new is one alert for a layer at a time, which names its worst head
and counts the others.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from isotherm.language import Text
from isotherm.monitor.detectors import DEFAULT, Detector, History, Sign
from isotherm.record.watch import Event, Reading, WatchedLayer

QUIET = 10
"""Readings in a row for which a rule must not hold before its alert is told again."""
LAYER = Text("layer {layer}: {what}", "第 {layer} 层：{what}")
HEAD = Text("layer {layer}, head {head}: {what}", "第 {layer} 层第 {head} 头：{what}")
HEADS = Text(
    "layer {layer}, head {head}: {what} (and {n} more of the layer's heads)",
    "第 {layer} 层第 {head} 头：{what}（该层另有 {n} 个头亦然）",
)


class Alarms:
    """Asks every rule at each reading. Keeps a few readings and early values, whatever the run's length.

    For a run that is resumed, look at its earlier readings first: early values are theirs, and what was told is not told again.
    """

    def __init__(self, layers: Sequence[WatchedLayer], rules: Iterable[Detector] = DEFAULT) -> None:
        self.rules = tuple(rules)
        self._history = History()
        self._calm = {rule.id: np.empty(0, np.intp) for rule in self.rules}
        self.grow(layers)

    def grow(self, layers: Sequence[WatchedLayer]) -> None:
        """Have more layers, which come after those there are. What was seen and told is remembered."""
        self._history.grow(layers)
        self._owner = np.repeat(np.arange(len(layers)), [layer.heads for layer in layers])
        self._first = np.cumsum([0, *(layer.heads for layer in layers)])[:-1]
        for rule in self.rules:
            calm = self._calm[rule.id]
            self._calm[rule.id] = np.concatenate([calm, np.full(self._places(rule) - len(calm), QUIET)])

    def look(self, reading: Reading) -> list[Event]:
        """The alerts that are new with this reading."""
        self._history.add(reading)
        signs = ((rule, rule.look(self._history)) for rule in self.rules)
        return [event for rule, sign in signs if sign is not None for event in self._told(rule, sign, reading)]

    def _places(self, rule: Detector) -> int:
        return {"head": len(self._owner), "layer": len(self._history.layers), "model": 1}[rule.place]

    def _told(self, rule: Detector, sign: Sign, reading: Reading) -> list[Event]:
        calm, marks = self._calm[rule.id], sign.marks
        now = np.array([marks.any()]) if rule.place == "model" else marks
        new = now & (calm >= QUIET)
        self._calm[rule.id] = np.where(now, 0, calm + 1)
        if rule.place == "model":
            return [self._event(rule, sign, reading, int(np.argmax(marks)), int(marks.sum()))] if new.any() else []
        events = []
        owner = self._owner if rule.place == "head" else np.arange(len(marks))
        for layer in np.unique(owner[new]):
            mine = np.flatnonzero(new & (owner == layer))
            worst = mine[np.argmax(np.nan_to_num(sign.badness[mine], nan=-np.inf))]
            events.append(self._event(rule, sign, reading, int(worst), len(mine)))
        return events

    def _event(self, rule: Detector, sign: Sign, reading: Reading, place: int, count: int) -> Event:
        layer = place if rule.place == "layer" else int(self._owner[place])
        if rule.place == "layer":
            head = None if sign.heads is None else int(sign.heads[place])
        else:
            head = place - int(self._first[layer])
        numbers = {name: float(values[place]) for name, values in sign.numbers.items()}
        number = self._history.layers[layer].number
        where = LAYER if head is None else HEAD if count == 1 or rule.place == "model" else HEADS
        message = where.format(layer=number, head=head, n=count - 1, what=rule.sentence.format(**numbers))
        return Event(
            reading.step, reading.at, "alert", rule.id, number, head, message, numbers | {"heads": float(count)}
        )
