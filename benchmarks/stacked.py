"""64 small models trained together, against the same trials one after another.

One run, one tidy table. Before anything is timed, three of the models are trained both ways and their losses compared.
«One after another» is timed on a few of the trials and multiplied, as the row says: once as anyone would write it
(`train_alone`: PyTorch's modules and AdamW), and once as a stack of one, which on a GPU has the captured graph too.

    PYTHONPATH=src python benchmarks/stacked.py [cpu|cuda] [--steps N] [--out benchmarks/results/stacked]
"""

import argparse
import csv
import itertools
import json
import platform
import subprocess
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.func import functional_call

from isotherm.record.sweep import Trial
from isotherm.train.batches import Batch
from isotherm.train.sweep.examples import source_of
from isotherm.train.sweep.group_training import advance, built, make_stack
from isotherm.train.sweep.model_stack import (
    BETAS,
    CHUNK,
    CLIP,
    DECAY,
    EPSILON,
    PRECISIONS,
    Schedule,
    matrix_products,
    token_loss,
)

HERE = Path(__file__).parent
MODELS, TIMED_ALONE = 64, 3
SMALL = Trial(model="decoder", task="copy", width=64, heads=2, layers=2, vocabulary=32, length=15, batch=16, warmup=10)
HEADER = ["way", "device", "models", "timed_models", "steps", "seconds_for_all", "model_steps_per_second", "speedup"]


def trials(steps: int) -> list[Trial]:
    """16 learning rates × 2 rules × 2 seeds."""
    rates = [1e-4 * 10 ** (i / 5) for i in range(16)]
    choices = itertools.product(rates, ("none", "1/sqrt(d)"), (0, 1))
    return [replace(SMALL, lr=lr, rule=rule, seed=seed, steps=steps) for lr, rule, seed in choices]


def batches(trial: Trial, device: torch.device) -> Iterator[Batch]:
    """A trial's batches one at a time."""
    for chunk in source_of(trial, device, {}).chunks(trial.seed):
        for step in range(CHUNK):
            yield chunk.map(lambda tokens, step=step: tokens[step])


def together(group: Sequence[Trial], device: torch.device) -> tuple[float, torch.Tensor]:
    """Seconds from building the models to the last step, and the losses [steps, M]."""
    started = time.perf_counter()
    stack = make_stack(group, device=device, precision="float32")
    progress = list(advance(stack, source_of(group[0], device, {}), group, set()))
    losses = torch.cat([part.losses for part in progress]).cpu()
    return time.perf_counter() - started, losses


def alone(trial: Trial, device: torch.device) -> tuple[float, torch.Tensor]:
    """The same for one trial, written as anyone would."""
    started = time.perf_counter()
    schedule = Schedule([trial.lr], [trial.warmup], trial.steps)
    losses = train_alone(built(trial), schedule, batches(trial, device), device=str(device))
    return time.perf_counter() - started, torch.tensor(losses)


def train_alone(
    model: nn.Module, schedule: Schedule, batches: Iterator[Batch], *, device: str = "cpu", precision: str = "float32"
) -> list[float]:
    """One model, trained as anyone would: the loss of each step. `schedule` holds this model alone."""
    kept, compute = PRECISIONS[precision]
    model.to(device, kept)
    computing = model if kept == compute else deepcopy(model).to(compute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=BETAS, eps=EPSILON, weight_decay=DECAY)
    losses = []
    with matrix_products(precision):
        for step in range(schedule.steps):
            batch = next(batches)
            optimizer.param_groups[0]["lr"] = schedule.at(0, step)
            state = {name: parameter.to(compute) for name, parameter in model.named_parameters()}
            loss = token_loss(functional_call(computing, state, batch.inputs), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            losses.append(loss.detach())
    return [float(loss) for loss in torch.stack(losses).tolist()]


def check(device: torch.device) -> float:
    """The largest difference of losses between together and alone over the first steps; fails if it is no rounding."""
    group = trials(20)
    _, losses = together(group, device)
    worst = 0.0
    for index in (0, 13, 30):
        worst = max(worst, (losses[:, index] - alone(group[index], device)[1]).abs().max().item())
    assert worst < 1e-3, worst
    return worst


def provenance(device: torch.device, steps: int, commit: str, difference: float) -> dict[str, str | int | float]:
    """Where and with what the numbers were measured."""
    if not commit:
        git = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    cpu = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), ""
    )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "dtype": "float32",
        "models": MODELS,
        "steps": steps,
        "model": f"decoder, width {SMALL.width}, {SMALL.layers} layers, batch {SMALL.batch} × {2 * SMALL.length + 1} tokens",
        "largest_loss_difference": difference,
        "note": f"one after another: {TIMED_ALONE} of the trials timed and multiplied to {MODELS}",
    }


def measure(device: torch.device, steps: int) -> list[list[str | int | float]]:
    """Rows: together, alone, and alone as a stack of one."""
    group = trials(steps)
    assert len(group) == MODELS
    some = group[:: MODELS // TIMED_ALONE][:TIMED_ALONE]
    alone(replace(some[0], steps=5), device)  # warm-up
    found = [
        ("together", MODELS, together(group, device)[0]),
        ("one after another", TIMED_ALONE, sum(alone(trial, device)[0] for trial in some) * MODELS / TIMED_ALONE),
        (
            "one after another, as stacks of one",
            TIMED_ALONE,
            sum(together([trial], device)[0] for trial in some) * MODELS / TIMED_ALONE,
        ),
    ]
    rows: list[list[str | int | float]] = []
    for way, timed, seconds in found:
        rows.append([way, device.type, MODELS, timed, steps, seconds, MODELS * steps / seconds, seconds / found[0][2]])
    return rows


def main() -> None:
    """Check, time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--commit", default="")
    given = parser.parse_args()
    device = torch.device(given.device)
    steps = given.steps or (1000 if given.device == "cuda" else 64)
    out = given.out or HERE / "results" / f"stacked_{given.device}"
    difference = check(device)
    rows = measure(device, steps)
    out.parent.mkdir(exist_ok=True)
    with out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows([[f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows])
    notes = provenance(device, steps, given.commit, difference)
    out.with_suffix(".json").write_text(json.dumps(notes, indent=2, ensure_ascii=False) + "\n")
    print(", ".join(f"{name} {value}" for name, value in notes.items()))
    for row in rows:
        print(
            f"{row[0]:40} {row[5]:10.1f} s for {MODELS}  {row[6]:10.0f} model steps/s  {row[7]:6.1f} × the time together"
        )


if __name__ == "__main__":
    main()
