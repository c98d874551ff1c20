"""A small transformer driven too hot, beside the same one left alone and the same one with the valve.

The task: repeat the first half of a random sequence, which needs attention. The learning rate of W_q and W_k is thirty times
that of the rest, so logits grow until every row is an arg-max and nothing more is learned. In float32 the loss does not
become infinite; it stays where guessing is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isotherm.monitor.monitor import watch
from isotherm.monitor.valve import Valve
from isotherm.record.watch_demo import DemoRun, DemoTrio

STEPS = 300
TOO_HIGH = 30.0
TAU = 30.0
EVERY = 5


@dataclass(frozen=True)
class DemoSize:
    """A transformer, its batches, and where it trains."""

    layers: int = 2
    heads: int = 2
    width: int = 32
    symbols: int = 16
    length: int = 32
    period: int = 17
    batch: int = 16
    rate: float = 3e-3
    device: str = "cpu"


SMALL = DemoSize()


class _Attention(nn.Module):
    """Causal attention under 1/√d."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            made(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for made in (self.query, self.key, self.value)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class _Block(nn.Module):
    """Attention and a small network, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = _Attention(width, heads)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.network(self.norms[1](x))


class SmallTransformer(nn.Module):
    """A decoder without QK-norm."""

    def __init__(self, size: DemoSize) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(size.symbols, size.width), nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(_Block(size.width, size.heads) for _ in range(size.layers))
        self.head = nn.Sequential(nn.LayerNorm(size.width), nn.Linear(size.width, size.symbols, bias=False))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.symbols(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def demonstrate(
    seeds: int = 5,
    steps: int = STEPS,
    *,
    size: DemoSize = SMALL,
    folder: Path | None = None,
    progress: Callable[[str], object] = lambda _: None,
) -> list[DemoTrio]:
    """Train three runs for each seed; with a folder, each run has its store there."""
    trios = []
    for seed in range(seeds):
        runs = []
        for name, heat, valve in (("alone", 1.0, None), ("hot", TOO_HIGH, None), ("held", TOO_HIGH, Valve(TAU))):
            store = None if folder is None else folder / f"{name}-{seed}.db"
            runs.append(train(seed, steps, heat, valve, store, size))
            progress(name)
        trios.append(DemoTrio(seed, *runs))
    return trios


def train(
    seed: int,
    steps: int,
    heat: float,
    valve: Valve | None = None,
    store: Path | None = None,
    size: DemoSize = SMALL,
) -> DemoRun:
    """One run. `heat` multiplies the learning rate of W_q and W_k."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SmallTransformer(size).to(size.device)
    heated = {id(weight) for name, weight in model.named_parameters() if ".query." in name or ".key." in name}
    groups = [
        {
            "params": [weight for weight in model.parameters() if (id(weight) in heated) == hot],
            "heat": heat if hot else 1.0,
        }
        for hot in (False, True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=size.rate, betas=(0.9, 0.95), weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    every, rows = (1, None) if valve is not None else (EVERY, 64)
    with watch(model, every=every, rows=rows, store=store, valve=valve) as monitor:
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = size.rate * group["heat"] * min(1.0, (step + 1) / 30)
            loss = _loss(model, size, generator)
            optimizer.zero_grad()
            loss.backward()
            monitor.log(loss)
            optimizer.step()
            losses.append(loss.item())
    alerts = [event.step for event in monitor.events if event.kind == "alert"]
    largest = 0.0 if monitor.latest is None else float(monitor.latest.values["max_logit"].max())
    return DemoRun(tuple(losses), min(alerts, default=None), largest)


def _loss(model: nn.Module, size: DemoSize, generator: torch.Generator) -> Tensor:
    said = torch.randint(size.symbols, (size.batch, size.period), generator=generator)
    times = -(-(size.length + 1) // size.period)
    tokens = said.repeat(1, times)[:, : size.length + 1].to(size.device)
    with torch.autocast("cuda", torch.bfloat16, enabled=size.device == "cuda"):
        logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.float().reshape(-1, size.symbols), tokens[:, 1:].reshape(-1))
