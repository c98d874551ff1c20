"""Times a check on a GPU against one forward of the same model: time, peak memory, and the first check in a process.

The model is a random Llama of one billion parameters in bfloat16, which returns the logits of the last token only. «Look» is
a check without what-if and without comparing implementations; «whole» is the default. All take turns; the best time of each
counts, and the most memory. «In a new process» is its first check, with Triton's cache on disk warm: kernels are loaded and
tapes recorded then.

    python benchmarks/check_gpu.py --commit $(git rev-parse HEAD)
"""

import argparse
import csv
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import nn

LENGTHS = (2048, 8192, 32768, 131072)
CHECKS: dict[str, dict[str, Any]] = {"look": {"what_if": (), "compare": False}, "whole": {}}
NEW_PROCESS = "whole, in a new process"
Measured = tuple[float, float]
"""Seconds, and the most MiB allocated on the GPU."""


def llama() -> nn.Module:
    """A random Llama of one billion parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
        max_position_embeddings=262144,
    )
    return LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()


def measured(work: Callable[[], object]) -> Measured:
    """The time of one call, the GPU's part included, and the most memory."""
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start, torch.cuda.max_memory_allocated() / 2**20


def batch_of(length: int) -> dict[str, Any]:
    """Random tokens."""
    return {"input_ids": torch.randint(0, 32000, (1, length), device="cuda"), "logits_to_keep": 1}


def rows_of(model: nn.Module, length: int) -> list[list[Any]]:
    """The rows of one length. All ways take turns, because a GPU that has been idle is slow at first."""
    import isotherm

    batch, rounds = batch_of(length), 2 if length > 100_000 else 5
    ways: dict[str, Callable[[], object]] = {"forward": lambda: model(**batch)}
    for name, options in CHECKS.items():
        ways[name] = lambda options=options: isotherm.check(model, batch, **options)  # type: ignore[misc]
    for way in ways.values():  # compiles
        way()
    turns = [{name: measured(way) for name, way in ways.items()} for _ in range(rounds)]
    best = {name: min(turn[name][0] for turn in turns) for name in ways}
    held = {name: max(turn[name][1] for turn in turns) for name in ways}
    rows: list[list[Any]] = [
        [length, name, 1e3 * best[name], best[name] / best["forward"], held[name], held[name] / held["forward"]]
        for name in ways
    ]
    for row in rows:
        print("\t".join(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row), flush=True)
    return rows


def first_check(length: int) -> None:
    """Print how many seconds the first check of a process takes."""
    import isotherm

    model, batch = llama(), batch_of(length)
    model(**batch)
    print(measured(lambda: isotherm.check(model, batch))[0])


def provenance(commit: str) -> dict[str, object]:
    """Record hardware, software versions and command."""
    import transformers

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "commit": commit,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": f"benchmarks/check_gpu.py --commit {commit}",
        "dtype": "torch.bfloat16",
    }


@torch.no_grad()
def main() -> None:
    """Time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/check_gpu"))
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument(
        "--first", type=int, help="print the seconds of the first check in this process, at this length"
    )
    parser.add_argument("--without-first", action="store_true", help="time no first check of a process")
    options = parser.parse_args()
    if options.first:
        first_check(options.first)
        return
    model = llama()
    rows = [row for length in options.lengths for row in rows_of(model, length)]
    if not options.without_first:
        shortest, forward = min(options.lengths), rows[0][2]
        command = [sys.executable, __file__, "--first", str(shortest)]
        first = 1e3 * float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        rows.append([shortest, NEW_PROCESS, first, first / forward, "", ""])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["n", "what", "ms", "ratio_to_forward", "peak_mib", "ratio_of_peak"])
        writer.writerows([[f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows])
    options.out.with_suffix(".json").write_text(json.dumps(provenance(options.commit), indent=2) + "\n")


if __name__ == "__main__":
    main()
