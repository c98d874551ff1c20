"""Scores trained against one another: the same recurrent translator, task and data, with another score between.

The scores differ in how large they start, so every contest is held from two starts: Xavier's, which makes W smaller when
d_k is larger, and one that gives q and k unit variance at every d_k, as the documents assume.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any, Literal

from isotherm.lab.claim import Setting
from isotherm.lab.content import read_words
from isotherm.lab.figures import D_K, figure
from isotherm.lab.interval import MeanInterval, effect_size, interval, line_over_seeds, over_seeds
from isotherm.lab.numerals import signed
from isotherm.lab.recorded import Tuned, given, loss_of, sweeps, tuned
from isotherm.language import Text
from isotherm.record import Figure, Line, Measured
from isotherm.record.sweep import Trial, TrialOutcome
from isotherm.theory import BRITZ_2017
from isotherm.train.sweep import run_trials

STATE = 3.0
"""1/rms of a GRU's states at the start: the gain that brings W·h back to unit variance."""
SAYS = read_words(__file__)
NAMES = {name: SAYS[name] for name in ("multiplicative", "scaled-dot", "additive", "unit", "xavier")}
"""Scores and starts in words, in the order in which figures show them."""
TASK = ("task", "width", "vocabulary", "length", "batch", "steps", "warmup")


@dataclass(frozen=True)
class Contender:
    """One score at one d_k from one start: losses by seed at its best learning rate; what its softmax did (medians)."""

    losses: tuple[float, ...]
    spread: tuple[float, ...]
    gate: tuple[float, ...]


End = Literal["smallest", "largest"]
"""The ends of the dimensions of a recorded sweep."""
Key = tuple[str, int, str]
"""Score, d_k, start."""


def hold(setting: Setting, scores: Sequence[str], starts: Sequence[str]) -> dict[Key, Contender]:
    """Train every score at every d_k from every start, all seeds and learning rates of a kind together."""
    trials = [
        _trial(setting, score, d, start, lr, seed)
        for score in scores
        for d in setting["dimensions"]
        for start in starts
        for lr in setting["lrs"]
        for seed in range(setting["seeds"])
    ]
    count = setting.counter(len(trials) * setting["steps"])
    outcomes = run_trials(trials, device=setting.device, progress=count)
    by_trial = {outcome.trial: outcome for outcome in outcomes}
    entries = {}
    for best in tuned(outcomes):
        start = next(name for name in starts if _gain(name, setting["width"], best.trial.d) == best.trial.init)
        seeds = [by_trial[replace(best.trial, seed=seed)] for seed in sorted(best.losses)]
        entries[best.trial.rule, best.trial.d, start] = _entry(seeds)
    return entries


def _entry(outcomes: list[TrialOutcome]) -> Contender:
    first, last = ([outcome.temperatures[i] for outcome in outcomes] for i in (0, -1))
    return Contender(
        tuple(map(loss_of, outcomes)),
        tuple(look.logit_std or 0.0 for look in first),
        tuple(look.gate or 0.0 for look in last),
    )


def _gain(start: str, width: int, d: int) -> float:
    """The factor on Xavier's W, whose variance is 2/(width + d): 1, or the one that gives its outputs unit variance."""
    return 1.0 if start == "xavier" else STATE * sqrt((width + d) / (2 * width))


def _trial(setting: Setting, score: str, d: int, start: str, lr: float, seed: int) -> Trial:
    given = {name: setting[name] for name in TASK}
    init = _gain(start, setting["width"], d)
    return Trial(model="recurrent", rule=score, head_dim=d, init=init, lr=lr, seed=setting.seed * 1000 + seed, **given)


def lead(entries: dict[Key, Contender], behind: Key, ahead: Key) -> list[float]:
    """Nats by which `ahead` is better than `behind`, seed by seed: both saw the same data."""
    pairs = zip(entries[behind].losses, entries[ahead].losses, strict=True)
    return [worse - better for worse, better in pairs]


def size(entries: dict[Key, Contender], behind: Key, ahead: Key) -> Measured:
    """Cohen's d between two entries' losses."""
    names = {"behind": NAMES[behind[0]], "ahead": NAMES[ahead[0]], "d": behind[1], "start": NAMES[behind[2]]}
    name = SAYS["effect"].format(**names)
    return Measured(name, effect_size(entries[behind].losses, entries[ahead].losses))


def numbers(entries: dict[Key, Contender], key: Key, expected: float | None, start: Text) -> list[Measured]:
    """One entry's loss, its logit spread at the start beside the `expected` one, and its gate after training."""
    entry, named = entries[key], {"score": NAMES[key[0]], "d": key[1], "start": start}
    return [
        over_seeds(SAYS["loss"].format(**named), entry.losses),
        over_seeds(SAYS["spread"].format(**named), entry.spread, predicted=expected),
        Measured(SAYS["gate"].format(**named), sorted(entry.gate)[len(entry.gate) // 2]),
    ]


def curves(name: str, entries: dict[Key, Contender], dimensions: Sequence[int], start: str) -> Figure:
    """Held-out loss over d_k for each score, from one start; `name` tells one claim's figures from another's."""
    scores = list(dict.fromkeys(score for score, _, at in entries if at == start))
    lines = (
        line_over_seeds(NAMES[score], dimensions, [entries[score, d, start].losses for d in dimensions])
        for score in scores
    )
    caption = SAYS["curves"].format(start=NAMES[start])
    return figure(f"{name}-loss-{start}", caption, D_K, SAYS["loss-per-word"], lines, log="x")


def britz(name: str) -> Figure:
    """The table the documents rest on: BLEU over dimensions, additive against multiplicative."""
    lines = []
    for score in ("additive", "multiplicative"):
        rows = [row for row in BRITZ_2017 if row.attention == score]
        lines.append(
            Line(
                NAMES[score],
                tuple(float(row.dimension) for row in rows),
                tuple(row.bleu for row in rows),
                tuple(row.bleu - row.spread for row in rows),
                tuple(row.bleu + row.spread for row in rows),
                source="document",
            )
        )
    bleu = Text("BLEU", "BLEU")
    return figure(f"{name}-britz-2017", SAYS["britz"], SAYS["britz-x"], bleu, lines, log="x")


def large_runs(scores: Sequence[str], records: Sequence[Path] = ()) -> list[tuple[Text, list[Tuned]]]:
    """Recorded settings of recurrent translators with these scores, by sweep and task: those kept, then those given."""
    found = []
    for sweep, path in (*((kept, None) for kept in sweeps()), *((given(path), path) for path in records)):
        kept = [
            outcome for outcome in sweep.outcomes if outcome.trial.model == "recurrent" and outcome.trial.rule in scores
        ]
        tasks = dict.fromkeys(outcome.trial.task for outcome in kept)
        for task in tasks:
            told = SAYS.get(f"task-{task}", Text(task, task))
            english = sweep.title if len(tasks) == 1 else f"{sweep.title} ({told.en})"
            title = Text(english, f"各种打分，{told.zh}")
            if path is not None:
                title = SAYS["from"].format(title=title, path=path)
            found.append((title, tuned([outcome for outcome in kept if outcome.trial.task == task])))
    return found


Judge = Callable[[MeanInterval, End], bool | None]
"""Whether a recorded lead at this end of the dimensions satisfies the claim's inequality; None where it has none."""


def recorded(
    name: str, scores: Sequence[str], records: Sequence[Path], ahead: str, behind: Mapping[str, Judge]
) -> tuple[list[Measured], list[Figure], tuple[Text, ...]]:
    """What recorded sweeps say of one score against others: its leads, a figure of each sweep, and in a sentence each the
    lead over the first of the others at the largest d_k. Those kept with the package are judged, those given are shown."""
    runs = large_runs(scores, records)
    kept = len(large_runs(scores)) if records else len(runs)
    leads = [
        lead
        for i, (title, found) in enumerate(runs)
        for rival, judge in behind.items()
        for lead in recorded_leads(title, found, rival, ahead, judge if i < kept else None)
    ]
    figures = [recorded_figure(name, title, found, i) for i, (title, found) in enumerate(runs)]
    ends = tuple(end for title, found in runs for end in recorded_ends(title, found, next(iter(behind)), ahead))
    return leads, figures, ends


def recorded_leads(
    title: Text, settings: Sequence[Tuned], behind: str, ahead: str, judge: Judge | None = None
) -> list[Measured]:
    """By how much one score leads another in a recorded sweep, at each d_k and start both were trained at."""
    names = {"title": title, "behind": NAMES[behind], "ahead": NAMES[ahead]}
    found = _gaps(settings, behind, ahead)
    ends: dict[int, End] = {}
    if found:
        ends = {min(trial.d for trial, _ in found): "smallest", max(trial.d for trial, _ in found): "largest"}
    return [
        over_seeds(
            SAYS["recorded"].format(d=trial.d, start=_start_of(trial), **names),
            gaps,
            holds=judge(interval(gaps), ends[trial.d]) if judge is not None and trial.d in ends else None,
        )
        for trial, gaps in found
    ]


def recorded_ends(title: Text, settings: Sequence[Tuned], behind: str, ahead: str) -> list[Text]:
    """The same in a sentence, at the largest d_k alone."""
    gaps = _gaps(settings, behind, ahead)
    largest = max((trial.d for trial, _ in gaps), default=0)
    names = {"title": title, "behind": NAMES[behind], "ahead": NAMES[ahead], "d": largest}
    return [
        SAYS["at-largest"].format(lead=signed(interval(values).mean), start=_start_of(trial), **names)
        for trial, values in gaps
        if trial.d == largest
    ]


def _gaps(settings: Sequence[Tuned], behind: str, ahead: str) -> list[tuple[Trial, list[float]]]:
    """Nats by which `ahead` is better, seed by seed, wherever both scores were trained alike."""
    alike: dict[Trial, dict[str, dict[int, float]]] = {}
    for one in settings:
        alike.setdefault(replace(one.trial, rule="additive", lr=1.0), {})[one.trial.rule] = one.losses
    found = []
    for trial, losses in sorted(alike.items(), key=lambda item: (item[0].task, item[0].d, item[0].init)):
        worse, better = losses.get(behind, {}), losses.get(ahead, {})
        if gaps := [worse[seed] - better[seed] for seed in sorted(worse) if seed in better]:
            found.append((trial, gaps))
    return found


def recorded_figure(name: str, title: Text, settings: Sequence[Tuned], number: int) -> Figure:
    """Held-out loss over d_k of each score and start of a recorded sweep."""
    series: dict[tuple[str, Text], dict[int, list[float]]] = {}
    for one in settings:
        series.setdefault((one.trial.rule, _start_of(one.trial)), {})[one.trial.d] = list(one.losses.values())
    starts = {start for _, start in series}
    lines = []
    order = list(NAMES)
    for (score, start), by_d in sorted(series.items(), key=lambda item: (order.index(item[0][0]), item[0][1].en)):
        both = SAYS["score-and-start"].format(score=NAMES[score], start=start)
        points = sorted(by_d.items())
        called = NAMES[score] if len(starts) == 1 else both
        lines.append(line_over_seeds(called, [d for d, _ in points], [losses for _, losses in points]))
    x, y = D_K, SAYS["loss-per-token"]
    return Figure(
        f"{name}-recorded-{number}", _caption(title, settings), x, y, tuple(lines), x_log=True, y_log=_decades(lines)
    )


def _caption(title: Text, settings: Sequence[Tuned]) -> Text:
    """What a recorded figure shows, and how far each score lags the additive one."""
    seeds = min(len(one.losses) for one in settings)
    rate = SAYS["one-rate" if all(one.rates == 1 for one in settings) else "best-rate"]
    said = [SAYS["recorded-caption"].format(title=title, seeds=seeds, rate=rate)]
    starts = {_start_of(one.trial) for one in settings}
    if len(starts) == 1:
        said.append(SAYS["start"].format(start=starts.pop()))
        if all(one.trial.width == one.trial.d for one in settings):
            said.append(SAYS["growing"])
        rivals = (score for score in NAMES if score != "additive")
        said += [_lag(score, gaps) for score in rivals if (gaps := _gaps(settings, score, "additive"))]
    return Text(" ".join(text.en for text in said), "".join(text.zh for text in said))


def _lag(score: str, gaps: Sequence[tuple[Trial, list[float]]]) -> Text:
    places, lags = zip(*((str(trial.d), signed(interval(values).mean)) for trial, values in gaps), strict=True)
    d, values = (Text(", ".join(each), "、".join(each)) for each in (places, lags))
    return SAYS["lag"].format(score=NAMES[score], d=d, values=values)


def _decades(lines: Sequence[Line]) -> bool:
    """Whether losses differ so much that only a logarithmic axis shows the small ones apart."""
    values = [value for line in lines for value in (*line.y, *(line.low or ())) if value is not None]
    return min(values) > 0 and max(values) > 10 * min(values)


def _start_of(trial: Trial) -> Text:
    """Which of the two starts a recorded trial had, or its gain."""
    for start in ("xavier", "unit"):
        if abs(trial.init / _gain(start, trial.width, trial.d) - 1) < 0.02:
            return NAMES[start]
    return SAYS["gain"].format(init=f"{trial.init:g}")


QUICK: Mapping[str, Any] = {
    "task": "align",
    "width": 16,
    "dimensions": (16, 192),
    "vocabulary": 14,
    "length": 5,
    "batch": 32,
    "steps": 50,
    "warmup": 10,
    "lrs": (1.5e-2,),
}
FULL: Mapping[str, Any] = {
    "width": 32,
    "dimensions": (16, 64, 256),
    "length": 8,
    "batch": 32,
    "steps": 400,
    "lrs": (3e-3, 1e-2),
    "seeds": 8,
}
"""The sizes both contests are held at."""
