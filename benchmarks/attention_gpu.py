"""Attention with exact row statistics on a GPU, against everything else that computes attention there.

One run, one tidy table: a row per task, provider and shape, each timed only after its numbers were checked against
float64. Providers take turns, so that a GPU that heats up slows all of them alike. Times are of CUDA graph replays
(`device`), where launching from Python costs nothing, and of plain calls (`call`).

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
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from isotherm.ops import Problem, Visibility
from isotherm.ops import triton as kernels
from isotherm.stats import RowStats

HALF = torch.bfloat16
CHECKED = 32
"""Rows of one head that are compared with float64 before anything is timed."""
SAMPLED = 256
HALF_OCTAVES = [2.0 ** (i / 2) / 32 for i in range(8)]
HALF_OCTAVES = [HALF_OCTAVES[i % 2] * 2 ** (i // 2) for i in range(8)]
UNEVEN = [0.03, 0.04, 0.05, 0.07, 0.1, 0.13, 0.17, 0.23]
Numbers = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """One head per (batch, head) pair, `n` queries and keys of dimension `d`."""

    d: int
    n: int
    heads: int
    causal: bool

    @property
    def flops(self) -> float:
        """Of the two matrix products; half of them under causality."""
        return 4.0 * self.heads * self.n * self.n * self.d / (2 if self.causal else 1)


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


class Inputs:
    """q, k, v of a shape, with the gradient that comes back, and the truth for a few rows."""

    def __init__(self, shape: Shape) -> None:
        g = torch.Generator("cuda").manual_seed(shape.n + shape.d)
        size = (shape.heads // 16, 16, shape.n, shape.d)
        self.shape, self.scale = shape, shape.d**-0.5
        self.q, self.k, self.v, self.d_out = (torch.randn(size, generator=g, device="cuda").to(HALF) for _ in range(4))
        for x in (self.q, self.k, self.v):
            x.requires_grad_()
        seen = Visibility(torch.arange(shape.n, device="cuda"), shape.n, shape.causal)
        self.problem = Problem(self.q, self.k, self.v, seen, self.scale)
        self.few = torch.linspace(0, shape.n - 1, CHECKED, device="cuda").long()
        self.rows = torch.arange(SAMPLED, device="cuda") * (shape.n // SAMPLED) + 7

    def logits(self, rows: Tensor, scale: float) -> Tensor:
        """s of these rows of the first head, −inf where hidden."""
        s = self.q[0, 0, rows].detach().double() @ self.k[0, 0].detach().double().T * scale
        after = torch.arange(self.shape.n, device="cuda") > rows.view(-1, 1)
        return s.masked_fill(after, -torch.inf) if self.shape.causal else s

    def truth(self, rows: Tensor, scale: float) -> Numbers:
        """The statistics of these rows of the first head, and the output, in float64."""
        s = self.logits(rows, scale)
        stats = RowStats.from_logits(torch.where(s.isfinite(), s, 0.0), s.isfinite())
        names = ("lse", "max_logit", "entropy", "collision", "logit_mean", "logit_std", "sink", "jacobian_trace")
        return {"output": torch.softmax(s, -1) @ self.v[0, 0].detach().double()} | {n: getattr(stats, n) for n in names}


def numbers(stats: RowStats, pick: Callable[[Tensor], Tensor], output: Tensor | None = None) -> Numbers:
    """Statistics by name, of the rows that `pick` takes."""
    names = ("lse", "max_logit", "entropy", "collision", "logit_mean", "logit_std", "sink", "jacobian_trace")
    found = {name: pick(getattr(stats, name)) for name in names}
    return found if output is None else found | {"output": pick(output).double()}


def wrong(found: Numbers, truth: Numbers) -> dict[str, float]:
    """Largest error of each number; statistics are held to 1e-3, outputs to the precision of bfloat16."""
    errors = {name: (x.double() - truth[name]).abs().max().item() for name, x in found.items()}
    errors = {name: error if not math.isnan(error) else math.inf for name, error in errors.items()}
    limits = {"output": 2e-2}
    over = {name: error for name, error in errors.items() if error > limits.get(name, 1e-3)}
    if over:
        raise AssertionError(f"wrong numbers, not timed: {over}")
    return errors


def stock(x: Inputs, backend: SDPBackend) -> Callable[[], Tensor]:
    """PyTorch's own attention, without statistics."""

    def run() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(x.q, x.k, x.v, is_causal=x.shape.causal)

    return run


def eager(x: Inputs) -> Callable[[], tuple[Tensor, Numbers]]:
    """Weights held in memory, softmax and statistics in float32 as everyone's eager path has them."""
    hidden = torch.ones(x.shape.n, x.shape.n, dtype=torch.bool, device="cuda").triu(1) if x.shape.causal else None

    def run() -> tuple[Tensor, Numbers]:
        s = (x.q @ x.k.mT).float() * x.scale
        if hidden is not None:
            s = s.masked_fill(hidden, -torch.inf)
        lse, p = s.logsumexp(-1), torch.softmax(s, -1)
        top = s.amax(-1)
        if hidden is not None:
            s = s.masked_fill(hidden, 0.0)
        n = torch.arange(1, x.shape.n + 1, device="cuda") if hidden is not None else x.shape.n
        mean = s.sum(-1) / n
        collision = p.square().sum(-1)
        return p.to(HALF) @ x.v, {
            "lse": lse,
            "max_logit": top,
            "entropy": lse - (p * s).sum(-1),
            "collision": collision,
            "logit_mean": mean,
            "logit_std": (s.square().sum(-1) / n - mean.square()).clamp(min=0).sqrt(),
            "sink": p[..., 0],
            "jacobian_trace": 1 - collision,
        }

    return run


def identities(x: Inputs) -> Callable[[], tuple[Tensor, Numbers]]:
    """Entropy and collision from kernels that give lse only.

    Σ p·s is an attention with v = k, Σp² an lse at twice the scale.
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention

    def run() -> tuple[Tensor, Numbers]:
        out, lse, *_ = flash(x.q, x.k, x.v, 0.0, x.shape.causal, scale=x.scale)
        mean_key, *_ = flash(x.q, x.k, x.k, 0.0, x.shape.causal, scale=x.scale)
        _, sharper, *_ = flash(x.q, x.k, x.v, 0.0, x.shape.causal, scale=2 * x.scale)
        ps = (x.q.float() * mean_key.float()).sum(-1) * x.scale
        return out, {"lse": lse, "entropy": lse - ps, "collision": (sharper - 2 * lse).exp()}

    return run


def flex(x: Inputs) -> Callable[[], tuple[Tensor, Numbers]]:
    """FlexAttention, compiled, which gives lse and the largest logit on request."""
    from torch.nn.attention.flex_attention import AuxRequest

    mask = None
    if x.shape.causal:
        mask = create_block_mask(lambda _, __, i, j: i >= j, None, None, x.shape.n, x.shape.n, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)

    def run() -> tuple[Tensor, Numbers]:
        out, aux = compiled(x.q, x.k, x.v, block_mask=mask, return_aux=AuxRequest(lse=True, max_scores=True))
        return out, {"lse": aux.lse, "max_logit": aux.max_scores}

    return run


def checked(x: Inputs) -> dict[tuple[str, str], tuple[Callable[[], object], dict[str, float], float]]:
    """Every (task, provider) that got its numbers right: how to run it, its errors, and how loose the others' are."""
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
        for name, scales in (("half-octaves", HALF_OCTAVES), ("uneven", UNEVEN)):
            at = kernels.statistics_at(x.problem, scales)
            for scale, got in zip(scales, at, strict=True):
                wrong(numbers(got, pick), x.truth(few, scale))
            add(f"8 scales, {name}", "isotherm", lambda scales=scales: kernels.statistics_at(x.problem, scales), {}, {})
    tasks |= gradients(x, tasks)
    return tasks


def gradients(x: Inputs, tasks: dict) -> dict:
    """Forward and backward, our gradients held to cuDNN's."""
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
    """The same as a CUDA graph's replay; None where that cannot be captured."""
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
    """Peak memory beyond inputs and output."""
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
    """Times of every run, a few at a time in ever new order, so that none always follows the same; the cache is cleared."""
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
    """Everything at one shape: checked, then memory, then time."""
    x = Inputs(shape)
    tasks = checked(x)
    output = x.q.numel() * 2
    memory = {}
    for (task, provider), (run, *_) in tasks.items():
        with torch.set_grad_enabled(task == "forward+backward"):
            memory[task, provider] = extra_mib(run, output if task == "forward" else 0)
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
        work = shape.flops * (3.5 if task == "forward+backward" else 0.5 if task in ("statistics",) else 1.0)
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
    """One row for a person."""
    shape = f"d={row.d} n={row.n} {'causal' if row.causal else 'full':6}"
    time_ = f"{row.p50:9.3f} ms {row.against_cudnn:8.4f} × cuDNN"
    return f"{shape} {row.task:24} {row.provider:10} {row.timing:6} {time_} {row.extra_mib:9.1f} MiB"


def provenance(commit: str) -> dict[str, object]:
    """What ran where."""
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
        "command": " ".join(sys.argv),
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
    options.out.with_suffix(".json").write_text(json.dumps(provenance(options.commit), indent=2) + "\n")
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
