"""Train one group of trials together: build the models, train them, measure their attention on the way, test them."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.models.build import build
from isotherm.models.shape import Shape
from isotherm.record.plain import finite
from isotherm.record.sweep import AtLength, Temperature, Trial, TrialOutcome
from isotherm.record.versions import versions
from isotherm.train.batches import Batch
from isotherm.train.sweep.examples import Corpora, ExampleSource, corpora_of, number, source_of
from isotherm.train.sweep.model_stack import CHUNK, ModelStack, Progress, Schedule
from isotherm.train.sweep.provenance import device_name
from isotherm.train.sweep.temperatures import projections, temperature
from isotherm.train.sweep.trials import check, groups, multiplier
from isotherm.train.tokens import PAD

TOGETHER = {"cuda": 64, "cpu": 16}
"""Models trained as one, at most."""
POINTS = 40
"""Evenly spaced points of a training curve; the powers of two come on top."""
LOOKS = (0.0, 0.02, 0.1, 0.4, 1.0)
"""When attention is looked into, as shares of the run."""
TESTED_LONGER = 128
"""Examples at each of the further lengths."""

NO_CORPORA: Corpora = {}
Curve = tuple[tuple[int, float | None], ...]
Tick = Callable[[int], object]
"""Told how many model steps (models × steps) were just taken."""


def run_trials(
    trials: Sequence[Trial],
    *,
    device: str = "cpu",
    precision: str = "float32",
    root: Path = Path(),
    together: int | None = None,
    progress: Tick = lambda _steps: None,
) -> list[TrialOutcome]:
    """Train every trial, those that differ in numbers alone together; outcomes in the order of the trials.

    `root` is the folder corpora are looked for in, `together` the most models trained as one.
    """
    most = together or TOGETHER.get(torch.device(device).type, TOGETHER["cpu"])
    corpora = corpora_of(trials, root)
    found: dict[Trial, TrialOutcome] = {}
    for group in groups([check(trial) for trial in trials], most):
        outcomes = train_group(group, device=device, precision=precision, corpora=corpora, progress=progress)
        found.update(zip(group, outcomes, strict=True))
    return [found[trial] for trial in trials]


def train_group(
    group: Sequence[Trial],
    *,
    device: str,
    precision: str,
    corpora: Corpora = NO_CORPORA,
    progress: Tick = lambda _steps: None,
) -> list[TrialOutcome]:
    """Train the trials of one group, as `groups` made it, together."""
    started = time.perf_counter()
    trial, place = group[0], torch.device(device)
    source = source_of(trial, place, corpora)
    stack = make_stack(group, device=place, precision=precision)
    held_out = source.held_out(trial.length)
    log = _Log(stack, held_out[0])
    start, _ = test(stack, held_out)
    stops = {round(share * trial.steps) for share in LOOKS}
    log.look()
    for progressed in advance(stack, source, group, stops):
        log.progress.append(progressed)
        progress(len(group) * len(progressed.losses))
        if stack.taken in stops:
            log.look()
    end, right = test(stack, held_out)
    longer = [_at_length(log, length, source.held_out(length, TESTED_LONGER)) for length in trial.test_lengths]
    shared = {
        "parameters": sum(parameter.numel() for parameter in stack.template.parameters()),
        "seconds": (time.perf_counter() - started) / len(group),
        "together": len(group),
        "graph": stack.captures,
        "device": device_name(place),
        "precision": precision,
        "versions": versions("torch"),
    }
    tests = list(zip(start, end, right, strict=True))
    return [
        _outcome(log, i, tests[i], tuple(tested[i] for tested in longer), trial=one, **shared)
        for i, one in enumerate(group)
    ]


def _outcome(
    log: "_Log",
    model: int,
    tests: tuple[float, float, float],
    longer: tuple[AtLength, ...],
    trial: Trial,
    **shared: Any,
) -> TrialOutcome:
    """One model's outcome. `tests` are its loss before and after training, and its accuracy after."""
    losses, gradients, diverged_at = log.curves(model, trial.steps)
    start, end, right = map(finite, tests)
    lost = diverged_at is not None
    return TrialOutcome(
        trial=trial,
        losses=losses,
        held_out_start=start,
        held_out=None if lost else end,
        accuracy=None if lost else right,
        by_length=() if lost else longer,
        diverged=lost,
        diverged_at=diverged_at,
        temperatures=tuple(look[model] for look in log.looks),
        gradients=gradients,
        **shared,
    )


def _at_length(log: "_Log", length: int, batches: Sequence[Batch]) -> list[AtLength]:
    """Every model tested at one further length."""
    losses, right = test(log.stack, batches)
    looks = log.temperatures(batches[0])
    return [
        AtLength(length, finite(loss), finite(share), look.entropy_fraction)
        for loss, share, look in zip(losses, right, looks, strict=True)
    ]


def make_stack(group: Sequence[Trial], *, device: torch.device, precision: str) -> ModelStack:
    """The group's models, initialised, under one stack; a scale that is one number is folded into W_q."""
    scales = [multiplier(trial) for trial in group]
    folded = None not in scales
    models = [built(trial, "none" if folded else trial.rule) for trial in group]
    queries, _ = projections(models[0])
    schedule = Schedule([trial.lr for trial in group], [trial.warmup for trial in group], group[0].steps)
    return ModelStack(
        models,
        schedule,
        device=device,
        precision=precision,
        factors=[scale for scale in scales if scale is not None] if folded else None,
        multiplied=queries,
        watched=[name for name in queries if name.endswith("weight")],
    )


def built(trial: Trial, rule: str | None = None) -> nn.Module:
    """A trial's model as it starts: its seed's parameters, W_q and W_k times its gain. Random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number("parameters", trial.seed))
        model = build(trial.model, shape_of(trial), rule or trial.rule)
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name in [name for names in projections(model) for name in names]:
            named[name].mul_(trial.init)
    return model


def shape_of(trial: Trial) -> Shape:
    """The model's shape, with room for the longest sequence it will meet."""
    longest = max(trial.length, *trial.test_lengths, 0)
    return Shape(
        vocabulary=trial.vocabulary,
        width=trial.width,
        heads=trial.heads,
        layers=trial.layers,
        head_dim=trial.head_dim,
        longest=4 * longest + 2,
    )


def advance(stack: ModelStack, source: ExampleSource, group: Sequence[Trial], stops: set[int]) -> Iterator[Progress]:
    """Train to the end, a chunk of data at a time, stopping at `stops`. The next chunk is drawn while the device works."""
    seeds = sorted({trial.seed for trial in group})
    streams = [source.chunks(seed) for seed in seeds]
    which = [seeds.index(trial.seed) for trial in group]
    steps = group[0].steps
    chunk = _draw(streams)
    while stack.taken < steps:
        stack.feed(chunk, which)
        end = min(steps, stack.taken + CHUNK)
        while stack.taken < end:
            stop = min((stop for stop in stops if stop > stack.taken), default=end)
            progressed = stack.run(min(stop, end) - stack.taken)
            if stack.taken == end < steps:
                chunk = _draw(streams)
            yield progressed


def _draw(streams: Sequence[Iterator[Batch]]) -> Batch:
    """The next chunk of every stream, side by side: [CHUNK, streams, B, L]."""
    chunks = [next(stream) for stream in streams]
    inputs = zip(*(chunk.inputs for chunk in chunks), strict=True)
    return Batch(tuple(torch.stack(part, 1) for part in inputs), torch.stack([chunk.labels for chunk in chunks], 1))


def test(stack: ModelStack, batches: Sequence[Batch]) -> tuple[list[float], list[float]]:
    """Every model's loss and token accuracy over some batches, each place counting alike."""
    counts = torch.stack([(batch.labels != PAD).sum() for batch in batches]).double().cpu()
    measured = [stack.evaluate(batch) for batch in batches]
    losses, right = (torch.stack([pair[i] for pair in measured]).double().cpu() for i in (0, 1))
    weights = (counts / counts.sum()).unsqueeze(1)
    return (losses * weights).sum(0).tolist(), (right * weights).sum(0).tolist()


class _Log:
    """What a group did along the way: its progress, and looks into its models' attention on one batch."""

    def __init__(self, stack: ModelStack, batch: Batch) -> None:
        self.stack, self.batch = stack, batch
        self.progress: list[Progress] = []
        self.looks: list[list[Temperature]] = []

    def look(self) -> None:
        """Look into every model's attention now."""
        self.looks.append(self.temperatures(self.batch))

    def temperatures(self, batch: Batch) -> list[Temperature]:
        """Every model's attention on one batch."""
        return [temperature(self.stack, i, batch) for i in range(len(self.stack))]

    def curves(self, model: int, steps: int) -> tuple[Curve, Curve, int | None]:
        """One model's losses and gradients at the kept steps, and the step (from 1) at which it diverged."""
        losses, gradients, alive = (self._whole(name)[:, model] for name in ("losses", "gradients", "alive"))
        dead = (~alive.bool()).nonzero()
        end = int(dead[0]) if len(dead) else None
        kept = [step for step in points(steps) if end is None or step <= end + 1]
        if not self.stack.watch.any():  # a score without W_q
            gradients = torch.full_like(gradients, torch.nan)
        pairs = [tuple((step, finite(float(curve[step - 1]))) for step in kept) for curve in (losses, gradients)]
        return pairs[0], pairs[1], None if end is None else end + 1

    def _whole(self, name: str) -> Tensor:
        return torch.cat([getattr(progressed, name) for progressed in self.progress]).cpu()


def points(steps: int) -> list[int]:
    """The steps (from 1) whose loss is kept: powers of two, and evenly spaced ones."""
    powers = {1 << i for i in range(steps.bit_length())}
    even = {max(1, round(i * steps / POINTS)) for i in range(1, POINTS + 1)}
    return sorted(step for step in powers | even if step <= steps)
