"""How a step of training is looked at: eagerly with a probe, or through notes in compiled code.

What is compiled in its first step gets notes then, so a probe, with which all code runs eagerly, would come too early. But only
a probe finds where q and k are made, which the valve has to know, and attention that compiled code may hide.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from isotherm.monitor import noting
from isotherm.monitor.compiled import NoteBook
from isotherm.monitor.looking import Origin, TrainingSession
from isotherm.monitor.ranks import Table
from isotherm.monitor.snapshots import Snapshot
from isotherm.monitor.totals import Key, LayerTotals
from isotherm.probe.attach import open_session
from isotherm.probe.owner import Opened
from isotherm.record import Unseen

PATIENCE = 2
"""Steps in a row that may reach no note."""


@dataclass(frozen=True)
class Looked:
    """What a look at one step brought back: its layers with their heads, the totals of each (or the notes, in one tensor), what
    the model returned, the seconds of the look, snapshots."""

    table: Table
    totals: dict[Key, LayerTotals] | None = None
    notes: NoteBook | None = None
    result: Any = None
    seconds: float = 0.0
    snapshots: Mapping[str, Snapshot] = field(default_factory=dict)


class Looks:
    """Looks at steps of one model, one at a time."""

    def __init__(self, model: nn.Module, rows: int | None, *, traces: bool, alone: bool) -> None:
        self.origins: dict[Key, Origin] = {}
        """Where the layers' q and k come from, if they were to be traced."""
        self.owed = False
        """Whether the next step has to be looked at eagerly: the last look came to nothing, or may have missed modules."""
        self.errors: list[str] = []
        """What went wrong while looking."""
        self.unseen: list[Unseen] = []
        """Modules that attend, or may, and could not be looked into."""
        self.wanted: set[str] = set()
        """Modules of which the next step is to bring a snapshot; it is looked at eagerly."""
        self._model, self._rows, self._traces, self._alone = model, rows, traces, alone
        self._notes = NoteBook.of(model, rows)
        self._noting = self._eager = False
        self._compiled_steps = self._unreached = 0
        self._trusted: set[tuple[str, str]] = set()
        self._session: TrainingSession | None = None
        self._opened: Opened | None = None

    @property
    def forwards(self) -> int:
        """How often the model has run since the look began."""
        return 0 if self._session is None else self._session.forwards

    @property
    def is_open(self) -> bool:
        """Whether a look goes on."""
        return self._noting or self._session is not None

    @property
    def waits(self) -> bool:
        """Whether a forward that would be seen has not run since the look began."""
        return self._session is not None and not self._session.forwards

    @property
    def is_due(self) -> bool:
        """Whether the next step has to be looked at, whatever its number: also if the look was opened in another thread than
        the one that trains, where it sees nothing."""
        elsewhere = self._opened is not None and self.waits and not self._opened.is_here
        return self.owed or bool(self.wanted) or elsewhere

    def begin(self, table: Table) -> None:
        """Look at the coming step. `table` has the layers that are known."""
        if self._alone:
            self._notes.listen()
        waits = self._notes.listening and not self._compiled_steps and not self.owed and _is_compiled(self._model)
        untraced = self._alone and bool(self.origins) and not self.origins.keys() >= table.keys()  # layers met since
        compiled = self._notes.cover(table) or (waits and not table and not self._traces)
        if compiled and not (self.wanted or self.owed or untraced):
            self._noting = True
            self._notes.arm()
        elif not (waits and table):  # else this is the first step that may be compiled
            self._eager = True
            traces = self._traces and (untraced or not self.origins)
            self._session = TrainingSession(
                self._model, self._rows, self._trusted, traces=traces, together=not self._alone
            )
            self._session.wanted, self.wanted = self.wanted, set()
            self._opened = open_session(self._session)
        self.owed = False

    def end(self, table: Table) -> Looked | None:
        """What was seen, if the model has run; else the look goes on. None as well if it came to nothing."""
        if self._noting:
            return self._end_notes(table)
        session = self._session
        if session is not None:
            self.errors += session.errors
            session.errors.clear()
        if session is None or not session.forwards:
            return None
        self.close()
        self.unseen = [one for one in session.seen.unseen if one.severity == "warning"]
        if session.traces:
            self.origins |= session.origins
        heads = {key: len(totals.largest) for key, totals in session.totals.items()}
        return Looked(heads, session.totals, None, session.result, session.seconds, session.snapshots)

    def stepped(self) -> None:
        """The optimizer has stepped. If that reached no note twice in a row, the model runs code that has none."""
        self._compiled_steps += not self._eager
        self._eager = False
        self._unreached = self._unreached + 1 if self._noting else 0
        if self._unreached == PATIENCE:
            self.close()
            self.silent()
            self.owed = True

    def close(self) -> None:
        """Look no longer."""
        opened, self._opened, self._session = self._opened, None, None
        if self._noting:
            self._noting = False
            self._notes.disarm()
        if opened is not None:
            opened.close()

    def stop(self) -> None:
        """Leave the compiler alone."""
        self._notes.stop()

    def silent(self) -> None:
        """The last look by notes reached none: look eagerly from now on."""
        self._notes.silent = True

    def _end_notes(self, table: Table) -> Looked | None:
        notes = self._notes
        self.errors += noting.taken_errors()
        if not notes.reached():
            return None
        known = table or ({} if notes.others else notes.table())
        self.close()
        if not notes.cover(known):
            self.owed = True
            return None
        self.owed = not table and notes.lacks(self._model)
        return Looked(known, notes=notes)


def _is_compiled(model: nn.Module) -> bool:
    """Whether some module of the model was given to `torch.compile`."""
    return any(hasattr(one, "_orig_mod") or one._compiled_call_impl is not None for one in model.modules())
