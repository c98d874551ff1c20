"""What a claim is: a statement of the documents, and an experiment that could refute it.

A claim states its inequality before it measures. Its experiment returns numbers, each with whether the inequality holds
for it; the verdict follows from these.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from isotherm.language import Text
from isotherm.record import CLAIM_SCHEMA, ClaimRecord, Erratum, Figure, Heatmap, Measured, Quotation, Step, Verdict


@dataclass(frozen=True)
class Setting:
    """What an experiment is given: parameters, seed, device, a function to report progress to (0 … 1), and records of
    sweeps to show with its own results."""

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

    def counter(self, total: int, done: float = 0.0) -> Callable[[int], None]:
        """A function that is told how many of `total` steps were taken, and tells how far the experiment is; the part
        `done` lies before the first step."""
        taken = 0

        def count(steps: int) -> None:
            nonlocal taken
            taken += steps
            self.progress(done + (1 - done) * taken / total)

        return count

    def generators(self, *stream: int) -> list[torch.Generator]:
        """One for each of the experiment's seeds."""
        return [self.generator(*stream, seed) for seed in range(self["seeds"])]


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
    quotations: tuple[Quotation, ...] = ()
    needs: tuple[str, ...] = ()

    def setting(self, size: str = "quick", device: str = "cpu", **options: Any) -> Setting:
        """The parameters at a size: `quick`, or `full`."""
        return Setting({**self.quick, **(self.full if size == "full" else {})}, self.seed, device, **options)

    def record(self, setting: Setting, result: Result) -> ClaimRecord:
        """Question and answer together: the claim's own fields and the result's."""
        shared = {
            it.name: getattr(source, it.name)
            for source in (self, result)
            for it in fields(ClaimRecord)
            if hasattr(source, it.name)
        }
        parameters = {name: str(value) for name, value in setting.parameters.items()}
        return ClaimRecord(**{**shared, "schema": CLAIM_SCHEMA, "parameters": parameters, "seed": setting.seed})


def conclude(
    holds: bool,
    sentence: Text,
    measured: Iterable[Measured],
    figures: Iterable[Figure] = (),
    heatmaps: Iterable[Heatmap] = (),
    *,
    under: bool = False,
    condition: Text | None = None,
    **more: Any,
) -> Result:
    """A result with the verdict that follows: confirmed if the statement holds as written, conditional if it does not but
    holds `under` the `condition`, refuted otherwise."""
    conditional = under and not holds
    return Result(
        "confirmed" if holds else "conditional" if conditional else "refuted",
        sentence,
        tuple(measured),
        condition if conditional else None,
        tuple(figures),
        tuple(heatmaps),
        **more,
    )


def all_hold(numbers: Iterable[Measured]) -> bool:
    """Whether no number breaks its inequality; those that only illustrate have none."""
    return all(number.holds is not False for number in numbers)


def at_most(name: Text, value: float, limit: float, **extra: Any) -> Measured:
    """A number that satisfies the claim's inequality up to a limit."""
    return Measured(name, value, holds=value <= limit, **extra)


def none_of(name: Text, count: float) -> Measured:
    """A count of exceptions, of which there may be none."""
    return Measured(name, float(count), predicted=0.0, holds=count == 0)
