"""Many models as one: the same numbers as one after another, and nobody disturbs anybody."""

import itertools
from dataclasses import replace

import pytest
import torch
from benchmarks.stacked import train_alone
from torch import nn

from isotherm.errors import ArgumentError
from isotherm.record.sweep import Trial
from isotherm.train.batches import Batch
from isotherm.train.sweep.examples import source_of
from isotherm.train.sweep.group_training import advance, built, make_stack
from isotherm.train.sweep.model_stack import CHUNK, Layout, ModelStack, Schedule
from isotherm.train.sweep.trials import groups

CPU = torch.device("cpu")
DECODER = Trial(
    model="decoder", task="copy", width=21, heads=3, layers=2, vocabulary=17, length=5, batch=3, steps=20, warmup=4
)
TRANSFORMER = replace(DECODER, model="transformer", task="reverse")
RECURRENT = replace(DECODER, model="recurrent", task="align", width=22, heads=1, layers=1)
GROUPS = {
    "decoder, scales of one number": [replace(DECODER, rule=rule) for rule in ("none", "1/sqrt(d)", "1/d", "0.3")],
    "decoder, qk-norm": [replace(DECODER, rule="qk-norm*1/sqrt(d)", seed=seed) for seed in (0, 1)],
    "decoder, soft cap": [replace(DECODER, rule="softcap:5*1/sqrt(d)", seed=seed) for seed in (0, 1)],
    "decoder, log-n": [replace(DECODER, rule="log-n:3*1/sqrt(d)", seed=seed) for seed in (0, 1)],
    "decoder, scalable softmax": [replace(DECODER, rule="ssmax", seed=seed) for seed in (0, 1)],
    "transformer, gains": [replace(TRANSFORMER, init=init, lr=lr) for init, lr in ((1.0, 1e-3), (0.5, 3e-3))],
    "recurrent, additive": [replace(RECURRENT, rule="additive", seed=seed, lr=1e-3 * (1 + seed)) for seed in (0, 1)],
    "recurrent, dot": [replace(RECURRENT, rule="dot", seed=seed) for seed in (0, 1)],
    "recurrent, scaled dot": [replace(RECURRENT, rule="scaled-dot", seed=seed) for seed in (0, 1)],
}


def stacked_losses(group: list[Trial], precision: str) -> torch.Tensor:
    """Losses [steps, M] of the group trained together."""
    assert len(groups(group, most=64)) == 1
    stack = make_stack(group, device=CPU, precision=precision)
    source = source_of(group[0], CPU, {})
    return torch.cat([progress.losses for progress in advance(stack, source, group, {7})])


def batches(trial: Trial):
    """The batches of a trial, one at a time."""
    for chunk in source_of(trial, CPU, {}).chunks(trial.seed):
        for step in range(CHUNK):
            yield chunk.map(lambda tokens, step=step: tokens[step])


def alone_losses(trial: Trial, precision: str) -> torch.Tensor:
    schedule = Schedule([trial.lr], [trial.warmup], trial.steps)
    return torch.tensor(train_alone(built(trial), schedule, batches(trial), precision=precision), dtype=torch.float64)


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_together_is_the_same_as_alone_to_rounding(group):
    together = stacked_losses(group, "float64")
    for index, trial in enumerate(group):
        alone = alone_losses(trial, "float64")
        assert (together[:, index] - alone).abs().max() < 1e-9 * max(1.0, alone.max().item())
        assert alone[-1] != alone[0]


def test_together_is_the_same_as_alone_in_float32():
    group = GROUPS["decoder, scales of one number"]
    together = stacked_losses(group, "float32")
    for index, trial in enumerate(group):
        assert (together[:, index].double() - alone_losses(trial, "float32")).abs().max() < 1e-4


def test_bfloat16_trains_too():
    group = GROUPS["decoder, scales of one number"][:2]
    together = stacked_losses(group, "bfloat16")
    for index, trial in enumerate(group):
        assert (together[:, index].double() - alone_losses(trial, "bfloat16")).abs().max() < 0.05


def test_the_data_is_bit_identical_together_and_alone():
    group = [replace(DECODER, seed=seed) for seed in (3, 4)]
    seen: list[Batch] = []
    stack = make_stack(group, device=CPU, precision="float32")
    feed = stack.feed
    stack.feed = lambda chunk, which: (seen.append(chunk), feed(chunk, which))  # type: ignore[method-assign]
    list(advance(stack, source_of(group[0], CPU, {}), group, set()))
    for index, trial in enumerate(group):
        for step, batch in enumerate(itertools.islice(batches(trial), trial.steps)):
            assert torch.equal(seen[0].inputs[0][step, index], batch.inputs[0])
            assert torch.equal(seen[0].labels[step, index], batch.labels)


def test_a_model_that_diverges_is_frozen_and_disturbs_nobody():
    healthy = [replace(DECODER, lr=lr) for lr in (1e-3, 2e-3, 3e-3)]
    sick = [healthy[0], replace(DECODER, lr=1e30), healthy[2]]
    runs = []
    for group in (healthy, sick):
        stack = make_stack(group, device=CPU, precision="float32")
        progress = list(advance(stack, source_of(DECODER, CPU, {}), group, set()))
        runs.append(
            (stack, torch.cat([part.losses for part in progress]), torch.cat([part.alive for part in progress]))
        )
    (_, losses, alive), (stack, with_sick, some_alive) = runs
    assert alive.all()
    assert some_alive[:, [0, 2]].all()
    assert some_alive[0, 1]
    assert not some_alive[-1, 1]
    assert torch.equal(losses[:, [0, 2]], with_sick[:, [0, 2]])
    assert stack.theta.isfinite().all()
    before = stack.theta[1].clone()
    stack.feed(next(source_of(DECODER, CPU, {}).chunks(0)).map(lambda tokens: tokens.unsqueeze(1)), [0, 0, 0])
    stack.run(3)
    assert torch.equal(stack.theta[1], before)
    assert not torch.equal(stack.theta[0], runs[0][0].theta[0])


def test_a_step_of_the_stack_is_a_step_of_adamw_with_the_schedule():
    schedule = Schedule([0.1, 0.4], [5, 0], 20)
    rates = [schedule.at(0, step) for step in range(20)]
    assert rates[0] == pytest.approx(0.02)
    assert max(rates) == rates[4] == rates[5] == pytest.approx(0.1)
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0.01 < rates[-1] < 0.015
    assert schedule.at(1, 0) == pytest.approx(0.4)


def test_a_layout_packs_and_unpacks_without_loss():
    model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5))
    layout = Layout(model)
    row = layout.pack(dict(model.named_parameters()))
    for name, parameter in model.named_parameters():
        assert torch.equal(layout.unpack(row)[name], parameter)
    assert layout.where(["0.bias"]).sum() == 5


def test_more_steps_than_data_are_refused():
    stack = make_stack([DECODER], device=CPU, precision="float32")
    with pytest.raises(ArgumentError, match="no more than were fed"):
        stack.run(1)
    with pytest.raises(ArgumentError, match="precision"):
        ModelStack([built(DECODER)], Schedule([1.0], [0], 1), precision="float8")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_graph_does_what_plain_steps_do():
    group = [replace(DECODER, lr=lr, steps=CHUNK + 7) for lr in (1e-3, 1e30, 3e-3)]
    device = torch.device("cuda")
    losses = []
    for captured in (True, False):
        stack = make_stack(group, device=device, precision="float64")
        if not captured:
            stack._capture = lambda: None  # type: ignore[method-assign]
        progress = list(advance(stack, source_of(DECODER, device, {}), group, {5}))
        assert (stack._graph is not None) == captured
        losses.append(torch.cat([part.losses for part in progress])[:, [0, 2]].cpu())
    assert (losses[0] - losses[1]).abs().max() < 1e-9


class Peeking(nn.Module):
    """A model that reads a number back in the middle of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(17, 3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.weight[tokens]
        return x @ self.weight.mT * (2.0 if tokens.sum().item() > 0 else 1.0)


def one_step_without_numbers(stack: ModelStack, length: int) -> None:
    """A step on tensors that hold nothing: reading a number back, which no CUDA graph could record, fails."""
    empty = torch.empty(CHUNK, 1, 3, length, dtype=torch.int64, device="meta")
    stack.feed(Batch((empty,), empty), [0] * len(stack))
    stack.run(1)


@pytest.mark.parametrize("name", [name for name in GROUPS if name.startswith("decoder")])
def test_no_number_is_read_back_in_a_step_so_that_a_graph_can_hold_it(name):
    stack = make_stack(GROUPS[name], device=torch.device("meta"), precision="float32")
    one_step_without_numbers(stack, 11)
    assert stack.theta.is_meta


def test_reading_a_number_back_would_be_noticed():
    stack = ModelStack([Peeking()], Schedule([1.0], [0], 5), device="meta")
    with pytest.raises(RuntimeError, match="item"):
        one_step_without_numbers(stack, 5)
