"""The layers that a run has: settled with the first reading, added to when others run later, and named to whoever is told.

A store may know them from an earlier run, and several processes have to agree on them.
"""

from torch import nn

from isotherm.checkup.wrappers import prefix
from isotherm.language import Text
from isotherm.monitor.looking import Origin
from isotherm.monitor.looks import Looked, Looks
from isotherm.monitor.ranks import Ranks, Table
from isotherm.monitor.telling import Telling
from isotherm.monitor.totals import Key, key_of, layer_name
from isotherm.probe.frames import plain_name
from isotherm.record.watch import Reading, WatchedLayer

NOTHING_SEEN = Text(
    "no attention was seen in the first step, so there is nothing to watch; isotherm check says what was met instead",
    "第一步中没有看到任何注意力，因此没有可监视的内容；isotherm check 会说明遇到了什么",
)
OTHER_HEADS = Text(
    "{layer} had {old} heads and has {new} now; it is not read any more",
    "{layer} 原有 {old} 个头，现有 {new} 个；不再读取该层",
)


class Roster:
    """The layers of one run: `table` has them by module and call, `layers` by name and number, in the same order."""

    def __init__(self, model: nn.Module, looks: Looks, ranks: Ranks, telling: Telling) -> None:
        self.table: Table = {}
        self.together = ranks.count > 1
        self.layers: list[WatchedLayer] = []
        self.earlier: tuple[Reading, ...] = ()
        """What an earlier run has read, for the alarms."""
        self.misses = False
        """Whether any process saw a layer that the last reading lacks."""
        self._traced: set[Key] = set()
        """The layers that every one of several processes has traced: the valve must do the same in all."""
        self._model, self._looks, self._ranks, self._telling = model, looks, ranks, telling

    def lacks(self, looked: Looked) -> bool:
        """Whether this process saw a layer that is not among them."""
        return bool(looked.table.keys() - self.table.keys())

    def settle(self, looked: Looked, step: int) -> None:
        """Settle which layers there are, and add those that are met later. Several processes add them one reading late, when
        each has heard that some process met one."""
        seen = looked.table
        if not self.table:
            self._traced = self._ranks.common(self._looks.origins) if self.together else set()
            self.table = self._ranks.agree(seen if looked.notes is not None else self._remembered(seen) | seen)
        elif not self.together or self.misses:
            self._add(self._ranks.agree(seen), step)
        if not self.table and not self._telling.has_failed:
            self._telling.warn(NOTHING_SEEN, step)
        if len(self.layers) < len(self.table):
            names = [layer_name(key).removeprefix(prefix(self._model)) for key in self.table]
            self.layers = [
                WatchedLayer(number, name, heads)
                for number, (name, heads) in enumerate(zip(names, self.table.values(), strict=True))
            ]
            if self._ranks.is_first:
                self._telling.layers(self.layers, self.earlier)

    def origins(self) -> list[Origin | None]:
        """Where each layer's q and k come from, as far as this process has traced them."""
        return [self._looks.origins.get(key) for key in self.table]

    def traced(self) -> list[bool]:
        """Which layers' q and k have been traced: where several processes train, in each of them."""
        known = self._traced if self.together else self._looks.origins.keys()
        return [key in known for key in self.table]

    def _add(self, seen: Table, step: int) -> None:
        """Add layers that were met later."""
        for key in seen.keys() & self.table.keys():
            if seen[key] != self.table[key]:
                words = OTHER_HEADS.format(layer=key[0], old=self.table[key], new=seen[key])
                self._telling.warn(words, step)
        self.table |= {key: heads for key, heads in seen.items() if key not in self.table}

    def _remembered(self, seen: Table) -> Table:
        """The layers that the store has of an earlier run of this model, not all of which may run in one step, as experts do
        not. None if they are another model's."""
        writer = self._telling.writer
        if writer is None or not seen:
            return {}
        known = {key_of(prefix(self._model) + layer.name): layer.heads for layer in writer.known}
        modules = {plain_name(name) for name, _ in self._model.named_modules()}
        ours = all(name in modules for name, _ in known) and all(known.get(key, n) == n for key, n in seen.items())
        return known if ours else {}
