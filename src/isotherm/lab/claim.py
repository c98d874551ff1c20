"""What a claim is: a statement of the documents, and an experiment that could refute it.

A claim states its inequality before it measures. Its experiment returns numbers, each with whether the inequality holds
for it; the verdict follows from those, never from what one would like to hear.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from isotherm.language import Text
from isotherm.record import CLAIM_SCHEMA, ClaimRecord, Erratum, Figure, Heatmap, Measured, Step, Verdict


@dataclass(frozen=True)
class Setting:
    """What an experiment is given: its parameters, its seed, where to compute, whom to tell how far it is (0 … 1), and
    records of sweeps to show beside it."""

    parameters: Mapping[str, Any]
    seed: int = 0
    device: str = "cpu"
    progress: Callable[[float], object] = lambda _: None
    records: tuple[Path, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]

    def generator(self, *stream: int) -> torch.Generator:
        """A generator of its own for each stream of random numbers, the same on every machine."""
        seed = self.seed
        for number in stream:
            seed = (seed * 1_000_003 + number + 1) % (2**63)
        return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Result:
    """What an experiment found; `recorded` says what runs made earlier found."""

    verdict: Verdict
    sentence: Text
    measured: tuple[Measured, ...]
    condition: Text | None = None
    figures: tuple[Figure, ...] = ()
    heatmaps: tuple[Heatmap, ...] = ()
    timings: tuple[Measured, ...] = ()
    timing_figures: tuple[Figure, ...] = ()
    recorded: tuple[Text, ...] = ()


@dataclass(frozen=True)
class Claim:
    """One statement put to the test. `expected` is the verdict on record: another one is news. `full` are the parameters
    of a larger run where they differ; `needs` names an optional package the experiment cannot do without."""

    id: str
    title: Text
    question: Text
    statement: Text
    sources: tuple[str, ...]
    hypothesis: Text
    expected: Verdict
    experiment: Callable[[Setting], Result]
    quick: Mapping[str, Any]
    full: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    steps: tuple[Step, ...] = ()
    errata: tuple[Erratum, ...] = ()
    needs: tuple[str, ...] = ()

    def setting(self, size: str = "quick", device: str = "cpu", **options: Any) -> Setting:
        """The parameters at a size: `quick`, or `full`."""
        return Setting({**self.quick, **(self.full if size == "full" else {})}, self.seed, device, **options)

    def record(self, setting: Setting, result: Result) -> ClaimRecord:
        """Question and answer together."""
        return ClaimRecord(
            schema=CLAIM_SCHEMA,
            id=self.id,
            title=self.title,
            question=self.question,
            statement=self.statement,
            sources=self.sources,
            hypothesis=self.hypothesis,
            parameters={name: str(value) for name, value in setting.parameters.items()},
            seed=setting.seed,
            verdict=result.verdict,
            condition=result.condition,
            sentence=result.sentence,
            measured=result.measured,
            figures=result.figures,
            heatmaps=result.heatmaps,
            steps=self.steps,
            errata=self.errata,
            recorded=result.recorded,
        )


def verdict(holds: bool, *, under_condition: bool = False) -> Verdict:
    """`holds` for the statement as written; `under_condition` for a stated condition, where it does not hold as written."""
    return "confirmed" if holds else "conditional" if under_condition else "refuted"
