"""What `isotherm watch --demo` trained: three runs for each seed."""

from dataclasses import dataclass

APART = 0.25
"""Nats between two losses, as means over ten steps, that anybody would notice."""
TEN = 10
"""Steps over which losses are averaged."""


@dataclass(frozen=True)
class DemoRun:
    """One run: its losses by step, the step of its first alert (None: there was none), and its largest logit."""

    losses: tuple[float, ...]
    alerted: int | None
    largest: float

    @property
    def end(self) -> float:
        """The mean loss of the last ten steps."""
        return sum(self.losses[-TEN:]) / len(self.losses[-TEN:])


@dataclass(frozen=True)
class DemoTrio:
    """One seed: left alone, driven too hot, and driven as hot with the valve."""

    seed: int
    alone: DemoRun
    hot: DemoRun
    held: DemoRun

    @property
    def shows(self) -> int | None:
        """The first step at which the hot run's loss is visibly worse than that of the run left alone."""
        for step in range(TEN, len(self.hot.losses) + 1):
            ours, theirs = (sum(run.losses[step - TEN : step]) / TEN for run in (self.hot, self.alone))
            if ours - theirs > APART:
                return step
        return None

    @property
    def ahead(self) -> int | None:
        """Steps from the first alert to where the loss shows it."""
        return None if self.shows is None or self.hot.alerted is None else self.shows - self.hot.alerted
