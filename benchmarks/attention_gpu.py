"""Times attention with exact row statistics on a GPU, and every other way to compute attention there.

One run writes one tidy table, with a row for each task, provider and shape. A row is timed only after its numbers were
compared with float64. Providers take turns, so that a GPU that heats up slows all of them alike. Times are those of CUDA
graph replays (`device`), where launching from Python costs nothing, and of plain calls (`call`).

    python benchmarks/attention_gpu.py --commit $(git rev-parse HEAD) --out benchmarks/results/h200
"""

import argparse
import csv
import json
import math
import platform
import random
import statistics as st
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend

from attention_peers import HALF, Inputs, Numbers, Shape, eager, flex, identities, numbers, stock, wrong
from isotherm.ops import triton as kernels

GRIDS = {
    "half-octaves": [2.0 ** (i % 2 / 2) / 32 * 2 ** (i // 2) for i in range(8)],
    "evenly spaced": [0.03 + 0.025 * i for i in range(8)],
    "unrelated": [0.03 * 1.34**i for i in range(8)],
    "up to 1": [2.0 ** ((i - 7) / 2) for i in range(8)],
    "unrelated, up to 1": [1.34 ** (i - 7) for i in range(8)],
    "a curve": [0.03 + 0.006 * i for i in range(32)],
}
"""Sets of scales. In the unrelated sets no scale is the sum of two others, and no two differences are equal. Rows freeze in
the two sets that reach 1."""


@dataclass(frozen=True)
class Row:
    """One line of the table; times in milliseconds."""

    task: str
    provider: str
    d: int
    n: int
    heads: int
    causal: bool
    timing: str
    p20: float
    p50: float
    p80: float
    tflops: float
    against_cudnn: float
    extra_mib: float
    error: str


def checked(x: Inputs) -> dict[tuple[str, str], tuple[Callable[[], object], dict[str, float], float]]:
    """Return every (task, provider) whose numbers are right, with how to run it, its errors and its tolerance."""
    truth, few = x.truth(x.few, x.scale), x.few
    tasks: dict[tuple[str, str], tuple[Callable[[], object], dict[str, float], float]] = {}

    def pick(tensor: Tensor) -> Tensor:
        return tensor[0, 0, few].detach()

    def add(
        task: str, provider: str, run: Callable[[], object], found: Numbers, want: Numbers, loose: float = 1.0
    ) -> None:
        errors = {n: (v.double() - want[n]).abs().max().item() for n, v in found.items()}
        if loose == 1.0:
            errors = wrong(found, want)
        elif max(errors.values()) > loose:
            print(f"{task}/{provider}: {errors}, not timed", file=sys.stderr)
            return
        tasks[task, provider] = (run, errors, loose)

    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        run = stock(x, backend)
        with torch.no_grad():
            add("forward", name, run, {"output": pick(run()).double()}, truth)
    for name, make in (("flex", flex), ("identities", identities), ("eager", eager)):
        try:
            run = make(x)
            with torch.no_grad():
                out, found = run()
            add("forward", name, run, {n: pick(t).double() for n, t in (found | {"output": out}).items()}, truth, 0.2)
        except Exception as error:
            print(f"{name}: {error!r}"[:300], file=sys.stderr)
    with torch.no_grad():
        solution = kernels.solve(x.problem, stats=True)
        assert solution.stats is not None
        add(
            "forward",
            "isotherm",
            lambda: kernels.solve(x.problem, stats=True),
            numbers(solution.stats, pick, solution.output),
            truth,
        )
        found_stats = kernels.statistics(x.problem)
        add("statistics", "isotherm", lambda: kernels.statistics(x.problem), numbers(found_stats, pick), truth)
        sampled = kernels.statistics(x.problem, x.rows)
        add("sampled", "isotherm", lambda: kernels.statistics(x.problem, x.rows),
            numbers(sampled, lambda t: t[0, 0]), x.truth(x.rows, x.scale))  # fmt: skip
        for name, scales in GRIDS.items():
            every, some = (kernels.statistics_at(x.problem, scales, rows) for rows in (None, x.rows))
            for scale, got, part in zip(scales, every, some, strict=True):
                wrong(numbers(got, pick), x.truth(few, scale))
                wrong(numbers(part, lambda t: t[0, 0]), x.truth(x.rows, scale))
            add(
                f"{len(scales)} scales, {name}",
                "isotherm",
                lambda scales=scales: kernels.statistics_at(x.problem, scales),
                {},
                {},
            )
            add(f"sampled, {len(scales)} scales, {name}", "isotherm",
                lambda scales=scales: kernels.statistics_at(x.problem, scales, x.rows), {}, {})  # fmt: skip
        hot = replace(x.problem, scale=1.0)  # without 1/√d rows freeze, and many are computed twice
        want, solution = x.truth(few, 1.0), kernels.solve(hot, stats=True)
        assert solution.stats is not None
        add(
            "forward, unscaled",
            "isotherm",
            lambda: kernels.solve(hot, stats=True),
            numbers(solution.stats, pick, solution.output),
            want,
        )
        found_stats = kernels.statistics(hot)
        add("statistics, unscaled", "isotherm", lambda: kernels.statistics(hot), numbers(found_stats, pick), want)
    tasks |= gradients(x, tasks)
    return tasks


def gradients(x: Inputs, tasks: dict) -> dict:
    """Return the forward-and-backward tasks, after comparing our gradients with cuDNN's."""
    leaves = (x.q, x.k, x.v)
    found = {}
    for name in ("cudnn", "isotherm"):
        forward = tasks["forward", name][0]

        def run(forward: Callable[[], object] = forward) -> tuple[Tensor, ...]:
            result = forward()
            return torch.autograd.grad(result if isinstance(result, Tensor) else result.output, leaves, x.d_out)

        found[name] = run
    want, got = found["cudnn"](), found["isotherm"]()
    errors = {n: ((a - b).float().norm() / b.float().norm()).item() for n, a, b in zip("qkv", got, want, strict=True)}
    if not max(errors.values()) < 1e-2:
        raise AssertionError(f"wrong gradients, not timed: {errors}")
    return {("forward+backward", name): (run, errors if name == "isotherm" else {}, 1.0) for name, run in found.items()}


def graph(run: Callable[[], object]) -> Callable[[], object] | None:
    """Capture `run` as a CUDA graph and return its replay, or None if it cannot be captured."""
    try:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run()
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            kept = run()
        return lambda: (captured.replay(), kept)[0]
    except Exception as error:
        torch.cuda.synchronize()
        print(f"no graph: {error!r}"[:200], file=sys.stderr)
        return None


def extra_mib(run: Callable[[], object], output_bytes: int) -> float:
    """Measure peak memory beyond inputs and output."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before - output_bytes) / 2**20


def timed(
    runs: dict[tuple[str, str, str], Callable[[], object]], rounds: int
) -> dict[tuple[str, str, str], list[float]]:
    """Time every run. Each round shuffles the order, so that no run always follows the same one, and clears the cache."""
    samples: dict[tuple[str, str, str], list[float]] = {key: [] for key in runs}
    order, shuffle = list(runs), random.Random(0).shuffle
    for turn in range(rounds):
        shuffle(order)
        for key in order:
            if key[1] == "eager" and turn > 1:
                continue
            runs[key]()
            marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(2)]
            for begin, end in marks:
                CACHE.zero_()
                begin.record()
                runs[key]()
                end.record()
            torch.cuda.synchronize()
            samples[key] += [begin.elapsed_time(end) for begin, end in marks]
    return samples


def measure(shape: Shape, rounds: int) -> list[Row]:
    """Measure everything at one shape: first correctness, then memory, then time."""
    x = Inputs(shape)
    tasks = checked(x)
    output = x.q.numel() * 2
    memory = {}
    for (task, provider), (run, *_) in tasks.items():
        with torch.set_grad_enabled(task == "forward+backward"):
            memory[task, provider] = extra_mib(run, output if task in ("forward", "forward, unscaled") else 0)
    runs: dict[tuple[str, str, str], Callable[[], object]] = {}
    for (task, provider), (run, *_) in tasks.items():
        quiet = run if task == "forward+backward" else torch.no_grad()(run)
        runs[task, provider, "call"] = quiet
        if provider != "eager" and (replay := graph(quiet)) is not None:
            runs[task, provider, "device"] = replay
    rows = []
    samples = timed(runs, rounds)
    for (task, provider, timing), times in samples.items():
        low, middle, high = (sorted(times)[min(len(times) - 1, int(f * len(times)))] for f in (0.2, 0.5, 0.8))
        base = "forward+backward" if task == "forward+backward" else "forward"
        cudnn = st.median(samples.get((base, "cudnn", timing), [math.nan]))
        work = shape.flops * (3.5 if task == "forward+backward" else 0.5 if task.startswith("statistics") else 1.0)
        errors = " ".join(f"{n}={e:.1e}" for n, e in tasks[task, provider][1].items())
        rows.append(
            Row(
                task,
                provider,
                shape.d,
                shape.n,
                shape.heads,
                shape.causal,
                timing,
                round(low, 4),
                round(middle, 4),
                round(high, 4),
                round(work / middle / 1e9, 1),
                round(middle / cudnn, 4),
                round(memory[task, provider], 1),
                errors,
            )
        )
    return rows


def line(row: Row) -> str:
    """Format one row for the terminal."""
    shape = f"d={row.d} n={row.n} {'causal' if row.causal else 'full':6}"
    time_ = f"{row.p50:9.3f} ms {row.against_cudnn:8.4f} × cuDNN"
    return f"{shape} {row.task:33} {row.provider:10} {row.timing:6} {time_} {row.extra_mib:9.1f} MiB"


def provenance(commit: str, rounds: int) -> dict[str, object]:
    """Record hardware, software versions and command."""
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name(),
        "nvidia_smi": driver,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "commit": commit,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": f"benchmarks/attention_gpu.py --commit {commit} --rounds {rounds}",
        "dtype": str(HALF),
    }


def main() -> None:
    """Measure, print a summary, write <out>.csv and <out>.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="n = 4096 only")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA device, and PyTorch finds none")
    torch._dynamo.config.recompile_limit = 64
    sizes = ((4096, 64),) if options.quick else ((4096, 64), (16384, 16))
    rows: list[Row] = []
    for d in (64, 128):
        for n, heads in sizes:
            for causal in (False, True):
                began = time.time()
                rows += measure(Shape(d, n, heads, causal), options.rounds)
                torch.cuda.empty_cache()
                for row in rows:
                    if (row.d, row.n, row.causal) == (d, n, causal):
                        print(line(row))
                print(f"-- {time.time() - began:.0f} s", flush=True)
                options.out.parent.mkdir(parents=True, exist_ok=True)
                with options.out.with_suffix(".csv").open("w", newline="") as file:
                    writer = csv.DictWriter(file, fieldnames=list(asdict(rows[0])))
                    writer.writeheader()
                    writer.writerows(asdict(row) for row in rows)
    options.out.with_suffix(".json").write_text(json.dumps(provenance(options.commit, options.rounds), indent=2) + "\n")
    for task in dict.fromkeys(row.task for row in rows):
        for timing in ("device", "call"):
            ratios = [r.against_cudnn for r in rows if (r.task, r.provider, r.timing) == (task, "isotherm", timing)]
            if ratios:
                mean = math.exp(st.fmean(map(math.log, ratios)))
                print(
                    f"isotherm {task:24} {timing:6} against cuDNN: geometric mean {mean:.4f}, worst {max(ratios):.4f}"
                )


CACHE = torch.empty(64 << 20, dtype=torch.int32, device="cuda") if torch.cuda.is_available() else torch.empty(0)

if __name__ == "__main__":
    main()
