"""Many small models trained as one: each step of all of them is one batched computation.

A small model leaves a device idle: a step is hundreds of kernels, each over before the next is launched. `ModelStack` holds
the parameters of M models of one shape as one matrix [M, P], takes every model's gradient at once (`torch.func`), and
updates all rows with one AdamW. On a CUDA device the whole step is captured once as a graph and replayed.
`train_alone` in benchmarks/stacked.py is the same training as anyone would write it, and the specification of
`ModelStack`: the same data give the same numbers, to rounding.

Rows never mix: a model whose loss or gradient stops being finite is frozen where it was, and the others go on.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import cos, pi, prod

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from isotherm.errors import ArgumentError
from isotherm.language import Text
from isotherm.train.batches import Batch
from isotherm.train.tokens import PAD

BETAS, EPSILON, DECAY, CLIP, FLOOR = (0.9, 0.98), 1e-8, 0.01, 1.0, 0.1
"""AdamW; the gradient's norm is cut at CLIP; the learning rate falls along a cosine to FLOOR times its peak."""
CHUNK = 32
"""Steps whose data is drawn at once, whatever the number of models: part of what a seed means."""
ALIGNMENT = 32
"""Parameters start at multiples of this many numbers, as fast matrix kernels want."""
PRECISIONS = {
    "float32": (torch.float32, torch.float32),
    "tf32": (torch.float32, torch.float32),
    "bfloat16": (torch.float32, torch.bfloat16),
    "float64": (torch.float64, torch.float64),
}
"""What parameters are kept in, and what a model computes in; tf32 rounds the factors of matrix products on CUDA devices."""


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then half a cosine: a peak and a warm-up for each model, the number of steps for all."""

    lr: Sequence[float]
    warmup: Sequence[int]
    steps: int

    def at(self, model: int, step: int) -> float:
        """The learning rate of one model's step, from 0."""
        warmup = self.warmup[model]
        if step < warmup:
            return self.lr[model] * (step + 1) / warmup
        done = (step - warmup) / max(1, self.steps - warmup)
        return self.lr[model] * (FLOOR + (1 - FLOOR) * 0.5 * (1 + cos(pi * done)))


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats over the places where something is asked; logits [B, T, V], labels [B, T]."""
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(precise.flatten(0, 1), labels.flatten(), ignore_index=PAD)


@contextmanager
def matrix_products(precision: str) -> Iterator[None]:
    """TF32 where that was asked for, full precision elsewhere, and the process's own choice again afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Layout:
    """Where each parameter of a model lies in one long vector."""

    def __init__(self, model: nn.Module) -> None:
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.sizes = [-(-prod(shape) // ALIGNMENT) * ALIGNMENT for shape in self.shapes.values()]

    def pack(self, state: Mapping[str, Tensor]) -> Tensor:
        """Parameters as one vector [P]."""
        row = torch.zeros(sum(self.sizes), dtype=next(iter(state.values())).dtype)
        for place, name in zip(row.split(self.sizes), self.shapes, strict=True):
            place[: state[name].numel()] = state[name].detach().flatten()
        return row

    def unpack(self, row: Tensor) -> dict[str, Tensor]:
        """The vector as parameters: views, not copies."""
        parts = zip(row.split(self.sizes), self.shapes.items(), strict=True)
        return {name: part[: prod(shape)].view(shape) for part, (name, shape) in parts}

    def where(self, names: Sequence[str]) -> Tensor:
        """1 where one of these parameters lies, else 0 [P]."""
        ones = {name: torch.full(shape, float(name in set(names))) for name, shape in self.shapes.items()}
        return self.pack(ones)


@dataclass(frozen=True)
class Progress:
    """What the last steps did, each [steps, M]: the loss, the gradient's norm over the watched parameters, who lives."""

    losses: Tensor
    gradients: Tensor
    alive: Tensor


class ModelStack:
    """M models of one shape under training.

    `models` are built and initialised one by one, as they would be alone. `factors` [M] multiplies the parameters named
    in `multiplied` wherever they are used: a scale that differs from model to model, folded into W_q. `watched`
    parameters have their gradient's norm kept.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        schedule: Schedule,
        *,
        device: str | torch.device = "cpu",
        precision: str = "float32",
        factors: Sequence[float] | None = None,
        multiplied: Sequence[str] = (),
        watched: Sequence[str] = (),
    ) -> None:
        if precision not in PRECISIONS:
            raise ArgumentError("precision", Text(*(" | ".join(PRECISIONS),) * 2), got=repr(precision))
        dtype, self.compute = PRECISIONS[precision]
        self.device, self.precision, self.schedule = torch.device(device), precision, schedule
        self.layout = Layout(models[0])
        self.multiplied = frozenset(multiplied) if factors is not None else frozenset()
        rows = [self.layout.pack(dict(model.named_parameters())) for model in models]
        self.theta = torch.stack(rows).to(self.device, dtype)
        self.template = models[0].to(self.device, self.compute)
        self.first, self.second = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        self.alive = torch.ones(len(rows), dtype=torch.bool, device=self.device)
        self.step = torch.zeros((), dtype=torch.int64, device=self.device)
        self.factors = torch.tensor(factors or [1.0] * len(rows), dtype=dtype, device=self.device)
        self.watch = self.layout.where(watched).to(self.device, dtype)
        rates = [[schedule.at(model, step) for step in range(schedule.steps)] for model in range(len(rows))]
        self.rates = torch.tensor(rates, dtype=dtype, device=self.device)
        self.taken = 0
        self.captures = self.device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._chunk: Batch | None = None
        self._which = torch.zeros(len(rows), dtype=torch.int64, device=self.device)
        self._seen = torch.zeros(3, CHUNK, len(rows), dtype=dtype, device=self.device)

    def __len__(self) -> int:
        return len(self.theta)

    def feed(self, chunk: Batch, which: Sequence[int]) -> None:
        """Data for the next CHUNK steps: [CHUNK, streams, B, L] on the device; model i reads stream `which[i]`."""
        if self._chunk is None:
            self._chunk = chunk.map(torch.clone)
            self._which.copy_(torch.tensor(which))
        for place, fresh in zip((*self._chunk.inputs, self._chunk.labels), (*chunk.inputs, chunk.labels), strict=True):
            place.copy_(fresh)

    def run(self, steps: int) -> Progress:
        """Take the next steps, as far as the data in hand reaches. Does not wait for the device to finish them."""
        start = self.taken % CHUNK
        if self._chunk is None or start + steps > CHUNK:
            raise ArgumentError("steps", Text("no more than were fed", "不超过已供给数据的步数"), got=steps)
        with matrix_products(self.precision):
            if self.captures and self._graph is None:
                self._capture()
            for _ in range(steps):
                self._advance() if self._graph is None else self._graph.replay()
        self.taken += steps
        losses, gradients, alive = self._seen[:, start : start + steps].clone()
        return Progress(losses, gradients, alive.bool())

    @torch.no_grad()
    def alone(self, model: int) -> nn.Module:
        """One model as it is now, its factor in its parameters; the same module serves for each, so look at one at a time."""
        state = self._state(self.theta[model], self.factors[model])
        for name, parameter in self.template.named_parameters():
            parameter.copy_(state[name])
        return self.template

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Every model's loss and token accuracy on one batch [B, L], each [M]."""

        def measure(row: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
            logits = self._logits(row, factor, batch.inputs)
            asked = batch.labels != PAD
            right = ((logits.argmax(-1) == batch.labels) & asked).sum() / asked.sum()
            return token_loss(logits, batch.labels), right

        with matrix_products(self.precision):
            losses, right = vmap(measure)(self.theta, self.factors)
        return losses, right

    def _logits(self, row: Tensor, factor: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        return functional_call(self.template, self._state(row, factor), inputs)

    def _state(self, row: Tensor, factor: Tensor) -> dict[str, Tensor]:
        state = self.layout.unpack(row)
        state = {name: value * factor if name in self.multiplied else value for name, value in state.items()}
        return {name: value.to(self.compute) for name, value in state.items()}

    def _loss(self, row: Tensor, factor: Tensor, inputs: tuple[Tensor, ...], labels: Tensor) -> Tensor:
        return token_loss(self._logits(row, factor, inputs), labels)

    def _advance(self) -> None:
        """One step of every model. No number leaves the device, so that a graph can hold it."""
        assert self._chunk is not None
        place = (self.step % CHUNK).view(1)
        batch = self._chunk.map(lambda tokens: tokens.index_select(0, place)[0].index_select(0, self._which))
        gradients, losses = vmap(grad_and_value(self._loss))(self.theta, self.factors, batch.inputs, batch.labels)
        with torch.no_grad():
            norm = torch.linalg.vector_norm(gradients, dim=1)
            watched = torch.linalg.vector_norm(gradients * self.watch, dim=1)
            self.alive &= losses.isfinite() & norm.isfinite()
            self._seen.index_copy_(1, place, torch.stack([losses, watched, self.alive.to(losses)]).unsqueeze(1))
            self._update(gradients * (CLIP / (norm + 1e-6)).clamp(max=1).unsqueeze(1))
            self.step += 1

    def _update(self, gradients: Tensor) -> None:
        """AdamW on every row; a frozen row has gradient 0 and learning rate 0, and so stays as it is."""
        dead = ~self.alive.unsqueeze(1)
        gradients = gradients.masked_fill(dead, 0)
        at = self.step.clamp(max=self.rates.shape[1] - 1).view(1)
        lr = self.rates.index_select(1, at).masked_fill(dead, 0)
        self.first.lerp_(gradients, 1 - BETAS[0])
        self.second.mul_(BETAS[1]).addcmul_(gradients, gradients, value=1 - BETAS[1])
        taken = (self.step + 1).double()
        corrections = [(1 - beta**taken).to(self.theta.dtype) for beta in BETAS]
        size = self.second.sqrt().div_(corrections[1].sqrt()).add_(EPSILON)
        self.theta.mul_(1 - lr * DECAY).sub_(lr / corrections[0] * self.first / size)

    def _capture(self) -> None:
        """Record one step as a graph. Trial steps come first, as PyTorch asks, and what they changed is put back.

        Where something in the model cannot be recorded, `captures` becomes False and steps are taken one by one.
        """
        state = (self.theta, self.first, self.second, self.alive, self.step, self._seen)
        before = [tensor.clone() for tensor in state]
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._advance()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        try:
            with torch.cuda.graph(graph):
                self._advance()
            self._graph = graph
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            self.captures = False
        for tensor, old in zip(state, before, strict=True):
            tensor.copy_(old)
