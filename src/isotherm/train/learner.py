"""A model and its optimizer: weights, AdamW's moments and the loss scale, to be stepped, saved and restored together."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from math import cos, inf, pi, sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from isotherm.errors import ArgumentError, IsothermError
from isotherm.language import Text
from isotherm.models import Bert, Shape, build, smoothed_cross_entropy, warm_up
from isotherm.train.batches import Batch
from isotherm.train.config import TASKS, Config, OptimizerSettings
from isotherm.train.processes import Processes
from isotherm.train.tokens import PAD

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class FillsGaps(nn.Module):
    """BERT as a masked language model: tokens [B, T] to logits [B, T, V]. Its pooler has no part in that."""

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        self.bert = bert
        bert.pooler.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Which word stood at each place."""
        return self.bert.logits(self.bert(tokens))


def make_model(config: Config, vocabulary: int) -> nn.Module:
    """The model a configuration describes, with fresh weights."""
    model, data = config.model, config.data
    shape = Shape(
        vocabulary=vocabulary,
        width=model.width,
        heads=model.heads,
        layers=model.layers,
        hidden=model.hidden,
        head_dim=model.head_dim,
        longest=4 * data.length + 8 if data.kind in TASKS else 2 * data.length + 2,
        pad=PAD,
        dropout=model.dropout,
        norm=model.norm,
    )
    made = build(model.kind, shape, model.rule)
    return FillsGaps(made) if isinstance(made, Bert) else made


def rate(optimizer: OptimizerSettings, step: int, steps: int) -> float:
    """The learning rate of a step, counted from 1, of `steps` in all.

    >>> [round(rate(OptimizerSettings(lr=1.0, warmup=4), step, 100), 3) for step in (1, 4, 16)]
    [0.25, 1.0, 0.5]
    """
    lr, warmup = optimizer.lr, max(optimizer.warmup, 1)
    if optimizer.schedule == "noam" or step < warmup:
        return warm_up(step, width=1, warmup=warmup, factor=lr * sqrt(warmup))
    if optimizer.schedule == "constant":
        return lr
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return lr * (0.1 + 0.9 * (1 + cos(pi * done)) / 2)


class Learner:
    """A model and its optimizer on one device, among however many processes."""

    def __init__(self, config: Config, vocabulary: int, processes: Processes) -> None:
        self.config, self.processes = config, processes
        torch.manual_seed(config.run.seed)
        self.model = make_model(config, vocabulary).to(processes.device)
        self._names = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        self.optimizer = _adamw(config.optimizer, self._names, fused=processes.device.type == "cuda")
        half = config.run.precision == "float16"
        if half and processes.device.type != "cuda":
            expected = Text("float32 or bfloat16 without a CUDA device", "没有 CUDA 设备时须为 float32 或 bfloat16")
            raise ArgumentError("run.precision", expected, got="float16")
        self.scaler = torch.amp.GradScaler(processes.device.type, enabled=half)
        self.fast: Any = torch.compile(self.model, dynamic=True) if config.run.compile else self.model
        self._run = self.fast
        if processes.world > 1:
            own = [processes.device] if processes.device.type == "cuda" else None
            self._run = DistributedDataParallel(self.fast, device_ids=own)
        torch.manual_seed(config.run.seed + 1_000_003 * (processes.rank + 1))  # dropout differs between processes

    def step(self, pieces: Sequence[Batch], tokens: int, lr: float) -> tuple[Tensor, Tensor]:
        """Take one step. Returns this process's part of the mean loss per token, and the gradient's norm.

        The pieces are this process's share of a batch with `tokens` tokens in all. How the batch is divided changes the
        result by rounding only.
        """
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        total = torch.zeros((), device=self.processes.device)
        for place, piece in enumerate(pieces):
            with self._together(last=place == len(pieces) - 1):
                loss = self._loss(self._run, piece, self.config.optimizer.smoothing) * (piece.tokens / tokens)
                # Gradients are averaged over processes, and each has counted the tokens of all.
                self.scaler.scale(loss * self.processes.world).backward()
            total += loss.detach()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self._names.values(), self.config.optimizer.clip or inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return total, norm

    @torch.no_grad()
    def measure(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean loss per token, without smoothing or dropout, and the number of tokens predicted right."""
        self.model.eval()
        logits, labels = self._logits(self.fast, batch)
        right = ((logits.argmax(-1) == labels) & (labels != PAD)).sum()
        return smoothed_cross_entropy(logits, labels, smoothing=0.0, pad=PAD), right

    def _loss(self, model: Any, batch: Batch, smoothing: float) -> Tensor:
        logits, labels = self._logits(model, batch)
        return smoothed_cross_entropy(logits, labels, smoothing=smoothing, pad=PAD)

    def _logits(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        there = batch.to(self.processes.device)
        with self.precision():
            return model(*there.inputs).float(), there.labels

    def precision(self) -> AbstractContextManager[Any]:
        """Autocast to the run's precision."""
        dtype = DTYPES[self.config.run.precision]
        if dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.processes.device.type, dtype)

    def _together(self, *, last: bool) -> AbstractContextManager[Any]:
        """Let processes exchange gradients once a step, with the last piece."""
        if isinstance(self._run, DistributedDataParallel) and not last:
            return self._run.no_sync()
        return nullcontext()

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training changes, by name: weights, buffers, AdamW's moments, the loss scale."""
        found = {f"model.{name}": tensor for name, tensor in _held(self.model)}
        for name, weight in self._names.items():
            state = self.optimizer.state[weight]
            found |= {
                f"optimizer.{kind}.{name}": state[kind].reshape(-1) if kind == "step" else state[kind]
                for kind in MOMENTS
                if kind in state
            }
        if self.scaler.is_enabled():
            state = self.scaler.state_dict()
            found["scaler"] = torch.tensor([state["scale"], state["_growth_tracker"]], dtype=torch.float64)
        return found

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back everything that `tensors` returned."""
        restore_model(self.model, tensors)
        for name, weight in self._names.items():
            for kind in MOMENTS:
                saved = tensors.get(f"optimizer.{kind}.{name}")
                if saved is None:
                    continue
                on_weight = kind != "step" or self.optimizer.defaults["fused"]
                _check_shape(f"optimizer.{kind}.{name}", saved, [1] if kind == "step" else list(weight.shape))
                saved = saved.reshape(()) if kind == "step" else saved
                self.optimizer.state[weight][kind] = saved.to(weight.device if on_weight else "cpu", copy=True)
        if self.scaler.is_enabled() and "scaler" in tensors:
            scale, tracker = tensors["scaler"].tolist()
            self.scaler.load_state_dict(self.scaler.state_dict() | {"scale": scale, "_growth_tracker": int(tracker)})


@torch.no_grad()
def restore_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put the weights and buffers of a checkpoint into a model; shapes must agree."""
    for name, tensor in _held(model):
        saved = tensors.get(f"model.{name}")
        tensor.copy_(_check_shape(name, saved, list(tensor.shape)))


def _check_shape(name: str, saved: Tensor | None, shape: list[int]) -> Tensor:
    if saved is not None and list(saved.shape) == shape:
        return saved
    why = Text(
        "the checkpoint is of another model: {name} should have shape {shape}, it has {got}",
        "检查点属于另一个模型：{name} 的形状应为 {shape}，实为 {got}",
    )
    got = Text("nothing", "无") if saved is None else list(saved.shape)
    raise IsothermError(why.format(name=name, shape=shape, got=got))


def _held(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, each once even if two modules share it, without buffers that are not saved (sinusoids)."""
    kept = model.state_dict(keep_vars=True)
    return ((name, tensor) for name, tensor in chain(model.named_parameters(), model.named_buffers()) if name in kept)


def _adamw(settings: OptimizerSettings, weights: Mapping[str, nn.Parameter], *, fused: bool) -> torch.optim.AdamW:
    """Matrices decay; gains, biases and scales do not."""
    groups = [
        {"params": [weight for weight in weights.values() if weight.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [weight for weight in weights.values() if weight.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.eps, fused=fused
    )
