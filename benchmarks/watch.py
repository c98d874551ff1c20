"""What a monitor costs a training run: the same steps with and without one, in turns.

Two models begin with the same weights and see the same batches; one is watched. A block of steps is timed as a whole,
readings included, and the two take turns. The ratio is that of the medians of the blocks. `--same` compares losses and
weights bit by bit instead, with deterministic kernels.

    PYTHONPATH=src python benchmarks/watch.py [cpu|cuda] [--blocks N] [--profile] [--out benchmarks/results/watch_cuda]
"""

import argparse
import csv
import json
import platform
import subprocess
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isotherm

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Size:
    """A GPT, and the batches that it is trained on."""

    layers: int
    heads: int
    width: int
    vocabulary: int
    batch: int
    length: int


SIZES = {"cuda": Size(12, 12, 768, 50304, 16, 1024), "cpu": Size(4, 4, 128, 512, 8, 128)}
PLANS = {
    "cuda": [("compiled", 50, 128), ("compiled", 1, 128), ("compiled", 1, None), ("eager", 50, 128)],
    "cpu": [("eager", 50, 128)],
}
"""For each device: compiled or eager, how often a step is looked at, how many rows of each head."""


@dataclass(frozen=True)
class Row:
    """One line of the table: milliseconds of a step, what the steps took against those without a monitor, and memory."""

    way: str
    every: int
    rows: str
    plain_ms: float
    watched_ms: float
    ratio: float
    memory_ratio: float
    steps: int


class Block(nn.Module):
    """Attention and a network, as in GPT-2."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, width = size.heads, size.width
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.network(self.norm2(x))


class GPT(nn.Module):
    """A decoder that returns its loss."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary, bias=False)
        self.head.weight = self.symbols.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.symbols(tokens[:, :-1]) + self.places(torch.arange(tokens.shape[1] - 1, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())


class Run:
    """One model in training."""

    def __init__(self, size: Size, device: str, way: str) -> None:
        torch.manual_seed(0)
        self.size, self.device = size, device
        self.core = GPT(size).to(device)
        self.model = torch.compile(self.core, fullgraph=True) if way == "compiled" else self.core
        self.optimizer = torch.optim.AdamW(self.core.parameters(), lr=3e-4, fused=True)
        self.random = torch.Generator(device).manual_seed(0)
        self.losses: list[Tensor] = []

    def steps(self, count: int, monitor: isotherm.monitor.Monitor | None) -> float:
        """Seconds for some steps; on a CPU, which others use too, those of this process."""
        now = time.perf_counter if self.device == "cuda" else time.process_time
        shape = (self.size.batch, self.size.length + 1)
        half = nullcontext() if self.device == "cpu" else torch.autocast("cuda", torch.bfloat16)
        self.wait()
        started = now()
        for _ in range(count):
            tokens = torch.randint(self.size.vocabulary, shape, device=self.device, generator=self.random)
            with half:
                loss = self.model(tokens)
            loss.backward()
            if monitor is not None:
                monitor.log(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.detach().clone())
        self.wait()
        return now() - started

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def measure(runs: tuple[Run, Run], way: str, every: int, rows: int | None, blocks: int) -> Row:
    """Time blocks of the two runs in turns."""
    plain, watched = runs
    length = 50
    times: list[list[float]] = [[], []]
    peaks = [0.0, 0.0]
    state = sum(parameter.numel() for parameter in plain.core.parameters()) * 16
    with isotherm.watch(watched.model, every=every, rows=rows) as monitor:
        for number in range(blocks + 1):
            for which, run in enumerate(runs if number % 2 else runs[::-1]):
                place = which if number % 2 else 1 - which
                if run.device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                seconds = run.steps(length, monitor if run is watched else None)
                if number:  # the first block compiles and warms up
                    times[place].append(seconds)
                    if run.device == "cuda":
                        peaks[place] = max(peaks[place], torch.cuda.max_memory_allocated() - before + state)
        assert monitor.latest is not None, monitor.events
        print(way, every, rows, "latest reading:", monitor.latest.step, {k: v[:2] for k, v in monitor.latest.values.items()},
              {k: v[:2] for k, v in monitor.latest.gradients.items()}, monitor.events[:3], flush=True)  # fmt: skip
    a, b = (1e3 * median(one) / length for one in times)
    memory = peaks[1] / peaks[0] if peaks[0] else float("nan")
    return Row(way, every, "all" if rows is None else str(rows), round(a, 3), round(b, 3), round(b / a, 5),
               round(memory, 5), blocks * length)  # fmt: skip


def same(way: str, every: int, rows: int | None, steps: int = 200) -> bool:
    """Whether losses and weights are those of a run without a monitor, on a CUDA device."""
    torch.use_deterministic_algorithms(True)
    found = []
    for watches in (True, False):
        torch._dynamo.reset()
        run = Run(Size(2, 4, 256, 512, 4, 128), "cuda", way)
        with isotherm.watch(run.model, every=every, rows=rows) if watches else nullcontext() as monitor:
            run.steps(steps, monitor)
        assert monitor is None or monitor.latest is not None
        found.append([torch.stack(run.losses), *(parameter.detach() for parameter in run.core.parameters())])
    torch.use_deterministic_algorithms(False)
    return all(map(torch.equal, *found))


def profile(run: Run, every: int, rows: int | None) -> None:
    """Say what a look costs on the device and on the host."""
    import cProfile
    import pstats

    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as traced

    with isotherm.watch(run.model, every=every, rows=rows) as monitor:
        run.steps(3, monitor)
        looked = cProfile.Profile()
        looked.enable()
        run.steps(2 if every == 1 else every, monitor)
        looked.disable()
        pstats.Stats(looked).sort_stats("cumulative").print_stats(28)
        with traced(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as device:
            run.steps(2, monitor)
        print(device.key_averages().table(sort_by="cuda_time_total", row_limit=22, max_name_column_width=60))


def provenance(device: str, commit: str) -> dict[str, object]:
    """Where and with what the numbers were measured."""
    if not commit:
        git = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "dtype": "bfloat16 autocast" if device == "cuda" else "float32",
        "model": asdict(SIZES[device]),
    }


def main() -> None:
    """Time every plan of a device, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--plans", default="", help="numbers of the plans, such as 0,2")
    parser.add_argument("--commit", default="")
    parser.add_argument("--out", default="")
    parser.add_argument("--same", action="store_true")
    asked = parser.parse_args()
    plans = PLANS[asked.device]
    chosen = [int(one) for one in asked.plans.split(",")] if asked.plans else range(len(plans))
    if asked.same:
        for way, every, rows in PLANS["cuda"]:
            print(way, every, rows, "the same bit for bit:", same(way, every, rows), flush=True)
        return
    table: list[Row] = []
    for way, every, rows in (plans[place] for place in chosen):
        torch._dynamo.reset()
        pair = Run(SIZES[asked.device], asked.device, way), Run(SIZES[asked.device], asked.device, way)
        table.append(measure(pair, way, every, rows, asked.blocks))
        print(table[-1], flush=True)
        if asked.profile:
            profile(pair[1], every, rows)
        del pair
        if asked.out:
            write(Path(asked.out), table, provenance(asked.device, asked.commit))


def write(path: Path, table: list[Row], about: dict[str, object]) -> None:
    """Write the rows so far."""
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(table[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in table)
    path.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
