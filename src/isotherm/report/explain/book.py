"""A run of the lab: its claims in chapters, and what was counted over all of them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from isotherm.language import Text
from isotherm.record import Erratum, ErratumKind, Figure, Heatmap, Measured, Timed, Verdict
from isotherm.record.story import Story

SCHEMA = "isotherm.explain/1"


@dataclass(frozen=True)
class Chapter:
    """Claims about one subject."""

    id: str
    title: Text
    lead: Text
    claims: tuple[Timed, ...]


@dataclass(frozen=True)
class Missing:
    """A claim without a record: its experiment failed, or a package it needs is not installed."""

    id: str
    why: Text


@dataclass(frozen=True)
class Book:
    """One run of the lab, and the story that its claims support; None where only claims are wanted."""

    schema: str
    scale: str
    device: str
    chapters: tuple[Chapter, ...]
    failed: tuple[Missing, ...] = ()
    skipped: tuple[Missing, ...] = ()
    story: Story | None = None

    def claims(self) -> Iterator[Timed]:
        """Every claim, in order."""
        for chapter in self.chapters:
            yield from chapter.claims

    def changed(self) -> tuple[Timed, ...]:
        """Claims whose verdict is not the one on record."""
        return tuple(timed for timed in self.claims() if timed.record.verdict != timed.expected)

    def errata(self, kind: ErratumKind = "error") -> tuple[tuple[Timed, Erratum], ...]:
        """What documents get wrong, or the remarks on what they say, with the claim that shows it."""
        return tuple((timed, it) for timed in self.claims() for it in timed.record.errata if it.kind == kind)

    def verdicts(self) -> Counter[Verdict]:
        """How many claims have each verdict."""
        return Counter(timed.record.verdict for timed in self.claims())


def drawings(timed: Timed) -> tuple[Figure | Heatmap, ...]:
    """Every picture of a claim, the main one first."""
    return *timed.record.heatmaps, *timed.record.figures, *timed.timing_figures


def numbers(timed: Timed) -> tuple[Measured, ...]:
    """Every number of a claim, wall-clock times last."""
    return *timed.record.measured, *timed.timings
