"""Times output and exact statistics on the CPU against PyTorch's own kernel, with memory and correctness, in one run.

Writes one tidy row per (provider, shape) to benchmarks/results/attention_cpu.csv, the machine and versions to
attention_cpu.json, and prints the ratios. A provider is timed only after its result was compared with float64.
"""

import csv
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from isotherm import attention
from isotherm.stats import RowStats

HERE = Path(__file__).parent
HEADS, DIM, THREADS, REPEATS = 12, 64, 2, 5
CHECKED_ROWS = 64
LONGEST_TIMED = 4096
"""Beyond this only memory is measured."""
Tensors = tuple[Tensor, Tensor, Tensor]


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, RowStats | None]:
    """PyTorch's fused kernel, without statistics: the baseline."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal), None


def exact(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, RowStats | None]:
    """Output and statistics of every row."""
    return attention(q, k, v, causal=causal, stats=True)[:2]


def sampled(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, RowStats | None]:
    """Output, and statistics of one row in sixteen."""
    return attention(q, k, v, causal=causal, rows=q.shape[2] // 16)[:2]


def tiled(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, RowStats | None]:
    """Our tiles without statistics. The difference to `exact` is the cost of the statistics."""
    return attention(q, k, v, causal=causal, impl="blockwise")[:2]


def materialised(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, RowStats | None]:
    """The weights held as a matrix, and the same statistics computed from it."""
    s = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    p = torch.softmax(s, -1)
    _ = (s.amax(-1), p.amax(-1), s.logsumexp(-1), s.mean(-1), s.std(-1), -(p * p.clamp(min=1e-38).log()).sum(-1))
    _ = (p.square().sum(-1), p[..., 0])
    return p @ v, None


PROVIDERS: dict[str, Callable[..., tuple[Tensor, RowStats | None]]] = {
    "sdpa": sdpa,
    "isotherm exact": exact,
    "isotherm sampled 1/16": sampled,
    "isotherm no statistics": tiled,
    "materialised": materialised,
}


def inputs(n: int) -> Tensors:
    """Return random q, k, v. Zeros would hide errors and run faster."""
    generator = torch.Generator().manual_seed(n)
    q, k, v = (torch.randn(1, HEADS, n, DIM, generator=generator) for _ in range(3))
    return q, k, v


def check(provider: str, n: int, causal: bool) -> float:
    """Return the largest error of the output against float64 on some rows. Fail if it is more than rounding."""
    q, k, v = inputs(n)
    output, stats = PROVIDERS[provider](q, k, v, causal=causal)
    rows = torch.linspace(0, n - 1, CHECKED_ROWS).long()
    mask = rows.view(-1, 1) >= torch.arange(n) if causal else None
    want = attention(q[:, :, rows].double(), k.double(), v.double(), mask=mask, stats=True, impl="reference")
    error = (output[:, :, rows].double() - want.output).abs().max().item()
    assert error < 1e-5, (provider, n, error)
    if stats is not None and stats.rows is None and want.stats is not None:
        off = (stats.entropy[:, :, rows] - want.stats.entropy).abs().max().item()
        assert off < 1e-5, (provider, n, off)
    return error


def milliseconds(provider: str, n: int, causal: bool) -> list[float]:
    """Time repeated calls and sort the times. The check before them was the warm-up."""
    q, k, v = inputs(n)
    times = []
    for _ in range(2 if provider == "materialised" else REPEATS):
        start = time.perf_counter()
        PROVIDERS[provider](q, k, v, causal=causal)
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)


def extra_mib(provider: str, n: int, causal: bool) -> float:
    """Measure memory beyond inputs and outputs in a fresh process, so that no earlier peak counts."""
    command = [sys.executable, __file__, "--memory", provider, str(n), str(int(causal))]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measure_memory(provider: str, n: int, causal: bool) -> None:
    """Print how much the peak grows in this process, less the output and the statistics returned."""
    torch.set_num_threads(THREADS)
    PROVIDERS[provider](*inputs(64), causal=causal)  # loads libraries and starts threads
    q, k, v = inputs(n)
    before = current_mib()
    reset_peak()
    output, stats = PROVIDERS[provider](q, k, v, causal=causal)
    kept = output.numel() * 4 / 2**20
    if stats is not None:
        kept += stats.entropy.numel() * (11 * 8 + 1) / 2**20
    print(peak_mib() - before - kept)


def current_mib() -> float:
    """Return resident memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def reset_peak() -> None:
    """Reset the operating system's high-water mark (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float:
    """Return the operating system's high-water mark since `reset_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def provenance() -> dict[str, str | int]:
    """Record machine, versions and sizes."""
    git = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False)
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip(),
        "cpu": cpu or platform.processor(),
        "threads": THREADS,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "heads": HEADS,
        "dim": DIM,
        "dtype": "float32",
    }


def say(what: str, item: tuple[str, int, bool]) -> tuple[str, int, bool]:
    """Print what is being measured, and return it."""
    print(f"{what}: {item[0]}, n = {item[1]}{', causal' if item[2] else ''} …", file=sys.stderr)
    return item


def main() -> None:
    """Check, time, measure, print, write."""
    torch.set_num_threads(THREADS)
    base = 1.0
    shapes = [(4096, False), (4096, True), (8192, False), (16384, False), (32768, False)]
    work = [
        (provider, n, causal)
        for n, causal in shapes
        for provider in PROVIDERS
        if (n == 4096 and not (causal and provider == "materialised"))
        or provider in ("sdpa", "isotherm exact", "isotherm sampled 1/16")
    ]
    # Memory first: once this process has computed, its idle threads spin for a while and slow its children down.
    memory = {item: extra_mib(*say("memory", item)) for item in work}
    rows = []
    for provider, n, causal in work:
        if n > LONGEST_TIMED:
            rows.append([provider, n, causal, "", "", "", "", memory[provider, n, causal], ""])
            continue
        error = check(*say("time", (provider, n, causal)))
        times = milliseconds(provider, n, causal)
        median = statistics.median(times)
        base = median if provider == "sdpa" else base
        extra = memory[provider, n, causal]
        rows.append([provider, n, causal, times[0], median, times[-1], median / base, extra, error])
    header = ["provider", "n", "causal", "ms_min", "ms_median", "ms_max", "ratio_to_sdpa", "extra_mib", "output_error"]
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    with (results / "attention_cpu.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([[f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows])
    (results / "attention_cpu.json").write_text(json.dumps(provenance(), indent=2) + os.linesep)
    show(rows)


def show(rows: list[list[str | int | float | bool]]) -> None:
    """Print the rows as a table."""
    table = Table(box=box.SIMPLE_HEAD, title=", ".join(f"{k} {v}" for k, v in provenance().items()), title_style="dim")
    for name in ("provider", "n", "causal", "median ms", "× sdpa", "extra MiB", "error"):
        table.add_column(name, justify="left" if name == "provider" else "right")
    for provider, n, causal, _, median, _, ratio, memory, error in rows:
        timed = isinstance(ratio, float)
        cells = (
            (f"{median:.0f}", f"{ratio:.2f}", f"{memory:.0f}", f"{error:.1e}")
            if timed
            else ("", "", f"{memory:.0f}", "")
        )
        table.add_row(str(provider), f"{n:,}", "yes" if causal else "no", *cells)
    Console().print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(sys.argv[2], int(sys.argv[3]), bool(int(sys.argv[4])))
    else:
        main()
