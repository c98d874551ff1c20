"""Every kernel on small shapes under compute-sanitizer: no access out of bounds, no unordered one. `make sanitize-gpu`.

Each part runs in a process of its own: first alone, which compiles it, then under memcheck and racecheck. Two faults are
planted, and the tools have to find them. Every report fails the run, except two kinds of race:
- Races inside cuDNN's kernels, which the backward pass may call and which are not ours.
- Races in `hopper` on the bytes by which Triton's warp_specialize tells its partitions what to do. In the machine code a
  barrier of all warps stands between every write and every read of these bytes, and racecheck reports the same for twenty
  lines of Gluon whose partitions only take turns (docs/notes/testing.md). Such accesses have the line of the kernel's `def`
  or of its warp_specialize, and no other line.
"""

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from isotherm.ops import Problem
from isotherm.ops import triton as kernels
from isotherm.ops.triton import fast as fast_path
from isotherm.ops.triton import fast_hopper_kernel, key_splits
from tests.ops import cases

TOOLS = ("memcheck", "racecheck")
DONE = "part done"
PATIENCE = 900  # seconds a part may take
REPORTS = Path("out/sanitize")
GRIDS = ([0.03 * 2 ** (i / 2) for i in range(8)], [0.03 * 1.34**i for i in range(8)], [1.0, 0.5])


def drawn(d, queries, keys, *, dtype=torch.bfloat16, dv=None, mask=(), bias=False, **options) -> Problem:
    """Two heads of queries to one of keys; `mask` is a mask's shape but for the keys."""
    g = torch.Generator("cuda").manual_seed(1)

    def draw(*size):
        return torch.randn(size, generator=g, device="cuda").to(dtype)

    q, k, v = draw(1, 2, queries, d), draw(1, 1, keys, d), draw(1, 1, keys, dv or d)
    options["mask"] = draw(*mask, keys) > -0.5 if mask else None
    options["bias"] = draw(1, 2, queries, keys) if bias else None
    return cases.problem(q, k, v, **{"scale": d**-0.5, **options})


def every(x: Problem, *, gradients: bool = True) -> None:
    """Everything that can be asked of a problem, twice: recorded, then played from the tape."""
    rows = torch.arange(0, x.q.shape[2], 5, device="cuda")
    for _ in range(2):
        kernels.solve(x, stats=True)
        kernels.solve(x, stats=False)
        for some in (None, rows):
            kernels.statistics(x, some)
            for grid in GRIDS:
                kernels.statistics_at(x, grid, some)
    for deterministic in (True, False) if gradients else ():
        torch.use_deterministic_algorithms(deterministic)
        q, k, v = (y.detach().clone().requires_grad_() for y in (x.q, x.k, x.v))
        kernels.solve(replace(x, q=q, k=k, v=v), stats=True).output.sum().backward()
    torch.use_deterministic_algorithms(False)


def fast(d: int) -> None:
    """The fast path; at a scale of 3 rows freeze and are recomputed."""
    for causal in (False, True):
        every(drawn(d, 143, 167, causal=causal), gradients=d > 32)
        every(drawn(d, 70, 70, causal=causal, scale=3.0), gradients=False)


def with_sums(d: int) -> None:
    """The fast path with key sums, which otherwise need long rows."""
    fast_path.LONG = fast_path.LONG_CAUSAL = fast_path.LONG_CAUSAL_D128 = 0
    fast_path.LEAST_CHUNKS = 2
    for causal in (False, True):
        every(drawn(d, 700, 777, causal=causal, scale=1.0), gradients=False)


def split(d: int) -> None:
    """Keys split over programs, because rows are few."""
    key_splits.LEAST_SPLIT = 64
    every(drawn(d, 40, 391, causal=True), gradients=False)


def persistent() -> None:
    """The persistent kernel, which otherwise needs a large problem."""
    fast_path.LONG = fast_path.LONG_CAUSAL = fast_path.LONG_CAUSAL_D128 = 0
    fast_path.LEAST_CHUNKS = 2
    fast_path.uses_persistent_kernel = lambda call: True
    for causal in (False, True):
        for queries, keys in ((143, 300), (300, 777), (640, 640)):
            kernels.solve(drawn(128, queries, keys, causal=causal), stats=True)


def general(*size, **options) -> None:
    """The general kernel."""
    every(drawn(*size, **options))


@triton.jit
def _beyond(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i <= n, other=0.0), mask=i < n)


def planted_read() -> None:
    """Reads one element beyond a tensor."""
    x, y = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
    _beyond[(1,)](x, y, 1000, BLOCK=1024)


LAYOUT = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))


@gluon.jit
def _put(shared):
    shared.store(gl.arange(0, 512, LAYOUT))


@gluon.jit
def _take(shared, out):
    gl.store(out + gl.arange(0, 512, LAYOUT), shared.load(LAYOUT))


@gluon.jit
def _unordered(out):
    shared = gl.allocate_shared_memory(gl.int32, [512], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    gl.warp_specialize([(_put, (shared,)), (_take, (shared, out))], [4], [64])


def planted_race() -> None:
    """One partition writes what another reads, and nothing orders them."""
    _unordered[(4,)](torch.zeros(512, dtype=torch.int32, device="cuda"), num_warps=4)


@dataclass(frozen=True)
class Part:
    """Something to run under some of the tools. If it is not `sound`, it has a fault that they must find."""

    run: Callable[[], None]
    tools: tuple[str, ...] = TOOLS
    sound: bool = True
    hopper: bool = False


PARTS = {
    "a planted read out of bounds": Part(planted_read, ("memcheck",), sound=False),
    "a planted race": Part(planted_race, ("racecheck",), sound=False, hopper=True),
    **{f"fast kernels, d {d}": Part(partial(fast, d)) for d in (32, 64, 128)},
    **{f"sums of the keys, d {d}": Part(partial(with_sums, d)) for d in (64, 128)},
    **{f"split keys, d {d}": Part(partial(split, d)) for d in (64, 80, 128)},
    "persistent programs": Part(persistent, hopper=True),
    "window": Part(partial(general, 64, 67, 143, causal=True, window=20)),
    "padding and bias": Part(partial(general, 80, 67, 67, mask=(1, 1, 1), bias=True)),
    "a mask for every row": Part(partial(general, 64, 67, 91, mask=(1, 1, 67))),
    "soft cap, Dv ≠ D": Part(partial(general, 40, 67, 67, causal=True, softcap=20.0, dv=64)),
    "float32": Part(partial(general, 64, 67, 67, causal=True, dtype=torch.float32)),
    "float32 and bias": Part(partial(general, 128, 33, 67, dtype=torch.float32, bias=True)),
    "float16, d 256": Part(partial(general, 256, 33, 67, causal=True, dtype=torch.float16)),
}


@dataclass(frozen=True)
class Access:
    """One side of a race: the kernel, and the line of source where that is known."""

    kernel: str
    file: str | None
    line: int | None


def races(report: str) -> list[list[Access]]:
    """The races of a racecheck report, each with all its accesses."""
    found: list[list[Access]] = []
    for line in report.splitlines():
        if access := re.search(r"(?:Read|Write) access at (.+?)\+0x[0-9a-f]+(?: in (\S+):(\d+))?", line):
            if "reported between" in line:
                found.append([])
            kernel, file, number = access.groups()
            found[-1].append(Access(kernel, file, int(number) if number else None))
    return found


def signals() -> frozenset[int]:
    """The lines of `fast_hopper_kernel` that racecheck names for the accesses of warp_specialize itself."""
    text, first = inspect.getsourcelines(fast_hopper_kernel.hopper.fn)
    head = next(i for i, line in enumerate(text) if line.startswith("def "))
    call = next(i for i, line in enumerate(text) if "gl.warp_specialize(" in line)
    return frozenset({first + head, first + call})


def excused(race: list[Access]) -> bool:
    """Whether a race is one of the two kinds that are not ours."""
    if all(access.kernel.startswith("cudnn_") for access in race):
        return True
    here, lines = Path(fast_hopper_kernel.__file__).name, signals()
    return all(access.kernel == "hopper" and access.file == here and access.line in lines for access in race)


def verdict(tool: str, report: str) -> str:
    """What a report says is wrong, or '' if it is clean. The words begin with a number if a fault was found."""
    total = re.search(r"SUMMARY: (\d+) (?:error|hazard)", report)
    found = races(report)
    if tool == "memcheck" and total and total[1] != "0":
        return f"{total[1]} errors"
    if ours := [race for race in found if not excused(race)]:
        return f"{len(ours)} races, the first in {ours[0]}"
    if DONE not in report:
        return "did not finish: " + (report.strip().splitlines() or ["no output"])[-1]
    if not total or (tool == "racecheck" and int(total[1]) != len(found)):
        return f"a summary that does not fit: {total and total[0]}, {len(found)} races read"
    return ""


def ran(part: str, *before: str) -> str:
    """What a part prints in a process of its own."""
    command = [*before, sys.executable, "-m", __spec__.name, part]
    # Else a read past a tensor is one into memory that PyTorch keeps; and cuBLAS wants to be told before it is deterministic.
    wanted = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    environment = {**os.environ, **wanted}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return f"stopped after {PATIENCE} s"
    return done.stdout + done.stderr


def examined(sanitizer: str) -> int:
    """Run all parts under their tools and return how many failed. The reports of failed parts are kept."""
    hopper = torch.cuda.get_device_capability()[0] == 9
    for name in (name for name, part in PARTS.items() if part.hopper and not hopper):
        print(f"left out, since it needs Hopper: {name}")
    jobs = [(tool, name) for name, part in PARTS.items() if hopper or not part.hopper for tool in part.tools]
    wrong = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        names = list(dict.fromkeys(name for _, name in jobs))
        print(f"== compiling {len(names)} parts", flush=True)
        list(pool.map(ran, names))
        print(f"== {sanitizer}", flush=True)
        reports = pool.map(lambda job: ran(job[1], sanitizer, "--tool", job[0]), jobs)
        for (tool, name), report in zip(jobs, reports, strict=True):
            said = verdict(tool, report)
            fine = not said if PARTS[name].sound else said[:1].isdigit()
            others = len(races(report)) if not said else 0
            note = f" ({others} that are not ours)" if others else ""
            print(f"{'ok' if fine else 'FAILED':6}  {tool:9}  {name}: {said or 'clean'}{note}", flush=True)
            if not fine:
                wrong += 1
                print(f"        the report: {_kept(tool, name, report)}", flush=True)
    return wrong


def _kept(tool: str, name: str, report: str) -> Path:
    path = REPORTS / f"{tool}, {name}.txt".replace(", ", "-").replace(" ", "-")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report, encoding="utf-8")
    return path


def main(arguments: list[str]) -> int:
    """One part, or all of them under the tools."""
    if not torch.cuda.is_available():
        print("make sanitize-gpu needs a CUDA device and PyTorch finds none.", file=sys.stderr)
        return 2
    if arguments:
        PARTS[arguments[0]].run()
        torch.cuda.synchronize()
        print(DONE, flush=True)
        return 0
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if not sanitizer:
        print("make sanitize-gpu needs compute-sanitizer, of the CUDA toolkit, on PATH.", file=sys.stderr)
        return 2
    wrong = examined(sanitizer)
    print(f"{wrong} not as they should be" if wrong else "all as it should be")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
