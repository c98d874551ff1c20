"""Run a model once under the probe."""

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isotherm.checkup.heads import HeadTable, LayerHeads, head_tables, read_heads
from isotherm.checkup.inputs import across_pictures
from isotherm.checkup.looking import MEASURING, CheckSession, HowMeasured, Taken
from isotherm.checkup.padding import with_padding
from isotherm.checkup.rows import without_padding
from isotherm.checkup.together import Wanted, measure_together
from isotherm.language import Text
from isotherm.probe import Capture, NotFinite, is_finite
from isotherm.probe.attach import follow
from isotherm.probe.heads import head_count
from isotherm.probe.kinds import with_landmarks
from isotherm.probe.slices import merge_slices
from isotherm.record import Unseen
from isotherm.stats import RowStats

Batch = Mapping[str, Any] | Sequence[Any] | Tensor
"""Keyword arguments for the model, positional ones, or one tensor."""


class Look(NamedTuple):
    """One forward under the probe: its captures, what the probe could not see, the first output that was not finite (None if
    all were), the seconds it took, and what was measured of calls while it ran, by their index."""

    captures: list[Capture]
    unseen: list[Unseen]
    not_finite: NotFinite | None
    seconds: float
    taken: Mapping[int, Taken] = {}


def look(
    model: nn.Module,
    batch: Batch,
    how: HowMeasured = HowMeasured(),  # noqa: B008, it is frozen
    *,
    glance: bool = False,
) -> Look:
    """Run one forward under the probe, and a second one if there is something to look at more closely. The caller's grad mode
    is kept, and no capture holds on to the graph. `how` is about calls that are measured at once. A `glance` sees
    the calls of attention functions alone."""

    def follow_through(closely: Sequence[str]) -> tuple[CheckSession, Any, float]:
        return _look(CheckSession(model, closely, how, glance=glance), batch)

    session, output, seconds = follow_through(())
    if session.seen.suspects:
        session, output, _ = follow_through(session.seen.suspects)
    seen = session.seen
    not_finite = seen.not_finite
    if not_finite is None and not is_finite(output):
        not_finite = NotFinite("", None)
    captures, place = merge_slices(seen.captures, _head_counts(model, seen.captures))
    if not_finite is not None and not_finite.capture is not None:
        not_finite = NotFinite(not_finite.module, place[not_finite.capture])
    taken = {place[old]: one for old, one in session.taken.items() if place.count(place[old]) == 1}
    captures = [across_pictures(capture, model, batch) for capture in with_landmarks(captures)]
    return Look(with_padding(captures, model, batch), seen.unseen, not_finite, seconds, taken)


def _head_counts(model: nn.Module, captures: Sequence[Capture]) -> dict[str, int | None]:
    """The number of heads that each captured module declares."""
    return {name: head_count(_submodule(model, name)) for name in {capture.name for capture in captures}}


def _submodule(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except (AttributeError, RuntimeError):  # compiled modules have other names, and scripted ones cannot be asked
        return None


def _look(session: CheckSession, batch: Batch) -> tuple[CheckSession, Any, float]:
    with torch.random.fork_rng(), follow(session):
        started = time.perf_counter()
        output = call(session.model, batch)
        seconds = time.perf_counter() - started
    return session, output, seconds


def call(model: nn.Module, batch: Batch) -> Any:
    """Call the model on a batch of any of the three kinds. A dict among positional arguments is copied: models that take one
    (sentence-transformers, Lightning) add to it."""
    if isinstance(batch, Tensor):
        return model(batch)
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*(copy.copy(value) if isinstance(value, Mapping) else value for value in batch))


def measured_heads(looked: Look, how: HowMeasured) -> tuple[list[RowStats], list[LayerHeads]]:
    """The row statistics of every captured call, and its heads."""
    measured, tables = measured_tables(looked, how)
    return measured, read_heads(tables)


def measured_tables(looked: Look, how: HowMeasured) -> tuple[list[RowStats], list[HeadTable]]:
    """The row statistics of every captured call, and the numbers of its heads. What was measured while the model ran is not
    measured again."""
    captures, taken = looked.captures, looked.taken
    new = [index for index in range(len(captures)) if index not in taken]
    wanted = [Wanted(captures[index], how.rows, [captures[index].problem.scale]) for index in new]

    def tell(what: Text, number: int) -> None:
        how.progress(what, 0.1 + 0.4 * new[number] / len(captures))

    found = measure_together(wanted, MEASURING, how.remarks, tell)
    stats = {new[number]: one for together in found for number, (one,) in together.apart()}
    late = [index for index, one in taken.items() if one.padded is not captures[index].padded]
    stats |= {index: without_padding(taken[index].stats, captures[index].padded) for index in late}
    measured = [stats[index] if index in stats else taken[index].stats for index in range(len(captures))]
    fresh = sorted(stats)
    made = dict(zip(fresh, head_tables([measured[index] for index in fresh], detail=how.detail), strict=True))
    return measured, [made[index] if index in made else taken[index].heads for index in range(len(captures))]
