"""Times what a user of `attention` waits for on a GPU: training steps, plain calls, and head dimensions of many models.

Every row of the tables that this script prints is a ratio to the first way of its place, taken in turns: PyTorch's
`scaled_dot_product_attention` or, where blocks of keys are hidden, FlexAttention with the same block mask. Training: GPT-2
small, 16 × 1,024 tokens, bfloat16, with three statistics of every layer summed up in every step; eight steps are queued one
after another, as by a loop that reads its loss now and then, or each step is waited for. Calls: queued one after another
without waiting, so that Python counts where it is slower than the GPU. Graphs and blocks: replays of one call as a CUDA
graph, where Python counts for nothing.

    python benchmarks/training_gpu.py --commit $(git rev-parse HEAD) --out benchmarks/results/training_h200
"""

import argparse
import csv
import json
import platform
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import isotherm

HALF = torch.bfloat16
WAYS = ("sdpa", "statistics", "64 rows")
"""What each attention of the model returns: no statistics, those of every row, those of 64 rows."""
Times = dict[str, float]


class Block(nn.Module):
    """One layer of GPT-2. Its buffer keeps three statistics of the last step for each head."""

    seen: Tensor

    def __init__(self, way: str, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.way, self.heads = way, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.register_buffer("seen", torch.zeros(3, heads), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, D]."""
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.way == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            rows = 64 if self.way == "64 rows" else None
            found = isotherm.attention(q, k, v, causal=True, stats=rows is None, rows=rows)
            y, stats = found.output, found.stats
            assert stats is not None
            each = stats.max_logit.amax((0, 2)), stats.entropy.mean((0, 2)), stats.jacobian_trace.mean((0, 2))
            self.seen.copy_(torch.stack(each))
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    """GPT-2 small without positions."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(50304, 768)
        self.blocks = nn.Sequential(*(Block(way) for _ in range(12)))
        self.norm = nn.LayerNorm(768)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token."""
        return F.linear(self.norm(self.blocks(self.embed(tokens))), self.embed.weight)


def step_of(way: str, *, compiled: bool) -> Callable[[], Tensor]:
    """One training step of a new model."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 50304, (16, 1024), device="cuda")
    model = Gpt(way).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    forward = torch.compile(model) if compiled else model

    def step() -> Tensor:
        with torch.autocast("cuda", HALF):
            loss = F.cross_entropy(forward(tokens).flatten(0, 1).float(), tokens.roll(-1, 1).flatten())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss

    return step


def in_turns(ways: dict[str, Callable[[], object]], *, turns: int, at_once: int = 1) -> Times:
    """Median milliseconds of each way, `at_once` calls queued between two waits for the GPU."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, run in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(at_once):
                run()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / at_once * 1e3)
    return {name: sorted(found)[len(found) // 2] for name, found in times.items()}


def training(*, compiled: bool) -> dict[str, Times]:
    """Milliseconds of a training step, queued and waited for; a way that fails says why and is left out."""
    steps: dict[str, Callable[[], object]] = {}
    for way in WAYS:
        torch._dynamo.utils.counters.clear()
        start = time.perf_counter()
        try:
            step = step_of(way, compiled=compiled)
            loss = [float(step().detach()) for _ in range(6)][-1]
        except Exception:
            traceback.print_exc()
            continue
        breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
        took = time.perf_counter() - start
        print(f"  {way}: loss {loss:.4f}, {breaks} graph breaks, ready after {took:.1f} s", flush=True)
        steps[way] = step
    return {
        "eight queued": in_turns(steps, turns=8, at_once=8),
        "each waited for": in_turns(steps, turns=30),
    }


def draw(b: int, h: int, hk: int, n: int, d: int, dv: int, *, grad: bool = False) -> list[Tensor]:
    """q, k and v as views of one projection of each token, as models make them."""
    shapes = ((h, d), (hk, d), (hk, dv))
    return [
        torch.randn(b, n, heads, width, device="cuda", dtype=HALF).transpose(1, 2).requires_grad_(grad)
        for heads, width in shapes
    ]


def calls(shape: tuple[int, ...], *, causal: bool, backward: bool) -> Times:
    """Milliseconds of queued calls with a shape (b, h, hk, n, d, dv)."""
    q, k, v = draw(*shape, grad=backward)
    out = torch.randn(shape[0], shape[3], shape[1], shape[5], device="cuda", dtype=HALF).transpose(1, 2)

    def run(attend: Callable[[], Tensor]) -> Callable[[], object]:
        def both() -> object:
            return torch.autograd.grad(attend(), (q, k, v), out)

        return both if backward else attend

    gqa = shape[1] != shape[2]
    ways = {
        "sdpa": run(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa)),
        "statistics": run(lambda: isotherm.attention(q, k, v, causal=causal, stats=True).output),
        "64 rows": run(lambda: isotherm.attention(q, k, v, causal=causal, rows=64).output),
    }
    for way in ways.values():
        for _ in range(3):
            way()
    return in_turns(ways, turns=15, at_once=50)


def graphs(shape: tuple[int, ...], *, causal: bool) -> Times:
    """Milliseconds of graph replays with a shape (b, h, hk, n, d, dv)."""
    q, k, v = draw(*shape)
    gqa = shape[1] != shape[2]
    ways: dict[str, Callable[[], object]] = {
        "sdpa": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa),
        "statistics": lambda: isotherm.attention(q, k, v, causal=causal, stats=True),
    }
    return in_turns({name: replay(way) for name, way in ways.items()}, turns=40)


def blocks(hides: str) -> Times:
    """Milliseconds of graph replays of causal calls with packed documents or a window, which hide whole blocks of keys."""
    b, h, n, d = BLOCKS_SHAPE
    q, k, v = draw(b, h, h, n, d, d)
    place = torch.arange(n, device="cuda") // (n // DOCUMENTS)

    def visible(_: Tensor, __: Tensor, i: Tensor, j: Tensor) -> Tensor:
        near = place[i] == place[j] if hides == "documents" else i - j < WINDOW
        return (i >= j) & near

    mask = create_block_mask(visible, None, None, n, n, device="cuda")
    flex = torch.compile(flex_attention, dynamic=False)
    starts = torch.arange(0, n + 1, n // DOCUMENTS, device="cuda")
    asked: dict[str, Any] = {"documents": starts} if hides == "documents" else {"window": WINDOW}
    ways: dict[str, Callable[[], object]] = {
        "flex": lambda: flex(q, k, v, block_mask=mask),
        "statistics": lambda: isotherm.attention(q, k, v, causal=True, stats=True, **asked),
        "no statistics": lambda: isotherm.attention(q, k, v, causal=True, impl="triton", **asked),
    }
    with torch.no_grad():
        apart = (ways["flex"]() - ways["statistics"]().output).abs().max()  # type: ignore[operator,attr-defined]
        if not apart < 2e-2:
            raise AssertionError(f"other numbers than FlexAttention's, not timed: {float(apart)}")
        return in_turns({name: replay(way) for name, way in ways.items()}, turns=40)


def replay(way: Callable[[], object]) -> Callable[[], object]:
    """The calls of a function as a graph."""
    for _ in range(2):
        way()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        way()
    return graph.replay


GPT2, LLAMA = (8, 12, 12, 1024, 64, 64), (2, 32, 32, 2048, 128, 128)
CALLS = {"b 8 h 12 n 1,024 d 64": GPT2, "b 2 h 32 n 2,048 d 128": LLAMA}
GRAPHS = {
    "d 80, n 4,096": ((1, 16, 16, 4096, 80, 80), False),
    "d 80, n 4,096, causal": ((1, 16, 16, 4096, 80, 80), True),
    "d 96, n 4,096": ((1, 16, 16, 4096, 96, 96), False),
    "d 96, n 4,096, causal": ((1, 16, 16, 4096, 96, 96), True),
    "d 256, 8/1 heads, n 4,096": ((1, 8, 1, 4096, 256, 256), False),
    "d 256, 8/1 heads, n 4,096, causal": ((1, 8, 1, 4096, 256, 256), True),
    "q·k 192, v 128, n 4,096, causal": ((1, 16, 16, 4096, 192, 128), True),
    "b 4 h 16 n 2,048 d 128": ((4, 16, 16, 2048, 128, 128), False),
    "b 8 h 12 n 1,024 d 64, causal": (GPT2, True),
}
"""Shapes and whether they are causal."""


BLOCKS_SHAPE = 1, 16, 8192, 128
DOCUMENTS, WINDOW = 16, 1024
BLOCKS = {
    "16 documents, h 16 n 8,192 d 128, causal": "documents",
    "a window of 1,024, h 16 n 8,192 d 128, causal": "window",
}


def rows(only: set[str]) -> list[dict[str, object]]:
    """Every row of the table: kind, what, way, milliseconds and the ratio to the first way."""
    jobs: list[tuple[str, Callable[[], dict[str, Times]]]] = []
    for compiled in (True, False):
        what = "GPT-2 small, 16 × 1,024, " + ("compiled" if compiled else "eager")

        def train(compiled: bool = compiled, what: str = what) -> dict[str, Times]:
            return {f"{what}, {how}": found for how, found in training(compiled=compiled).items()}

        jobs.append(("training", train))
    for what, shape in CALLS.items():
        for back in (False, True):
            name = what + (", with backward" if back else "")
            jobs.append(("calls", lambda n=name, s=shape, b=back: {n: calls(s, causal=True, backward=b)}))  # type: ignore[misc]
    for what, (shape, causal) in GRAPHS.items():
        jobs.append(("graphs", lambda n=what, s=shape, c=causal: {n: graphs(s, causal=c)}))  # type: ignore[misc]
    for what, hides in BLOCKS.items():
        jobs.append(("blocks", lambda n=what, of=hides: {n: blocks(of)}))  # type: ignore[misc]
    table: list[dict[str, object]] = []
    for kind, job in jobs:
        if only and kind not in only:
            continue
        try:
            every = job()
        except Exception:
            traceback.print_exc()
            continue
        for what, found in every.items():
            for way, ms in found.items():
                ratio = ms / next(iter(found.values()))
                table.append({"kind": kind, "what": what, "way": way, "ms": round(ms, 4), "ratio": round(ratio, 3)})
            print(f"{kind}: {what}: " + ", ".join(f"{way} {ms:.3f}" for way, ms in found.items()), flush=True)
            print("    ratios: " + ", ".join(f"{r['way']} {r['ratio']}" for r in table[-len(found) :]), flush=True)
    return table


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", action="append", default=[], choices=("training", "calls", "graphs", "blocks"))
    given = parser.parse_args()
    table = rows(set(given.only))
    if given.out is None:
        return
    with given.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["kind", "what", "way", "ms", "ratio"])
        writer.writeheader()
        writer.writerows(table)
    provenance = {
        "commit": given.commit,
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "command": "benchmarks/training_gpu.py",
    }
    given.out.with_suffix(".json").write_text(json.dumps(provenance, indent=2) + "\n")


if __name__ == "__main__":
    main()
