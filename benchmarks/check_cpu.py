"""Times a check on the CPU against a plain forward, and against `output_attentions=True` with the same statistics, all without
gradients: a check keeps the caller's grad mode.

Writes benchmarks/results/check_cpu.csv and check_cpu.json, and prints the ratios. A first argument, such as MiniLM, measures
only the models whose name begins so.
"""

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn

from attention_cpu import THREADS, current_mib, peak_mib, provenance, reset_peak
from isotherm import check
from isotherm.checkup.batch import make_batch, read_text
from isotherm.checkup.load import Loading, load

HERE = Path(__file__).parent
BARE = {"what_if": (), "compare": False, "detail": False}


def minilm() -> tuple[nn.Module, dict[str, Any]]:
    """all-MiniLM-L6-v2 at 256 tokens."""
    loaded = load(None, Loading())
    return loaded.model, make_batch(loaded, read_text(None), 256)


def gpt2() -> tuple[nn.Module, dict[str, Any]]:
    """A random model of GPT-2 small's size at 1024 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa")).eval()
    return model, {"input_ids": torch.randint(0, 50257, (1, 1024))}


def llama() -> tuple[nn.Module, dict[str, Any]]:
    """A random 4-layer Llama-like model at 8192 tokens."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=1000,
        max_position_embeddings=8192,
        attn_implementation="sdpa",
    )
    return LlamaModel(config).eval(), {"input_ids": torch.randint(0, 1000, (1, 8192))}


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "MiniLM, 256": minilm,
    "GPT-2 small, 1024": gpt2,
    "Llama-like, 8192": llama,
}


@torch.no_grad()
def plain(model: nn.Module, batch: dict[str, Any]) -> None:
    """One forward with PyTorch's kernel."""
    model(**batch)


@torch.no_grad()
def materialised(model: Any, batch: dict[str, Any]) -> None:
    """Return the weights of every layer from transformers, and compute the same statistics from them."""
    model.set_attn_implementation("eager")
    attentions = model(**batch, output_attentions=True).attentions
    for weights in attentions:
        p = weights.double()
        entropy = -torch.where(p > 0, p * p.clamp(min=1e-300).log(), 0.0).sum(-1)
        columns = (entropy, p.square().sum(-1), p.amax(-1), p[..., 0])
        _ = [column.flatten(2).quantile(torch.tensor([0.1, 0.5, 0.9], dtype=p.dtype), dim=-1) for column in columns]
    model.set_attn_implementation("sdpa")


@torch.no_grad()
def bare(model: nn.Module, batch: dict[str, Any]) -> None:
    """A check with exact statistics, without what-if and without comparing implementations."""
    check(model, batch, **BARE)


@torch.no_grad()
def whole(model: nn.Module, batch: dict[str, Any]) -> None:
    """The whole default check."""
    _ = check(model, batch).record


PROVIDERS = {"plain forward": plain, "check, exact": bare, "check, whole": whole, "output_attentions": materialised}


def measure_memory(model_name: str, provider: str) -> None:
    """Print the peak memory beyond what the loaded model holds, in this process."""
    torch.set_num_threads(THREADS)
    model, batch = MODELS[model_name]()
    before = current_mib()
    reset_peak()
    PROVIDERS[provider](model, batch)
    print(peak_mib() - before)


def earlier() -> list[list[Any]]:
    """Read the rows of the last run."""
    with (HERE / "results" / "check_cpu.csv").open(newline="") as file:
        return [[*row[:2], *map(float, row[2:5]), row[5]] for row in list(csv.reader(file))[1:]]


def main(only: str = "") -> None:
    """Time, measure, print and write. `only` measures the models whose name begins so, and keeps the rows of the others."""
    torch.set_num_threads(THREADS)
    rows: list[list[Any]] = []
    for model_name, make in MODELS.items():
        if not model_name.startswith(only):
            rows += [row for row in earlier() if row[0] == model_name]
            continue
        model, batch = make()
        large = model_name.startswith("Llama")
        providers = {k: v for k, v in PROVIDERS.items() if not large or k in ("plain forward", "check, exact")}
        print(f"{model_name} …", file=sys.stderr)
        times: dict[str, list[float]] = {provider: [] for provider in providers}
        # Providers take turns and the best time counts, so that other processes on the machine disturb all of them alike.
        for _ in range(2 if large else 25 if model_name.startswith("MiniLM") else 6):
            for provider, work in providers.items():
                start = time.perf_counter()
                work(model, batch)
                times[provider].append(1e3 * (time.perf_counter() - start))
        base = min(times["plain forward"])
        for provider in providers:
            command = [sys.executable, __file__, "--memory", model_name, provider]
            memory = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            best = min(times[provider])
            rows.append([model_name, provider, best, best / base, memory, f"best of {len(times[provider])}, in turns"])
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    with (results / "check_cpu.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "provider", "ms", "ratio_to_forward", "extra_mib", "timing"])
        writer.writerows([[f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows])
    (results / "check_cpu.json").write_text(json.dumps(provenance(), indent=2) + "\n")
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("model", "provider", "best ms", "× forward", "extra MiB"):
        table.add_column(name, justify="left" if name in ("model", "provider") else "right")
    for model_name, provider, best, ratio, memory, _ in rows:
        table.add_row(model_name, provider, f"{best:.0f}", f"{ratio:.2f}", f"{memory:.0f}")
    Console().print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(sys.argv[2], sys.argv[3])
    else:
        main(*sys.argv[1:2])
