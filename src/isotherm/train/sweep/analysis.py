"""Sum outcomes up over seeds: means with 95 % t-intervals, effect sizes, and a few numbers for each series."""

from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from statistics import fmean, stdev

from isotherm.record.sweep import Analysis, AtLength, Axes, Cell, SeedInterval, Trial, TrialOutcome

T_975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484,
    2.0452, 2.0423,
)  # fmt: skip
"""Student's t: the 97.5 % quantile for 1 … 30 degrees of freedom."""
Z_975 = 1.959964
SWEEP = "sweep"
"""As the only series of a specification: each [[sweep]] block is one line."""
Blocks = Sequence[tuple[str, Sequence[TrialOutcome]]]


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; beyond the table the first terms of its expansion in 1/freedom.

    >>> t_quantile(4), round(t_quantile(100), 3)
    (2.7764, 1.984)
    """
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    return Z_975 + (Z_975**3 + Z_975) / (4 * freedom) + (5 * Z_975**5 + 16 * Z_975**3 + 3 * Z_975) / (96 * freedom**2)


def interval(values: Iterable[float | None]) -> SeedInterval | None:
    """Mean and 95 % interval of the values that are there; None if none is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = fmean(known)
    if len(known) < 2:
        return SeedInterval(mean, None, None, len(known))
    half = t_quantile(len(known) - 1) * stdev(known) / sqrt(len(known))
    return SeedInterval(mean, mean - half, mean + half, len(known))


def hedges(values: Sequence[float], others: Sequence[float]) -> float | None:
    """Hedges' g: the difference of the means in pooled standard deviations, corrected for small samples."""
    n, m = len(values), len(others)
    if n < 2 or m < 2:
        return None
    pooled = sqrt(((n - 1) * stdev(values) ** 2 + (m - 1) * stdev(others) ** 2) / (n + m - 2))
    if pooled == 0:
        return None
    return (fmean(values) - fmean(others)) / pooled * (1 - 3 / (4 * (n + m) - 9))


def cells(blocks: Blocks, axes: Axes) -> tuple[Cell, ...]:
    """One cell for each block, series and place along x; where `axes.best` is set, the best value of that field only."""
    found: list[Cell] = []
    for block, lines in lines_of(blocks, axes).items():
        places: dict[tuple[str, float | None], list[TrialOutcome]] = {}
        for name, line in lines.items():
            for outcome in line:
                for x in _places(outcome, axes):
                    places.setdefault((name, x), []).append(outcome)
        first = next((name for name, _ in places), "")
        for (name, x), alike in places.items():
            chosen = _best(alike, axes, x)
            others = _best(places.get((first, x), []), axes, x) if name != first else []
            found.append(_cell(block, name, x, chosen, others, axes))
    return tuple(found)


def lines_of(blocks: Blocks, axes: Axes) -> dict[str, dict[str, list[TrialOutcome]]]:
    """Outcomes by block and series. With `sweep` as the series, the blocks themselves are the lines of one panel."""
    found: dict[str, dict[str, list[TrialOutcome]]] = {}
    for block, outcomes in blocks:
        for outcome in outcomes:
            panel, line = ("", block) if axes.series == (SWEEP,) else (block, series(outcome.trial, axes))
            found.setdefault(panel, {}).setdefault(line, []).append(outcome)
    return found


def series(trial: Trial, axes: Axes) -> str:
    """A line's name: the values of the fields that tell lines apart."""
    parts = [(name, getattr(trial, name)) for name in axes.series]
    said = [str(value) if isinstance(value, str) else f"{name} {_number(value)}" for name, value in parts]
    return ", ".join(said) or trial.rule


def analyses(blocks: Blocks, axes: Axes) -> tuple[Analysis, ...]:
    """The numbers that sum each series up, as far as the sweep holds what they need."""
    found: list[Analysis] = []
    for block, lines in lines_of(blocks, axes).items():
        if axes.x in ("width", "head_dim"):
            found += _dimensions(block, lines, axes)
        for name, line in lines.items():
            if axes.x == "lr":
                found += _over_seeds("lr-sensitivity", block, name, line, lr_sensitivity)
            elif axes.x == "length":
                found += _over_seeds("long/short", block, name, line, _longest_over_shortest)
                found += _over_seeds("long-short entropy", block, name, line, _longest_less_shortest)
    return tuple(found)


def lr_sensitivity(outcomes: Sequence[TrialOutcome]) -> float | None:
    """Wortsman et al. 2023, arXiv:2309.14322, §2.2: the mean over learning rates of min(loss, loss at the start) − best loss.

    A run that diverged counts with the loss at its start.
    """
    starts = [outcome.held_out_start for outcome in outcomes if outcome.held_out_start is not None]
    if not starts:
        return None
    start = fmean(starts)
    losses = [start if outcome.held_out is None else min(outcome.held_out, start) for outcome in outcomes]
    return fmean(losses) - min(losses)


def _over_seeds(
    what: str,
    block: str,
    name: str,
    line: Sequence[TrialOutcome],
    measure: Callable[[Sequence[TrialOutcome]], float | None],
) -> list[Analysis]:
    seeds = sorted({outcome.trial.seed for outcome in line})
    made = interval(measure([outcome for outcome in line if outcome.trial.seed == seed]) for seed in seeds)
    return [] if made is None else [Analysis(what, block, name, made.mean, made.low, made.high)]


def _longest_over_shortest(outcomes: Sequence[TrialOutcome]) -> float | None:
    """Accuracy at the longest length tested over accuracy at the shortest."""
    tested = _tested(outcomes)
    if not tested or not tested[0].accuracy or tested[-1].accuracy is None:
        return None
    return tested[-1].accuracy / tested[0].accuracy


def _longest_less_shortest(outcomes: Sequence[TrialOutcome]) -> float | None:
    """Entropy fraction at the longest length tested less that at the shortest."""
    known = [at.entropy_fraction for at in _tested(outcomes) if at.entropy_fraction is not None]
    return known[-1] - known[0] if len(known) > 1 else None


def _tested(outcomes: Sequence[TrialOutcome]) -> list[AtLength]:
    return sorted((at for outcome in outcomes for at in outcome.by_length), key=lambda at: at.length)


def _ends(line: Sequence[TrialOutcome], axes: Axes) -> list[dict[int, float]]:
    """The loss by seed at the smallest and at the largest x, each tuned over `axes.best`; a diverged run counts its start."""
    xs = sorted({x for outcome in line if (x := place(outcome.trial, axes)) is not None})
    found = []
    for x in xs[:1] + xs[1:][-1:]:
        at = _best([outcome for outcome in line if place(outcome.trial, axes) == x], axes, x)
        found.append({outcome.trial.seed: loss for outcome in at if (loss := _loss(outcome)) is not None})
    return found


def _ratio(what: str, block: str, name: str, above: dict[int, float], below: dict[int, float]) -> list[Analysis]:
    """The ratio of two losses, seed by seed."""
    made = interval(above[seed] / below[seed] for seed in above if below.get(seed))
    return [] if made is None else [Analysis(what, block, name, made.mean, made.low, made.high)]


def _dimensions(block: str, lines: dict[str, list[TrialOutcome]], axes: Axes) -> list[Analysis]:
    """Each series' loss at the largest dimension over that at the smallest; and at both over the first series' there."""
    ends = {name: _ends(line, axes) for name, line in lines.items()}
    first = next(iter(ends.values()))
    found = []
    for name, end in ends.items():
        if len(end) == 2:
            found += _ratio("large/small", block, name, end[1], end[0])
        if end is not first and len(end) == len(first) == 2:
            found += _ratio("small/first", block, name, end[0], first[0])
            found += _ratio("large/first", block, name, end[1], first[1])
    return found


def _loss(outcome: TrialOutcome) -> float | None:
    return outcome.held_out_start if outcome.held_out is None else outcome.held_out


def _places(outcome: TrialOutcome, axes: Axes) -> list[float | None]:
    if axes.x == "length":
        return [float(at.length) for at in outcome.by_length] or [float(outcome.trial.length)]
    if axes.x == "step":
        return [None]
    return [place(outcome.trial, axes)]


def place(trial: Trial, axes: Axes) -> float | None:
    """A trial's place along x; d for a head dimension, given or not."""
    value = trial.d if axes.x == "head_dim" else getattr(trial, axes.x)
    return float(value) if isinstance(value, (int, float)) else None


def _best(outcomes: Sequence[TrialOutcome], axes: Axes, x: float | None) -> list[TrialOutcome]:
    """The outcomes at the value of `axes.best` whose mean loss is lowest; all of them where nothing is tuned."""
    if axes.best is None or not outcomes:
        return list(outcomes)
    alike: dict[object, list[TrialOutcome]] = {}
    for outcome in outcomes:
        alike.setdefault(getattr(outcome.trial, axes.best), []).append(outcome)

    def mean(group: list[TrialOutcome]) -> float:
        known = [loss for outcome in group if (loss := measured(outcome, "loss", axes, x)) is not None]
        return fmean(known) if len(known) == len(group) else float("inf")

    return min(alike.values(), key=mean)


def measured(outcome: TrialOutcome, measure: str, axes: Axes, x: float | None) -> float | None:
    """Loss or accuracy of an outcome at a place along x; for `loss` a diverged run counts with its start."""
    if axes.x == "length" and outcome.by_length:
        at = next((at for at in outcome.by_length if at.length == x), None)
        return None if at is None else at.accuracy if measure == "accuracy" else at.loss
    return outcome.accuracy if measure == "accuracy" else _loss(outcome)


def _cell(
    block: str, name: str, x: float | None, chosen: Sequence[TrialOutcome], others: Sequence[TrialOutcome], axes: Axes
) -> Cell:
    losses, against = (
        [loss for outcome in group if (loss := measured(outcome, "loss", axes, x)) is not None]
        for group in (chosen, others)
    )
    looked = [outcome.temperatures for outcome in chosen if outcome.temperatures]
    gates = [interval(look[end].gate for look in looked) for end in (0, -1)]
    told = ("rule", *(field for field in axes.series if field != SWEEP))
    settings = {field: str(getattr(chosen[0].trial, field)) for field in told}
    if axes.best is not None:
        settings[axes.best] = _number(getattr(chosen[0].trial, axes.best))
    return Cell(
        block=block,
        series=name,
        x=x,
        settings=settings,
        loss=interval(losses),
        accuracy=interval(measured(outcome, "accuracy", axes, x) for outcome in chosen),
        diverged=sum(outcome.diverged for outcome in chosen),
        effect=hedges(losses, against),
        gate_start=gates[0].mean if gates[0] else None,
        gate_end=gates[1].mean if gates[1] else None,
    )


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
